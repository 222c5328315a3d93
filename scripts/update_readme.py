"""Write the measured tables into README.md, from results/.

python scripts/update_readme.py
"""

from __future__ import annotations

from pathlib import Path

from pwoa.report.measured import with_tables

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")


if __name__ == "__main__":
    main()
