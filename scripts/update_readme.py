"""Write the measured tables into README.md, and draw docs/competition.png, from results/.

python scripts/update_readme.py
"""

from __future__ import annotations

from pathlib import Path

from pwoa.report.competition import draw
from pwoa.report.measured import with_tables

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
    draw(ROOT / "results" / "competition.json", ROOT / "docs" / "competition.png")


if __name__ == "__main__":
    main()
