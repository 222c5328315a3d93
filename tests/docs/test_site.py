"""The site: it builds strictly, names every page, asks nothing of other hosts; its references are those of the code."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pwoa
from scripts.update_reference import PAGES, _split

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the pages of a folder as `make docs` does."""
    shutil.copy(ROOT / "zensical.toml", folder)
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run([program, "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def pages_in(nav: Any) -> Iterator[str]:
    """Yield the pages that a part of the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_in(part)


def test_the_navigation_names_every_page_once() -> None:
    assert sorted(pages_in(SETTINGS["nav"])) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_the_site_has_every_page_and_asks_nothing_of_other_hosts(site: Path) -> None:
    names = {
        page.name.replace("README.md", "index.html").replace(".md", ".html") for page in (ROOT / "docs").glob("*.md")
    }
    assert names <= {page.name for page in site.glob("*.html")}
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"' >]+)", text)
        loaded += re.findall(r"<link\b(?![^>]*canonical)[^>]*\bhref=[\"']?([^\"' >]+)", text)
        assert loaded
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page.name
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?https?:[^)]*\)|@import[^;]*https?:", styles) == []


@pytest.mark.parametrize("link", ["[gone](gone.md)", "[gone](start.md#gone)"])
def test_a_broken_link_fails(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text(f"# Home\n\n{link}\n")
    (tmp_path / "docs" / "start.md").write_text("# Start\n")
    assert build(tmp_path).returncode != 0


@pytest.mark.parametrize("file", PAGES)
def test_a_reference_is_that_of_the_code(file: str) -> None:
    assert (ROOT / "docs" / file).read_text(encoding="utf-8") == PAGES[file](), "run python -m scripts.update_reference"


@pytest.mark.parametrize("name", [name for name in pwoa.__all__ if inspect.isfunction(getattr(pwoa, name))])
def test_every_parameter_of_a_function_is_explained(name: str) -> None:
    function = getattr(pwoa, name)
    parameters = set(inspect.signature(function).parameters)
    assert set(_split(inspect.getdoc(function) or "", parameters)[1]) == parameters


def test_what_a_text_says_of_parameters_is_found() -> None:
    text = (
        "Do it.\n\nExample: `f(1)`.\n\na, b: numbers, of which\n    one is odd. c: a text.\nWhat else there is: little."
    )
    assert _split(text, {"a", "b", "c"}) == (
        "Do it.\n\nExample: `f(1)`.\n\nWhat else there is: little.",
        {"a": "numbers, of which one is odd.", "b": "see `a`", "c": "a text."},
    )
