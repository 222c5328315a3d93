"""Tables of short tries beyond the paper, from the rows of results/robust-lab.json."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rows import load_rows, markdown

_TRIED = "preset cifar10-robust, batches of 256"
_SHORTER = ", fewer epochs and lower learning rates"
_IMAGES = {
    "shifted over black": "",
    "mirrored only, not shifted": ", images mirrored only, not shifted",
    "shifted by up to 2 pixels over their reflection": ", images shifted by up to 2 pixels over their reflection",
    "shifted by up to 4 pixels over their reflection": ", images shifted by up to 4 pixels over their reflection",
    "half of them turned, scaled and changed in colour too": (
        ", half of the images turned by up to 20 degrees, scaled, shifted over their reflection and changed in colour"
    ),
}
"""Training images, and how the rows say it."""
_RATES = {4.0: _SHORTER, 8.0: _SHORTER, 16.0: "", 64.0: ""}
"""Rates, and how the rows say with which epochs the preset has them."""


def images_table(path: Path) -> str:
    """Return what a ResNet-18 keeps under CW by how its training images were changed."""
    rows = [row for row in load_rows(path) if row["allocation"] == "lamp"]
    found = {(row["rate"], row.get("tried")): row["cw"] for row in rows}
    lines = [
        [images, *(_cell(found.get((rate, f"{_TRIED}{words}{epochs}"))) for rate, epochs in _RATES.items())]
        for images, words in _IMAGES.items()
    ]
    return markdown(["training images", *(f"rate {rate:g}" for rate in _RATES)], lines)


def _cell(cw: float | None) -> str:
    return "" if cw is None else f"{cw:.2f}"
