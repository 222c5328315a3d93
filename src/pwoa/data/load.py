"""The one function that gives a data set, whatever it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pwoa.data.catalog import DATASETS
from pwoa.data.download import Progress
from pwoa.data.images import Data
from pwoa.data.own import FORM, from_folder, from_pair
from pwoa.data.store import find, load
from pwoa.errors import InputError, first_line

Source = Data | str | Path | tuple[Any, Any]


def load_data(source: Source, *, folder: str | Path | None = None, progress: Progress | None = None) -> Data:
    """A data set, checked and in memory.

    `source` is a known name (see DATASETS), a folder of images train/<class>/ and test/<class>/, a pair
    (train, test) of (images, labels) or torch Datasets, or a Data, which is returned as it is. `folder` is
    where the official files of a named data set lie; without it they come from the cache or are downloaded.
    `progress(file, bytes_done, bytes_total)` is called during a download.
    """
    if isinstance(source, str) and source in DATASETS:
        return load(DATASETS[source], _expanded(folder) if folder is not None else None, progress)
    if folder is not None:
        raise InputError(f"folder={str(folder)!r} goes with the name of a data set: {', '.join(DATASETS)}")
    if isinstance(source, Data):
        return source
    if isinstance(source, (str, Path)):
        return _from_path(_expanded(source))
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return from_pair(*source)
    raise InputError(f"cannot load data from a {type(source).__name__}: give a name, a folder, or a pair; {FORM}")


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except (RuntimeError, TypeError) as error:  # ~ of nobody; no path at all
        raise InputError(f"{str(path)!r} is not the path of a folder: {first_line(error)}") from None


def _from_path(path: Path) -> Data:
    if path.is_dir():
        return from_folder(path)
    if path.exists():
        raise InputError(f"{path} is a file: give a folder with train/<class>/ and test/<class>/ images")
    find(str(path))
    raise InputError(f"{path} is not a folder: to load the data set of that name give it as text")
