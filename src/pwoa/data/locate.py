"""Finding the official files of a data set in a folder; they are looked for, not read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pwoa.data.archive import read_members
from pwoa.data.catalog import Dataset, Layout
from pwoa.data.formats import Blob
from pwoa.errors import InputError


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
