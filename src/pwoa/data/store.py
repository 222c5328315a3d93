"""The official files of the data sets known by name: found in a folder, the cache or the network, and verified.

Nothing here needs torch: what is read are arrays.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

import numpy as np

from pwoa.data.catalog import DATASETS, Dataset, Layout
from pwoa.data.download import Progress, download
from pwoa.data.formats import LARGEST, Blob, Shape, Split, decompress, read_members
from pwoa.errors import InputError
from pwoa.storage.folder import held, replacing
from pwoa.storage.reading import read_bytes

EMBEDDED = files("pwoa.data") / "embedded"

Splits = tuple[Split, Split]
"""Train and test."""


@dataclass(frozen=True)
class Location:
    """Where the files of a data set are: each by its official name, or `where` is an archive of all of them."""

    layout: Layout
    where: Path
    paths: Mapping[str, Path]

    def blobs(self) -> dict[str, Blob]:
        """Read the files, by official name."""
        if not self.paths:
            return read_members(self.where, self.layout.folder, self.layout.files)
        return {name: Blob(str(path), read_bytes(path, LARGEST)) for name, path in self.paths.items()}


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


def find(name: str, table: Mapping[str, Dataset] = DATASETS) -> Dataset:
    """Return the data set of that name, or refuse with the nearest one and the list."""
    if name in table:
        return table[name]
    near = get_close_matches(name.lower(), table, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"there is no data set and no folder {name!r}: {hint}known are {', '.join(table)}, "
        f"or give a folder with train/<class>/ and test/<class>/ images"
    )


def status(table: Mapping[str, Dataset] = DATASETS) -> list[Status]:
    """Return what each data set is and whether it is here; files are looked for, not read."""
    return [
        Status(spec.name, spec.shape, *spec.sizes, spec.classes, spec.embedded, _where(spec)) for spec in table.values()
    ]


def _where(spec: Dataset) -> Path | None:
    if spec.embedded:
        return Path(str(EMBEDDED))
    location = locate(spec, cache_folder(spec))
    return location.where if location else None


def get(name: str, progress: Progress | None = None, table: Mapping[str, Dataset] = DATASETS) -> Path:
    """Have a data set in the cache, verified, and return its folder; what is damaged is fetched again."""
    spec = find(name, table)
    if spec.embedded:
        return Path(str(EMBEDDED))
    if _read_sound(spec) is None:
        _fetch(spec, progress)
    return cache_folder(spec)


def load_official(spec: Dataset, data_folder: Path | None = None, progress: Progress | None = None) -> Splits:
    """Read and verify a data set; from `data_folder` and nowhere else where one is given."""
    if spec.embedded:
        if data_folder is not None:
            raise InputError(f"{spec.name} comes with pwoa: leave out the folder {data_folder}")
        (layout,) = spec.layouts
        blobs = {name: Blob(name, (EMBEDDED / f"{name}.xz").read_bytes()) for name in layout.files}
        return _read_verified(spec, layout, blobs, spec.name)
    if data_folder is not None:
        return _read(spec, _locate_given(spec, data_folder))
    location = locate(spec, cache_folder(spec))
    return _read(spec, location) if location else _fetch(spec, progress)


def cache_root() -> Path:
    """Return $PWOA_CACHE, else $XDG_CACHE_HOME/pwoa, else ~/.cache/pwoa."""
    given, system = os.environ.get("PWOA_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(given) if given else Path(system or "~/.cache") / "pwoa"
    return root.expanduser()


def cache_folder(spec: Dataset) -> Path:
    """Return the data set's folder in the cache."""
    return cache_root() / spec.name


def locate(spec: Dataset, folder: Path) -> Location | None:
    """Return the first complete form of the data set in the folder."""
    return next(_forms(spec, folder), None)


def _forms(spec: Dataset, folder: Path) -> Iterator[Location]:
    for layout in spec.layouts:
        for place in (folder, folder / layout.folder, folder / spec.name):
            paths = _present(layout, place)
            if len(paths) == len(layout.files):
                yield Location(layout, place, paths)
    for layout in spec.layouts:
        if layout.archive and (folder / layout.archive).is_file():
            yield Location(layout, folder / layout.archive, {})


def _present(layout: Layout, place: Path) -> dict[str, Path]:
    """Return those files of a layout that lie in one folder, by official name."""
    return {
        name: path
        for name in layout.files
        for suffix in reversed(layout.suffixes)
        if (path := place / f"{name}{suffix}").is_file()
    }


def _locate_given(spec: Dataset, folder: Path) -> Location:
    """Return the data set in a folder the user named, or refuse with what is missing there."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the one that holds the files of {spec.name}")
    if location := locate(spec, folder):
        return location
    layout = max(spec.layouts, key=lambda layout: len(_present(layout, folder)))
    present = _present(layout, folder)
    missing = ", ".join(name for name in layout.files if name not in present)
    raise InputError(
        f"{folder} does not hold {spec.name}: found no {missing} there or in its subfolder {layout.folder}; "
        f"leave out --data-folder (in Python: data_folder=) to use the cache or a download"
    )


def _read(spec: Dataset, location: Location) -> Splits:
    return _read_verified(spec, location.layout, location.blobs(), str(location.where))


def _read_sound(spec: Dataset) -> Splits | None:
    """Read a data set from the cache; None if it is not there, or damaged."""
    location = locate(spec, cache_folder(spec))
    try:
        return _read(spec, location) if location else None
    except InputError:
        return None


def _read_verified(spec: Dataset, layout: Layout, blobs: Mapping[str, Blob], where: str) -> Splits:
    """Read a data set from the files of a layout, given by official name; `where` is for messages."""
    train, test = (
        layout.read([blobs[name] for name in names], spec.shape, count)
        for names, count in zip((layout.train, layout.test), spec.sizes, strict=True)
    )
    for index, split in enumerate((train, test)):
        check_labels(spec, split, where)
        _check_digest(spec, index, split, where)
    _check_contents(spec, blobs)
    return train, test


def digest(split: Split) -> str:
    """Return the SHA-256 of the pixels, then the labels, one byte each."""
    content = hashlib.sha256(np.ascontiguousarray(split.pixels).data)
    content.update(split.labels.astype(np.uint8).data)
    return content.hexdigest()


def check_labels(spec: Dataset, split: Split, where: str) -> None:
    """Refuse labels that are not of a class of the data set."""
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= spec.classes:
        raise InputError(f"{where} has labels from {low} to {high}; {spec.name} has 0 to {spec.classes - 1}")


def _check_digest(spec: Dataset, index: int, split: Split, where: str) -> None:
    sha256, which = digest(split), ("train", "test")[index]
    for other in DATASETS.values():
        if other.digests and other.name != spec.name and other.digests[index] == sha256:
            raise InputError(f"{where} holds {other.name}, not {spec.name}: load it as {other.name!r}")
    if spec.digests and spec.digests[index] != sha256:
        raise InputError(
            f"{where} is not {spec.name} as published: the {which} split has SHA-256 {sha256}, "
            f"expected {spec.digests[index]}; fetch it again with `pwoa data get {spec.name}`"
        )


def _check_contents(spec: Dataset, blobs: Mapping[str, Blob]) -> None:
    """Refuse files whose content, decompressed, is not the published one."""
    for name, expected in spec.contents.items():
        md5 = hashlib.md5(decompress(blobs[name], LARGEST).content, usedforsecurity=False).hexdigest()
        if md5 != expected:
            raise InputError(
                f"{blobs[name].name} has another content than was published: MD5 {md5}, expected {expected}; "
                f"fetch it again with `pwoa data get {spec.name}`"
            )


def _fetch(spec: Dataset, progress: Progress | None) -> Splits:
    """Fetch a data set; another process that asks for it meanwhile waits, and finds it there."""
    with held(cache_folder(spec), wait=True):
        if splits := _read_sound(spec):
            return splits
        try:
            return _download(spec, progress)
        except (InputError, OSError) as error:
            raise InputError(
                f"{spec.name} could not be fetched ({error}): put its official files in a folder and give it as "
                f"--data-folder (in Python: data_folder=), or run `pwoa data get {spec.name}` where there is a network"
            ) from None


def _download(spec: Dataset, progress: Progress | None) -> Splits:
    """Download a data set from its official address into the cache."""
    folder = cache_folder(spec)
    folder.mkdir(parents=True, exist_ok=True)
    for layout in spec.layouts:
        for path in _present(layout, folder).values():
            if path.name not in spec.remotes:  # those `download` checks itself
                path.unlink()  # incomplete or damaged, or nothing would be fetched
    limit = sum(spec.sizes) * (math.prod(spec.shape) + 2) + (1 << 20)  # of all images and labels, not even compressed
    for name, md5 in spec.remotes.items():
        download(spec.url + name, folder / name, md5, limit, progress)
    try:
        location = locate(spec, folder)
        if location is None:
            raise InputError(f"{spec.url} does not offer all the files of {spec.name}")
        blobs = location.blobs()
        splits = _read_verified(spec, location.layout, blobs, str(location.where))
    except InputError:
        for name in spec.remotes:
            (folder / name).unlink()
        raise
    if not location.paths:  # of an archive the files are kept, which are faster to read
        for name, blob in blobs.items():
            with replacing(folder / name) as file:
                file.write(blob.content)
        location.where.unlink()
    return splits
