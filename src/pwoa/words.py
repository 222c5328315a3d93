"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """So many of a thing: 1 image, 2 images, 1,000 images; `many` is for words that do not just take an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
