"""The data sets known by name: found in a folder, the package, the cache or the network, and verified before use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from pwoa.data.catalog import DATASETS, Dataset, Layout
from pwoa.data.download import Progress, download
from pwoa.data.formats import Blob, Shape, Split, read_members
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.storage import held


@dataclass(frozen=True)
class Found:
    """The files of a data set: each by its official name, or `where` is an archive of all of them."""

    layout: Layout
    where: Path
    paths: Mapping[str, Path]

    @property
    def is_archive(self) -> bool:
        return not self.paths

    def blobs(self) -> dict[str, Blob]:
        if self.is_archive:
            return read_members(self.where, self.layout.folder, self.layout.files)
        return {name: Blob(str(path), path.read_bytes()) for name, path in self.paths.items()}


def cache_folder(spec: Dataset) -> Path:
    """$PWOA_CACHE, else $XDG_CACHE_HOME/pwoa, else ~/.cache/pwoa; in it a folder for each data set."""
    given, system = os.environ.get("PWOA_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(given) if given else Path(system or "~/.cache") / "pwoa"
    return root.expanduser() / spec.name


def locate(spec: Dataset, folder: Path) -> Found | None:
    """The first complete form of the data set in the folder."""
    return next(_forms(spec, folder), None)


def locate_given(spec: Dataset, folder: Path) -> Found:
    """The data set in a folder the user named, or an error that says what is missing there."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the one that holds the files of {spec.name}")
    found = locate(spec, folder)
    if found:
        return found
    layout = max(spec.layouts, key=lambda layout: len(present(layout, folder)))
    missing = ", ".join(name for name in layout.files if name not in present(layout, folder))
    raise InputError(
        f"{folder} does not hold {spec.name}: found no {missing} there or in its subfolder {layout.folder}; "
        f"leave the folder out to use the cache or a download"
    )


def present(layout: Layout, place: Path) -> dict[str, Path]:
    """Those files of a layout that lie in one folder, by official name."""
    return {
        name: path
        for name in layout.files
        for suffix in reversed(layout.suffixes)
        if (path := place / f"{name}{suffix}").is_file()
    }


def _forms(spec: Dataset, folder: Path) -> Iterator[Found]:
    for layout in spec.layouts:
        for place in (folder, folder / layout.folder, folder / spec.name):
            paths = present(layout, place)
            if len(paths) == len(layout.files):
                yield Found(layout, place, paths)
    for layout in spec.layouts:
        if layout.archive and (folder / layout.archive).is_file():
            yield Found(layout, folder / layout.archive, {})


def read_verified(spec: Dataset, layout: Layout, blobs: Mapping[str, Blob], where: str) -> Data:
    """The data set out of the files of a layout, given by official name; `where` is for messages."""
    if spec.digests is None:
        check_remote_md5(spec, blobs)
    train, test = (
        layout.read([blobs[name] for name in names], spec.shape, count)
        for names, count in zip((layout.train, layout.test), spec.sizes, strict=True)
    )
    for index, split in enumerate((train, test)):
        check_labels(spec, split, where)
        check_digest(spec, index, split, where)
    return Data(spec.name, _images(train), _images(test), spec.classes)


def digest(split: Split) -> str:
    """SHA-256 of the pixels, then the labels, one byte each."""
    content = hashlib.sha256(np.ascontiguousarray(split.pixels).data)
    content.update(split.labels.astype(np.uint8).data)
    return content.hexdigest()


def check_labels(spec: Dataset, split: Split, where: str) -> None:
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= spec.classes:
        raise InputError(f"{where} has labels from {low} to {high}; {spec.name} has 0 to {spec.classes - 1}")


def check_digest(spec: Dataset, index: int, split: Split, where: str) -> None:
    found, which = digest(split), ("train", "test")[index]
    for other in DATASETS.values():
        if other.digests and other.name != spec.name and other.digests[index] == found:
            raise InputError(f"{where} holds {other.name}, not {spec.name}: load it as {other.name!r}")
    if spec.digests and spec.digests[index] != found:
        raise InputError(
            f"{where} is not {spec.name} as published: the {which} split has SHA-256 {found}, "
            f"expected {spec.digests[index]}; fetch it again with `pwoa data get {spec.name}`"
        )


def check_remote_md5(spec: Dataset, blobs: Mapping[str, Blob]) -> None:
    """Files that bear the name of a published one must be that one."""
    expected = {remote.name: remote.md5 for remote in spec.remotes}
    for blob in blobs.values():
        md5 = expected.get(Path(blob.name).name)
        found = hashlib.md5(blob.content, usedforsecurity=False).hexdigest()
        if md5 not in (None, found):
            raise InputError(
                f"{blob.name} has the wrong checksum: MD5 {found}, expected {md5}; "
                f"fetch it again with `pwoa data get {spec.name}`"
            )


def _images(split: Split) -> Images:
    return Images(torch.from_numpy(split.pixels), torch.from_numpy(split.labels))


def fetch(spec: Dataset, progress: Progress | None = None) -> Data:
    """Download a data set from its official address into the cache."""
    try:
        return _download(spec, progress)
    except (InputError, OSError) as error:
        raise InputError(
            f"{spec.name} could not be fetched ({error}): put its official files in a folder and give it as "
            f"--data-folder (in Python: data_folder=), or run `pwoa data get {spec.name}` where there is a network"
        ) from None


def _download(spec: Dataset, progress: Progress | None) -> Data:
    folder = cache_folder(spec)
    folder.mkdir(parents=True, exist_ok=True)
    _discard_damaged(spec, folder)
    targets = [folder / remote.name for remote in spec.remotes]
    for remote, target in zip(spec.remotes, targets, strict=True):
        download(spec.url + remote.name, target, remote.md5, progress)
    try:
        return _accept(spec, folder)
    except InputError:
        for target in targets:
            target.unlink()
        raise


def _discard_damaged(spec: Dataset, folder: Path) -> None:
    """Remove what is incomplete or damaged, or it would not be fetched; `download` checks its own files."""
    own = {remote.name for remote in spec.remotes}
    for layout in spec.layouts:
        for path in present(layout, folder).values():
            if path.name not in own:
                path.unlink()


def _accept(spec: Dataset, folder: Path) -> Data:
    """Read what was downloaded; of an archive keep the files, which are faster to read."""
    found = locate(spec, folder)
    if found is None:
        raise InputError(f"{spec.url} does not offer all the files of {spec.name}")
    blobs = found.blobs()
    data = read_verified(spec, found.layout, blobs, str(found.where))
    if found.is_archive:
        _store(folder, blobs)
        found.where.unlink()
    return data


def _store(folder: Path, blobs: Mapping[str, Blob]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in blobs.items():
        temporary = folder / f"{name}.{os.getpid()}.part"
        try:
            temporary.write_bytes(blob.content)
            os.replace(temporary, folder / name)
        finally:
            temporary.unlink(missing_ok=True)


EMBEDDED = files("pwoa.data") / "embedded"


@dataclass(frozen=True)
class Status:
    """A line of `pwoa data list`; `where` is None for what would have to be downloaded."""

    name: str
    shape: Shape
    train: int
    test: int
    classes: int
    embedded: bool
    where: Path | None


def load(spec: Dataset, folder: Path | None = None, progress: Progress | None = None) -> Data:
    """The verified data set; from `folder` and nowhere else where one is given."""
    if spec.embedded:
        return _load_embedded(spec, folder)
    if folder is not None:
        return _read(spec, locate_given(spec, folder))
    found = locate(spec, cache_folder(spec))
    return _read(spec, found) if found else _fetched(spec, progress)


def get(name: str, progress: Progress | None = None, table: Mapping[str, Dataset] = DATASETS) -> Path:
    """Have a data set in the cache, verified, and give its folder; what is damaged is fetched anew."""
    spec = find(name, table)
    if spec.embedded:
        return Path(str(EMBEDDED))
    found = locate(spec, cache_folder(spec))
    if found is None or not _is_sound(spec, found):
        _fetched(spec, progress)
    return cache_folder(spec)


def status(table: Mapping[str, Dataset] = DATASETS) -> list[Status]:
    """What each data set is and whether it is here; files are looked for, not read."""
    return [
        Status(spec.name, spec.shape, *spec.sizes, spec.classes, spec.embedded, _where(spec)) for spec in table.values()
    ]


def find(name: str, table: Mapping[str, Dataset] = DATASETS) -> Dataset:
    """The data set of that name, or an error with the nearest one and the list."""
    if name in table:
        return table[name]
    near = get_close_matches(name.lower(), table, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"there is no data set and no folder {name!r}: {hint}known are {', '.join(table)}, "
        f"or give a folder with train/<class>/ and test/<class>/ images"
    )


def _fetched(spec: Dataset, progress: Progress | None) -> Data:
    """Fetched by one process; another one that asks meanwhile waits, and finds it there."""
    folder = cache_folder(spec)
    with held(folder, wait=True):
        found = locate(spec, folder)
        return _read(spec, found) if found and _is_sound(spec, found) else fetch(spec, progress)


def _where(spec: Dataset) -> Path | None:
    if spec.embedded:
        return Path(str(EMBEDDED))
    found = locate(spec, cache_folder(spec))
    return found.where if found else None


def _load_embedded(spec: Dataset, folder: Path | None) -> Data:
    if folder is not None:
        raise InputError(f"{spec.name} comes with pwoa: leave out the folder {folder}")
    (layout,) = spec.layouts
    blobs = {name: Blob(name, (EMBEDDED / f"{name}.xz").read_bytes()) for name in layout.files}
    return read_verified(spec, layout, blobs, spec.name)


def _read(spec: Dataset, found: Found) -> Data:
    return read_verified(spec, found.layout, found.blobs(), str(found.where))


def _is_sound(spec: Dataset, found: Found) -> bool:
    try:
        _read(spec, found)
    except InputError:
        return False
    return True
