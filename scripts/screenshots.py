"""Make the pictures of the report in docs from the demo's folder, in a headless Chromium.

pwoa demo
python -m scripts.screenshots runs/demo

The colours are reduced to 256 of them, which keeps each file below 300 kB.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import pwoa

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = {
    "report-light.png": ("light", 1280, 1126, 1.0),
    "report-dark.png": ("dark", 1280, 1126, 1.0),
    "report-phone.png": ("light", 360, 900, 2.0),
}
"""By name the colours, the width and height of the window, and how many pixels one of its units has."""


def main(demo: str = "runs/demo") -> None:
    """Write all pictures."""
    program = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = pwoa.report(demo, out=Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, (scheme, width, height, scale) in PICTURES.items():
            window = {"width": width, "height": height}
            context = browser.new_context(viewport=window, color_scheme=scheme, device_scale_factor=scale)  # type: ignore[arg-type]
            view = context.new_page()
            view.goto(page.as_uri())
            small = Image.open(io.BytesIO(view.screenshot())).convert("RGB").quantize(256, dither=Image.Dither.NONE)
            small.save(DOCS / name, optimize=True)
            print(f"{name}: {(DOCS / name).stat().st_size:,} bytes")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
