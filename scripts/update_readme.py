"""Write the measured tables into README.md, from results/.

python scripts/update_readme.py
"""

from __future__ import annotations

import re
from pathlib import Path

from pwoa.report.measured import mnist_table

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    readme = ROOT / "README.md"
    table = mnist_table(ROOT / "results" / "mnist-rate4.json")
    block = f"<!-- measured: scripts/update_readme.py -->\n{table}\n<!-- /measured -->"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(r"<!-- measured.*<!-- /measured -->", block, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
