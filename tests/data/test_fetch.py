"""Downloads from a server that misbehaves, and what is left in the cache afterwards."""

from __future__ import annotations

import gzip
import hashlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pwoa.data.store import cache_folder, get, load_official
from pwoa.errors import InputError

IMAGES = "train-images-idx3-ubyte.gz"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def big(tiny: Any) -> bytes:
    content: bytes = tiny.offered["cifar-10-binary.tar.gz"]
    return content


def test_download_then_cache(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec, calls = tiny_idx.at(server.url), []
    train, _ = load_official(spec, progress=lambda *call: calls.append(call))
    assert np.array_equal(train.pixels, tiny_idx.train.pixels)
    assert names(cache_folder(spec)) == set(tiny_idx.offered)
    assert (IMAGES, len(tiny_idx.offered[IMAGES]), len(tiny_idx.offered[IMAGES])) in calls
    load_official(spec)
    assert len(server.requests) == 4


def test_what_several_ask_for_at_once_is_downloaded_once(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec = tiny_idx.at(server.url)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: load_official(spec), range(4)))
    assert all(np.array_equal(train.pixels, tiny_idx.train.pixels) for train, _ in results)
    assert len(server.requests) == 4
    assert names(cache_folder(spec)) == set(tiny_idx.offered)


def test_of_an_archive_the_files_are_kept(tiny_cifar: Any, server: Any) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    _, test = load_official(spec)
    assert np.array_equal(test.pixels, tiny_cifar.test.pixels)
    assert names(cache_folder(spec)) == {*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"}
    assert np.array_equal(load_official(spec)[1].pixels, tiny_cifar.test.pixels)
    assert len(server.requests) == 1


def test_broken_transfer_goes_on_where_it_stopped(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after = tiny_cifar.offered, [1000, 500]
    load_official(tiny_cifar.at(server.url))
    assert [span for _, span in server.requests] == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_run_goes_on_where_an_earlier_one_stopped(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after = tiny_cifar.offered, [1000, 0]
    spec = tiny_cifar.at(server.url)
    with pytest.raises(InputError, match=rf"broke off: 1000 of {len(big(tiny_cifar))} bytes came; run again"):
        load_official(spec)
    assert names(cache_folder(spec)) == {"cifar-10-binary.tar.gz.part"}
    load_official(spec)
    assert server.requests[-1][1] == "bytes=1000-"


def test_a_server_that_cannot_resume_sends_all_again(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after, server.supports_range = tiny_cifar.offered, [1000], False
    load_official(tiny_cifar.at(server.url))
    assert len(server.requests) == 2


@pytest.mark.parametrize("extra", [0, 10])
def test_a_useless_partial_file_is_replaced(tiny_cifar: Any, server: Any, extra: int) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    cache_folder(spec).mkdir(parents=True)
    (cache_folder(spec) / "cifar-10-binary.tar.gz.part").write_bytes(bytes(len(big(tiny_cifar)) + extra))
    load_official(spec)


def test_a_complete_partial_file_is_used(tiny_cifar: Any, server: Any) -> None:
    spec = tiny_cifar.at(server.url)
    cache_folder(spec).mkdir(parents=True)
    (cache_folder(spec) / "cifar-10-binary.tar.gz.part").write_bytes(big(tiny_cifar))
    load_official(spec)
    assert server.requests == []


def test_web_page_instead_of_data(tiny_idx: Any, server: Any) -> None:
    server.files = dict.fromkeys(tiny_idx.offered, b"<!DOCTYPE html><title>Log in</title>")
    spec = tiny_idx.at(server.url)
    with pytest.raises(InputError, match=f"{IMAGES} is a web page, not a data file"):
        load_official(spec)
    assert names(cache_folder(spec)) == set()


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:-1] + b"?"], ids=["truncated", "changed"])
def test_wrong_checksum(tiny_idx: Any, server: Any, damage: Callable[[bytes], bytes]) -> None:
    server.files = tiny_idx.offered | {IMAGES: damage(tiny_idx.offered[IMAGES])}
    spec = tiny_idx.at(server.url)
    with pytest.raises(InputError, match=f"{IMAGES} has the wrong checksum: MD5 .*, expected .*"):
        load_official(spec)
    assert names(cache_folder(spec)) == set()


def test_truncated_gz_that_was_published_so(tiny_idx: Any, server: Any) -> None:
    """The checksum is right, the content is not: it must not stay in the cache either."""
    noise = np.random.default_rng(0).bytes(100_000)
    content = gzip.compress(gzip.decompress(tiny_idx.offered[IMAGES])[:100] + noise)[:60]
    server.files = tiny_idx.offered | {IMAGES: content}
    remotes = tiny_idx.spec.remotes | {IMAGES: hashlib.md5(content).hexdigest()}
    spec = replace(tiny_idx.at(server.url), remotes=remotes)
    with pytest.raises(InputError, match=rf"{IMAGES} is truncated: \d+ bytes found, 256 expected"):
        load_official(spec)
    assert names(cache_folder(spec)) == set()


def test_missing_file(tiny_idx: Any, server: Any) -> None:
    with pytest.raises(InputError, match=f"{IMAGES} answered HTTP 404"):
        load_official(tiny_idx.at(server.url))


def test_no_network(tiny_idx: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        spec = tiny_idx.at(f"http://127.0.0.1:{unused.getsockname()[1]}/")
        with pytest.raises(InputError) as caught:
            load_official(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("tiny-idx could not be fetched (http://127.0.0.1")
    assert "cannot be reached" in message
    assert "--data-folder (in Python: data_folder=)" in message
    assert "pwoa data get tiny-idx" in message


def test_get_repairs_a_damaged_cache(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec = tiny_idx.at(server.url)
    table = {spec.name: spec}
    folder = get(spec.name, table=table)
    (folder / IMAGES).write_bytes(b"damaged")
    with pytest.raises(InputError, match=IMAGES):
        load_official(spec)
    assert get(spec.name, table=table) == folder
    load_official(spec)
    assert len(server.requests) == 5


def test_get_repairs_damaged_files_of_an_archive(tiny_cifar: Any, server: Any) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    folder = get(spec.name, table={spec.name: spec})
    (folder / "test_batch.bin").write_bytes(b"damaged")
    get(spec.name, table={spec.name: spec})
    assert np.array_equal(load_official(spec)[1].pixels, tiny_cifar.test.pixels)
    assert len(server.requests) == 2


def test_a_cache_that_cannot_be_written(tiny_idx: Any, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot write to .*/tiny-idx: Not a directory; free it or"):
        load_official(tiny_idx.spec)


@pytest.mark.parametrize("length", ["many", "-5", "1e9", "٣", "9" * 5_000])
def test_a_length_that_is_no_number_is_one_line(tiny_cifar: Any, server: Any, length: str) -> None:
    server.files, server.length = tiny_cifar.offered, length.encode().decode("latin1")
    with pytest.raises(InputError, match="which is no number") as caught:
        load_official(tiny_cifar.at(server.url))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", ["", "99999999999"])
def test_an_answer_larger_than_the_data_set_is_given_up(tiny_cifar: Any, server: Any, length: str) -> None:
    server.files, server.length = {name: bytes(5 << 20) for name in tiny_cifar.offered}, length
    spec = tiny_cifar.at(server.url)
    with pytest.raises(InputError, match=r"has more than [\d,]+ bytes, which the data set has not"):
        load_official(spec)
    assert names(cache_folder(spec)) == set()
