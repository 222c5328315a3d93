"""The one function that gives a data set: by its name, from image files, or of tensors, arrays or torch data sets.

A folder of one's own holds image files in train/<class>/ and test/<class>/.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from pwoa.data.catalog import DATASETS
from pwoa.data.download import Progress
from pwoa.data.formats import Split
from pwoa.data.images import Data, Images
from pwoa.data.store import find, load_official
from pwoa.errors import InputError, counted, first_line
from pwoa.storage.reading import open_file

USUAL_CHANNELS = (1, 3, 4)
FORM = "give (train, test), each a pair (images, labels) or a torch Dataset of (image, label)"
IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixel_values"), ("label", "labels")
"""How image and label are called in a sample that is a dict, as Hugging Face's data sets have them."""
READ_TWICE = 8
SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
LARGEST_IMAGE = 1 << 24
"""Pixels; a file of some kilobytes can claim any number."""
GREY = ("1", "L", "LA")
COLOUR = ("P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")

Source = Data | str | Path | tuple[Any, Any]
Listing = list[tuple[Path, int]]


def load_data(source: Source, *, data_folder: str | Path | None = None, progress: Progress | None = None) -> Data:
    """Load a data set, checked and in memory. Example: `load_data("mnist")`.

    source: a known name (see DATASETS), a folder of images train/CLASS/ and test/CLASS/, a pair (train, test) of
    (images, labels) or torch Datasets of (image, label) or {"image": …, "label": …}, or a Data, which is returned as it
    is.
    data_folder: where the official files of a named data set lie; without it they come from the cache or are
    downloaded. progress: called as `progress(file, bytes_done, bytes_total)` during a download.
    """
    if isinstance(source, str) and source in DATASETS:
        spec, folder = DATASETS[source], None if data_folder is None else _expanded(data_folder)
        train, test = load_official(spec, folder, progress)
        return Data(spec.name, _official(train), _official(test), spec.classes)
    if data_folder is not None:
        if isinstance(source, str) and not _expanded(source).exists():
            find(source)
        raise InputError(f"data_folder={str(data_folder)!r} goes with the name of a data set: {', '.join(DATASETS)}")
    if isinstance(source, Data):
        return source
    if isinstance(source, (str, Path)):
        return _from_path(_expanded(source))
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return _from_pair(*source)
    raise InputError(f"cannot load data from a {type(source).__name__}: give a name, a folder, or a pair; {FORM}")


def _official(split: Split) -> Images:
    return Images(torch.from_numpy(split.pixels), torch.from_numpy(split.labels))


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except (RuntimeError, TypeError) as error:  # ~ of nobody; no path at all
        raise InputError(f"{str(path)!r} is not the path of a folder: {first_line(error)}") from None


def _from_pair(train: Any, test: Any) -> Data:
    """Make a data set of two splits, each (images, labels) or a torch Dataset of (image, label)."""
    first, second = _images(train, "train"), _images(test, "test")
    if first.pixels.shape[1:] != second.pixels.shape[1:]:
        raise InputError(
            f"train images have shape {_shape(first.pixels[0])} and test images {_shape(second.pixels[0])}: "
            f"make them the same"
        )
    return Data("custom", first, second, int(max(first.labels.max(), second.labels.max())) + 1)


def _images(part: Any, where: str) -> Images:
    if isinstance(part, Images):
        part = (part.pixels, part.labels)
    elif isinstance(part, TorchDataset) or not isinstance(part, (tuple, list)):
        part = _collect(part, where)
    if len(part) != 2:
        raise InputError(f"{where} has {len(part)} parts: {FORM}")
    pixels = _as_pixels(_tensor(part[0], f"{where} images"), f"{where} images")
    labels = _as_labels(_tensor(part[1], f"{where} labels"), f"{where} labels")
    if len(pixels) != len(labels):
        raise InputError(
            f"{where} has {counted(len(pixels), 'image')} and {counted(len(labels), 'label')}: give one label an image"
        )
    return Images(pixels, labels)


def _collect(dataset: Any, where: str) -> tuple[Tensor, Tensor]:
    """Take every sample of a torch Dataset, once; random transforms in it are thereby frozen, with a warning."""
    iterable = isinstance(dataset, IterableDataset)
    if not iterable and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError(f"{where} is a {type(dataset).__name__}: {FORM}")
    items = dataset if iterable else (dataset[i] for i in range(len(dataset)))
    samples = [_sample(item, f"{where}[{i}]") for i, item in enumerate(items)]
    if not samples:
        raise InputError(f"{where} is empty: give at least one image")
    images = [image for image, _ in samples]
    for i, image in enumerate(images):
        if image.shape != images[0].shape or image.dtype != images[0].dtype:
            raise InputError(
                f"{where}[{i}] is {image.dtype} of shape {_shape(image)}, {where}[0] is {images[0].dtype} "
                f"of shape {_shape(images[0])}: make all images the same"
            )
    if not iterable and _changes(dataset, images):
        warnings.warn(
            f"the images of {where} change from one reading to the next, as by random transforms; they are read once "
            "and stay as they are: leave the transforms out, and set data.augment to crop-flip",
            stacklevel=5,  # the line that called load_data
        )
    return torch.stack(images), torch.stack([label.reshape(()) for _, label in samples])


def _changes(dataset: Any, images: Sequence[Tensor]) -> bool:
    """Tell whether some images differ when they are read again; torch's random numbers go on as if they were not."""
    positions = range(0, len(images), -(-len(images) // READ_TWICE))
    with torch.random.fork_rng(devices=[]):
        again = [_sample(dataset[position], f"item {position}").image for position in positions]
    return any(not torch.equal(image, images[position]) for image, position in zip(again, positions, strict=True))


class _Sample(NamedTuple):
    image: Tensor
    label: Tensor


def _sample(sample: Any, where: str) -> _Sample:
    if isinstance(sample, Mapping):
        keys = [next((key for key in names if key in sample), None) for names in (IMAGE_KEYS, LABEL_KEYS)]
        if None in keys:
            names = ", ".join(map(str, sample))
            raise InputError(f"{where} is a dict of {names}: a data set must give image and label")
        sample = tuple(sample[key] for key in keys)
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise InputError(f"{where} is not a pair: a data set must give (image, label), or a dict of image and label")
    image, label = sample
    if not isinstance(image, (Tensor, np.ndarray)):
        if not hasattr(image, "__array_interface__"):  # which a PIL image has: Pillow need not be imported
            raise InputError(f"{where} has an image of type {type(image).__name__}: give a tensor, array or PIL image")
        image = np.asarray(image)
        image = image.transpose(2, 0, 1) if image.ndim == 3 else image[None]
    label = _tensor(label if isinstance(label, Tensor) else np.asarray(label), f"{where} label")
    if label.numel() != 1:
        raise InputError(f"{where} has a label of shape {_shape(label)}: give one class number")
    return _Sample(_tensor(image, f"{where} image"), label)


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not a tensor or an array of numbers ({error})") from None


def _as_pixels(pixels: Tensor, where: str) -> Tensor:
    """Return checked pixels [N, C, H, W], uint8 or float32 in [0, 1]."""
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4:
        raise InputError(f"{where} have shape {_shape(pixels)}: give [N, C, H, W] or [N, H, W]")
    if not pixels.numel():
        raise InputError(f"{where} are empty, of shape {_shape(pixels)}: give at least one image")
    if pixels.shape[1] not in USUAL_CHANNELS and pixels.shape[3] in USUAL_CHANNELS:
        raise InputError(f"{where} have shape {_shape(pixels)}, which looks like [N, H, W, C]: put the channels second")
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point():
        raise InputError(f"{where} are {pixels.dtype}: give uint8, or floats in [0, 1]")
    pixels = pixels.to(torch.float32)
    low, high = float(pixels.min()), float(pixels.max())  # both are nan where any pixel is
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{where} run from {low:g} to {high:g}, not within [0, 1]: divide them by 255, or where they are "
            f"normalised move the normalisation into the model"
        )
    return pixels


def _as_labels(labels: Tensor, where: str) -> Tensor:
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"{where} have shape {_shape(labels)}: give one class number an image, [N]")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{where} are {labels.dtype}: give integers from 0 to classes − 1")
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise InputError(f"{where} go down to {int(labels.min())}: give integers from 0 to classes − 1")
    return labels


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _from_path(root: Path) -> Data:
    """Read the data set in a folder; the sorted names of train's class folders are labels 0, 1, …

    All images must have one size; they are grey where all files are, otherwise RGB.
    """
    if not root.exists():
        find(str(root))  # refuses what is no name either
        raise InputError(f"{root} is not a folder: to load the data set of that name give it as text")
    if not root.is_dir():
        raise InputError(f"{root} is a file: give a folder with train/<class>/ and test/<class>/ images")
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise InputError(
                f"{root} has no folder {split}: an image folder holds train/<class>/ and test/<class>/; "
                f"for the official files of a known data set give its name and data_folder="
            )
    classes = {folder.name: label for label, folder in enumerate(_class_folders(root / "train"))}
    train, test = _list_split(root / "train", classes), _list_split(root / "test", classes)
    size, mode = _common_form([path for path, _ in train + test])
    return Data(root.resolve().name, _load(train, size, mode), _load(test, size, mode), len(classes))


def _class_folders(split: Path) -> list[Path]:
    folders = [path for path in split.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise InputError(f"{split} has no class folders: put the images in {split.name}/<class>/")
    return sorted(folders, key=lambda folder: folder.name)


def _list_split(split: Path, classes: Mapping[str, int]) -> Listing:
    listing: Listing = []
    for folder in _class_folders(split):
        if folder.name not in classes:
            raise InputError(f"{folder} is a class that train does not have: it has {', '.join(classes)}")
        images = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        if not images:
            raise InputError(f"{folder} holds no image: put {', '.join(SUFFIXES)} files there")
        listing += [(image, classes[folder.name]) for image in images]
    return listing


def _common_form(paths: list[Path]) -> tuple[tuple[int, int], str]:
    """Return the width and height of all images, and the mode that loses nothing; only headers are read."""
    sizes, mode = [], "L"
    for path in paths:
        with _opened(path) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise InputError(f"{path} has size {image.size}: make it of at most {LARGEST_IMAGE:,} pixels")
            if image.mode not in GREY + COLOUR:
                raise InputError(f"{path} has pixels of mode {image.mode}: convert it to 8-bit grey or RGB")
            sizes.append(image.size)
            if sizes[0] != image.size:
                raise InputError(f"{path} has size {image.size}, {paths[0]} has {sizes[0]}: make all images one size")
            mode = mode if image.mode in GREY else "RGB"
    return sizes[0], mode


def _load(listing: Listing, size: tuple[int, int], mode: str) -> Images:
    # Mixed, the same way each time: the first so many images are then a fair sample of all classes.
    order = torch.randperm(len(listing), generator=torch.Generator().manual_seed(0)).tolist()
    listing = [listing[position] for position in order]
    width, height = size
    pixels = torch.empty(len(listing), len(mode), height, width, dtype=torch.uint8)
    for i, (path, _) in enumerate(listing):
        pixels[i] = _decode(path, mode)
    return Images(pixels, torch.tensor([label for _, label in listing]))


def _decode(path: Path, mode: str) -> Tensor:
    with _opened(path) as image:
        try:
            pixels = np.array(image.convert(mode))
        except Exception as error:  # Pillow raises anything on a damaged file
            raise InputError(f"{path} cannot be decoded: {first_line(error)}") from None
    return torch.from_numpy(pixels if mode == "RGB" else pixels[..., None]).permute(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image by its content, which must be one of the formats that have the suffixes, whatever its name says."""
    try:
        from PIL import Image
    except ImportError:
        message = "reading image files needs Pillow, which is not installed: run pip install 'pwoa[images]'"
        raise InputError(message) from None
    with open_file(path) as file:
        try:
            with warnings.catch_warnings(action="ignore"):  # of a size that is refused next
                image = Image.open(file, formats=FORMATS)
        except Exception as error:  # Pillow raises anything on a damaged file
            reason = "no PNG or JPEG" if type(error).__name__ == "UnidentifiedImageError" else first_line(error)
            raise InputError(f"{path} is not a readable image: {reason}") from None
        with image:
            yield image
