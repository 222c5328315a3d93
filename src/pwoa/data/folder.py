"""A folder of image files: train/<class>/*.png|jpg and test/<class>/*.png|jpg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pwoa.data.images import Data, Images
from pwoa.data.pillow import pillow_image
from pwoa.errors import InputError, first_line

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")
COLOUR = ("P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")

Listing = list[tuple[Path, int]]


def from_folder(root: Path) -> Data:
    """The data set in a folder; the sorted names of train's class folders are labels 0, 1, …

    All images must have one size; they are grey where all files are, otherwise RGB.
    """
    classes = class_labels(root)
    train, test = list_split(root / "train", classes), list_split(root / "test", classes)
    size, mode = common_form([path for path, _ in train + test])
    return Data(root.resolve().name, _load(train, size, mode), _load(test, size, mode), len(classes))


def class_labels(root: Path) -> dict[str, int]:
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise InputError(
                f"{root} has no folder {split}: an image folder holds train/<class>/ and test/<class>/; "
                f"for the official files of a known data set give its name and folder="
            )
    names = sorted(_folders(root / "train"))
    if not names:
        raise InputError(f"{root / 'train'} has no class folders: put the images in train/<class>/")
    return {name: label for label, name in enumerate(names)}


def list_split(folder: Path, classes: Mapping[str, int]) -> Listing:
    listing: Listing = []
    for name, path in sorted(_folders(folder).items()):
        if name not in classes:
            raise InputError(f"{path} is a class that train does not have: it has {', '.join(classes)}")
        images = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not images:
            raise InputError(f"{path} holds no image: put {', '.join(SUFFIXES)} files there")
        listing += [(image, classes[name]) for image in images]
    if not listing:
        raise InputError(f"{folder} has no class folders: put the images in {folder.name}/<class>/")
    return listing


def _folders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}


def common_form(paths: list[Path]) -> tuple[tuple[int, int], str]:
    """Width and height of all images, and the mode that loses nothing of any of them; reads headers only."""
    size, mode = None, "L"
    for path in paths:
        with _open(path) as image:
            if image.mode not in GREY + COLOUR:
                raise InputError(f"{path} has pixels of mode {image.mode}: convert it to 8-bit grey or RGB")
            if size not in (None, image.size):
                raise InputError(f"{path} has size {image.size}, {paths[0]} has {size}: make all images one size")
            size, mode = image.size, mode if image.mode in GREY else "RGB"
    if size is None:
        raise InputError("no images to read")
    return size, mode


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
    with _open(path) as image:
        try:
            pixels = np.array(image.convert(mode))
        except Exception as error:  # Pillow raises anything on a damaged file
            raise InputError(f"{path} cannot be decoded: {first_line(error)}") from None
    return torch.from_numpy(pixels if mode == "RGB" else pixels[..., None]).permute(2, 0, 1)


def _open(path: Path) -> Any:
    library = pillow_image()
    try:
        return library.open(path)
    except Exception as error:  # Pillow raises anything on a damaged file
        raise InputError(f"{path} is not a readable image: {first_line(error)}") from None
