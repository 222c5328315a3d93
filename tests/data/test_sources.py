"""Which files are found where, and that nothing unverified is used."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pwoa.data.catalog import DATASETS
from pwoa.data.load import load_data
from pwoa.data.store import Splits, cache_folder, check_labels, find, get, load_official, status
from pwoa.errors import InputError

Write = Callable[[Path, Mapping[str, bytes]], Path]


def plain(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}


def assert_is(splits: Splits, tiny: Any) -> None:
    for split, expected in zip(splits, (tiny.train, tiny.test), strict=True):
        assert np.array_equal(split.pixels, expected.pixels)
        assert np.array_equal(split.labels, expected.labels)


@pytest.mark.parametrize("subfolder", ["", "MNIST/raw", "tiny-idx"])
@pytest.mark.parametrize("form", ["gz", "plain", "xz", "misnamed"])
def test_idx_files_in_a_given_folder(
    tiny_idx: Any, tmp_path: Path, write_files: Write, subfolder: str, form: str
) -> None:
    content = plain(tiny_idx.offered)
    files = {
        "gz": tiny_idx.offered,
        "plain": content,
        "xz": {f"{name}.xz": lzma.compress(c) for name, c in content.items()},
        "misnamed": {f"{name}.gz": c for name, c in content.items()},  # a browser may have unpacked them
    }[form]
    write_files(tmp_path / "given" / subfolder, files)
    assert_is(load_official(tiny_idx.spec, tmp_path / "given"), tiny_idx)


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("container", ["files", "subfolder", "archive"])
def test_cifar_in_a_given_folder(
    tiny_cifar: Any, tmp_path: Path, write_files: Write, cifar: Any, form: str, container: str
) -> None:
    files, subfolder, archive = cifar(form, tiny_cifar)
    content = {archive[0]: archive[1]} if container == "archive" else files
    write_files(tmp_path / "given" / (subfolder if container == "subfolder" else ""), content)
    assert_is(load_official(tiny_cifar.spec, tmp_path / "given"), tiny_cifar)


def test_a_given_folder_is_the_only_place(tiny_idx: Any, tmp_path: Path, write_files: Write) -> None:
    write_files(cache_folder(tiny_idx.spec), tiny_idx.offered)
    given = write_files(tmp_path / "given", dict(list(tiny_idx.offered.items())[:3]))
    with pytest.raises(InputError, match=r"given does not hold tiny-idx: found no t10k-labels-idx1-ubyte there"):
        load_official(tiny_idx.spec, given)
    with pytest.raises(InputError, match="nowhere is not a folder"):
        load_official(tiny_idx.spec, tmp_path / "nowhere")


def test_the_cache_comes_before_the_network(tiny_idx: Any, write_files: Write) -> None:
    write_files(cache_folder(tiny_idx.spec), tiny_idx.offered)
    assert_is(load_official(tiny_idx.spec), tiny_idx)


def test_where_the_cache_is(tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWOA_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache_folder(tiny_idx.spec) == tmp_path / "a" / "tiny-idx"
    monkeypatch.delenv("PWOA_CACHE")
    assert cache_folder(tiny_idx.spec) == tmp_path / "b" / "pwoa" / "tiny-idx"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(tiny_idx.spec) == tmp_path / "c" / ".cache" / "pwoa" / "tiny-idx"


@pytest.mark.parametrize(("file", "split"), [("train-images", "train"), ("t10k-labels", "test")])
def test_one_changed_byte_is_noticed(tiny_idx: Any, tmp_path: Path, write_files: Write, file: str, split: str) -> None:
    files = plain(tiny_idx.offered)
    name = next(name for name in files if name.startswith(file))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    write_files(tmp_path / "given", files)
    with pytest.raises(InputError, match=f"given is not tiny-idx as published: the {split} split has SHA-256"):
        load_official(tiny_idx.spec, tmp_path / "given")


def test_labels_outside_the_classes(tiny_idx: Any, tmp_path: Path, write_files: Write) -> None:
    write_files(tmp_path / "given", tiny_idx.offered)
    with pytest.raises(InputError, match="has labels from 1 to 9; tiny-idx has 0 to 8"):
        load_official(replace(tiny_idx.spec, classes=9), tmp_path / "given")
    negative = tiny_idx.train._replace(labels=tiny_idx.train.labels - 9)
    with pytest.raises(InputError, match="here has labels from -"):
        check_labels(tiny_idx.spec, negative, "here")


def test_without_digests_it_is_the_content_that_must_be_the_published_one(
    tiny_idx: Any, tmp_path: Path, write_files: Write
) -> None:
    spec = replace(tiny_idx.spec, digests=None)
    for level in (0, 9):
        again = {name: gzip.compress(gzip.decompress(file), level) for name, file in tiny_idx.offered.items()}
        assert again.keys() == spec.remotes.keys()
        assert_is(load_official(spec, write_files(tmp_path / f"level{level}", again)), tiny_idx)
    files = plain(tiny_idx.offered)
    assert_is(load_official(spec, write_files(tmp_path / "plain", files)), tiny_idx)
    name = "t10k-images-idx3-ubyte"
    changed = files[name][:-1] + bytes([files[name][-1] ^ 1])
    for given in ({name: changed}, {f"{name}.gz": gzip.compress(changed)}):
        write_files(tmp_path / "plain", given)
        with pytest.raises(InputError, match=f"{name}.* has another content than was published: MD5 .*pwoa data get"):
            load_official(spec, tmp_path / "plain")


def test_files_without_digests_say_what_is_inside_them() -> None:
    for spec in DATASETS.values():
        files = () if spec.digests else spec.layouts[0].files
        assert tuple(spec.contents) == files


def test_of_two_forms_the_compressed_one_is_read(tiny_idx: Any, tmp_path: Path, write_files: Write) -> None:
    damaged = {name: content[:-1] + b"!" for name, content in plain(tiny_idx.offered).items()}
    write_files(tmp_path / "given", tiny_idx.offered | damaged)
    assert_is(load_official(replace(tiny_idx.spec, digests=None), tmp_path / "given"), tiny_idx)


def test_files_of_another_known_data_set_are_named(
    tiny_idx: Any, tmp_path: Path, write_files: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "tiny-idx", tiny_idx.spec)
    write_files(tmp_path / "given", plain(tiny_idx.offered))
    with pytest.raises(InputError, match="given holds tiny-idx, not sibling"):
        load_official(replace(tiny_idx.spec, name="sibling", digests=None), tmp_path / "given")


@pytest.mark.parametrize("content", [b"<html>sign in</html>", b"\x1f\x8bnot an archive"])
def test_what_is_not_an_archive(tiny_cifar: Any, tmp_path: Path, write_files: Write, content: bytes) -> None:
    write_files(tmp_path / "given", {"cifar-10-python.tar.gz": content})
    with pytest.raises(InputError, match=r"cifar-10-python.tar.gz is (a web page|truncated or damaged)"):
        load_official(tiny_cifar.spec, tmp_path / "given")


def test_truncated_archive(tiny_cifar: Any, tmp_path: Path, write_files: Write) -> None:
    (archive,) = tiny_cifar.offered.values()
    write_files(tmp_path / "given", {"cifar-10-binary.tar.gz": archive[:-4000]})
    with pytest.raises(InputError, match=rf"truncated or damaged: {len(archive) - 4000} bytes found"):
        load_official(tiny_cifar.spec, tmp_path / "given")


def test_archive_without_the_files(tiny_cifar: Any, tmp_path: Path, write_files: Write, cifar: Any) -> None:
    _, _, (_, python_archive) = cifar("python", tiny_cifar)
    write_files(tmp_path / "given", {"cifar-10-binary.tar.gz": python_archive})
    with pytest.raises(InputError, match=r"does not hold cifar-10-batches-bin/data_batch_1\.bin"):
        load_official(tiny_cifar.spec, tmp_path / "given")


def test_status_says_what_is_here(tiny_idx: Any, write_files: Write) -> None:
    table = {"tiny-idx": tiny_idx.spec, "mnist-mini": DATASETS["mnist-mini"]}
    here, mini = status(table)
    assert (here.name, here.shape, here.train, here.test, here.classes) == ("tiny-idx", (1, 5, 4), 12, 6, 10)
    assert here.where is None
    assert not here.embedded
    assert mini.embedded
    assert mini.where is not None
    folder = write_files(cache_folder(tiny_idx.spec), tiny_idx.offered)
    assert status(table)[0].where == folder


def test_embedded_data_needs_no_folder(tmp_path: Path) -> None:
    assert get("mnist-mini").is_dir()
    with pytest.raises(InputError, match="mnist-mini comes with pwoa"):
        load_data("mnist-mini", data_folder=tmp_path)


@pytest.mark.parametrize(("name", "near"), [("cifar-10", "cifar10"), ("MNIST", "mnist"), ("fashion", "fashion-mnist")])
def test_unknown_name_gives_the_nearest_and_the_list(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"{name}.*did you mean '{near}'.*mnist, fashion-mnist, cifar10, cifar100"):
        load_data(name)
    with pytest.raises(InputError, match="known are"):
        find("imagenet-21k-of-mine")
