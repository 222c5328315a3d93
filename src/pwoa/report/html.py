"""Pieces of HTML that cannot be broken out of: whatever is not `Markup` is escaped."""

from __future__ import annotations

import base64
import html
import re
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pwoa.errors import printable

_EMPTY = {"br", "circle", "hr", "img", "line", "link", "meta", "path", "polygon", "rect"}
_LONGEST = 20_000
"""Characters of a text from a file that are shown."""


class Markup(str):
    """Text that is HTML already."""

    def __add__(self, other: str) -> Markup:
        return Markup(str(self) + escape(other))


def escape(text: object) -> Markup:
    """Return a value as HTML: escaped, unless it is Markup; control characters are shown, and lone surrogates."""
    if isinstance(text, Markup):
        return text
    shown = str(text)
    if len(shown) > _LONGEST:
        shown = shown[:_LONGEST] + "…"
    return Markup(html.escape(printable(shown, "\n")))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Return pieces one after the other."""
    return Markup(between.join(escape(part) for part in parts))


def element(name: str, /, *inside: object, **attributes: object) -> Markup:
    """Return an element; attributes that are None are left out, and `class_`, `aria_label` lose or change their `_`.

    Example: `element("td", 0.5, class_="number")` is `<td class="number">0.5</td>`.
    """
    written = "".join(f' {_attribute(key)}="{escape(value)}"' for key, value in attributes.items() if value is not None)
    if name in _EMPTY and not inside:
        return Markup(
            f"<{name}{written}/>" if name not in ("meta", "img", "br", "hr", "link") else f"<{name}{written}>"
        )
    return Markup(f"<{name}{written}>{join(inside)}</{name}>")


def _attribute(key: str) -> str:
    plain = key.rstrip("_")
    return plain.replace("_", "-")


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], caption: str, *, class_: str | None = None
) -> Markup:
    """Return a table whose first cells are the headers of their rows; it scrolls by itself where it is too wide."""
    top = element("tr", join(element("th", cell, scope="col") for cell in head))
    body = join(
        element(
            "tr",
            element("th", first, scope="row"),
            join(cell if _is_cell(cell) else element("td", cell) for cell in rest),
        )
        for first, *rest in rows
    )
    inside = element("caption", element("span", caption)) + element("thead", top) + element("tbody", body)
    return element(
        "div", element("table", inside, class_=class_), class_="scroll", role="group", tabindex=0, aria_label=caption
    )


def breakable(name: str) -> Markup:
    """Return a name that may be broken at its signs, as of a run of a sweep: method=pwoa-rate=4."""
    return join(re.split(r"(?<=[=-])", name), "<wbr>")


def _is_cell(cell: object) -> bool:
    return isinstance(cell, Markup) and cell.startswith("<td")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Write an image [C, H, W] of one or three channels as PNG; of another number the first is shown."""
    if len(pixels) not in (1, 3):
        pixels = pixels[:1]
    channels, height, width = pixels.shape
    lines = np.ascontiguousarray(pixels.transpose(1, 2, 0)).reshape(height, width * channels)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def image(pixels: NDArray[np.uint8], words: str) -> Markup:
    """Return an image as a part of the page; words: what it shows, for those who cannot see it."""
    _, height, width = pixels.shape
    data = Markup("data:image/png;base64," + base64.b64encode(png(pixels)).decode())
    return element("img", src=data, alt=words, width=width, height=height)
