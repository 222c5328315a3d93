"""The one function that gives a data set, whatever it is given."""

from pathlib import Path
from typing import Any

import torch

from pwoa.data.catalog import DATASETS
from pwoa.data.download import Progress
from pwoa.data.formats import Split
from pwoa.data.images import Data, Images
from pwoa.data.own import FORM, from_folder, from_pair
from pwoa.data.store import find, load_official
from pwoa.errors import InputError, first_line

Source = Data | str | Path | tuple[Any, Any]


def load_data(source: Source, *, data_folder: str | Path | None = None, progress: Progress | None = None) -> Data:
    """Load a data set, checked and in memory. Example: `load_data("mnist")`.

    source: a known name (see DATASETS), a folder of images train/<class>/ and test/<class>/, a pair (train, test) of
    (images, labels) or torch Datasets, or a Data, which is returned as it is.
    data_folder: where the official files of a named data set lie; without it they come from the cache or are
    downloaded. progress: called as `progress(file, bytes_done, bytes_total)` during a download.
    """
    if isinstance(source, str) and source in DATASETS:
        spec, folder = DATASETS[source], None if data_folder is None else _expanded(data_folder)
        train, test = load_official(spec, folder, progress)
        return Data(spec.name, _images(train), _images(test), spec.classes)
    if data_folder is not None:
        raise InputError(f"data_folder={str(data_folder)!r} goes with the name of a data set: {', '.join(DATASETS)}")
    if isinstance(source, Data):
        return source
    if isinstance(source, (str, Path)):
        return _from_path(_expanded(source))
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return from_pair(*source)
    raise InputError(f"cannot load data from a {type(source).__name__}: give a name, a folder, or a pair; {FORM}")


def _images(split: Split) -> Images:
    return Images(torch.from_numpy(split.pixels), torch.from_numpy(split.labels))


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
