"""Renew the measured tables of README.md and docs/*.md, and the pictures beside them, from results/.

python -m scripts.update_tables
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison import draw
from benchmarks.equal_time import draw_equal_time
from benchmarks.tables import with_tables

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the documents and the pictures."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page.write_text(with_tables(page.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
    draw(ROOT / "results" / "competition.json", ROOT / "docs" / "competition.png")
    draw_equal_time(ROOT / "results" / "equal-time.json", ROOT / "docs" / "equal-time.png")


if __name__ == "__main__":
    main()
