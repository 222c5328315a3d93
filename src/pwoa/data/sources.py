"""The data sets known by name, from a given folder, the package itself, the cache or the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from pwoa.data.catalog import DATASETS, Dataset
from pwoa.data.download import Progress
from pwoa.data.fetch import fetch
from pwoa.data.formats import Blob, Shape
from pwoa.data.images import Data
from pwoa.data.locate import Found, cache_folder, locate, locate_given
from pwoa.data.verify import read_verified
from pwoa.errors import InputError
from pwoa.lock import held

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
