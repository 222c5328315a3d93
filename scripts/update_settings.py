"""Renew docs/settings.md, the reference of all settings, from where they are declared.

python -m scripts.update_settings
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pwoa.recipe.methods import METHOD_SECTIONS
from pwoa.recipe.sections import Recipe
from pwoa.recipe.settings import allowed_text, toml_value

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a recipe, with its default; presets have others (`pwoa recipe NAME` shows them all). `--set
section.key=value` changes one, in Python `settings={"section.key": value}`. The script `scripts.update_settings` writes
this page.

"""


def page() -> str:
    """Return the text of the page."""
    recipe = Recipe()
    sections = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe) if field.name != "own"}
    (method,) = (field for field in dataclasses.fields(recipe) if field.name == "method")
    parts = [HEAD, *_table([("method", recipe.method, method.metadata)])]
    for name, section in sections.items():
        if dataclasses.is_dataclass(section):
            parts += [f"\n## {name}\n\n", *_table(_rows(name, section))]
    for name, kind in METHOD_SECTIONS.items():
        parts += [f"\n## {name}\n\nOnly recipes of the method `{name}` have this section.\n\n"]
        parts += _table(_rows(name, kind()))
    return "".join(parts)


def _rows(name: str, section: Any) -> list[tuple[str, Any, Any]]:
    fields = dataclasses.fields(section)
    return [(f"{name}.{field.name}", getattr(section, field.name), field.metadata) for field in fields]


def _table(rows: list[tuple[str, Any, Any]]) -> list[str]:
    lines = ["| setting | default | allowed | means |\n", "| --- | --- | --- | --- |\n"]
    for path, default, about in rows:
        lines.append(f"| `{path}` | `{toml_value(default)}` | {allowed_text(about)} | {about['about']} |\n")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
