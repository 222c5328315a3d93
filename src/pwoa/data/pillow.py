"""Pillow, imported only when an image file has to be decoded."""

from __future__ import annotations

from types import ModuleType

from pwoa.errors import InputError


def pillow_image() -> ModuleType:
    """The module PIL.Image."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(
            "reading image files needs Pillow, which is not installed: run pip install 'pwoa[images]'"
        ) from None
    return Image
