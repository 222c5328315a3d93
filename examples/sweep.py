"""Compare methods and rates by a sweep: a grid in a file, a run for each of its points, one table and one page.

python examples/sweep.py
"""

from pathlib import Path

import pwoa
from pwoa.sweep import Swept, sweep

# What is the same in all runs stands under [set], what is tried under [grid]. More seeds give deviations in the table.
GRID = """
recipe = "demo"

[set]
"data.images" = 1000
"data.validation" = 200
"evaluation.attacks" = ["natural", "pgd20"]
"evaluation.images" = 200
"evaluation.strong" = 0
"evaluation.checks" = false

[grid]
method = ["pwoa", "magnitude"]
"sparsity.rate" = [4, 16]
"training.seed" = [0]
"""


def main(folder: str = "runs/examples/sweep", grid: str = GRID) -> Swept:
    """Run the grid, which is a page of TOML, print its table, and write its report."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / "grid.toml"
    file.write_text(grid, encoding="utf-8")

    # Each run is a process of its own, with a log and a folder. Stopped, the same call goes on where it was.
    result = sweep(file, Path(folder) / "runs")

    # A row for each run is in rows.json; the table has the mean over seeds for each label, the teacher first.
    for label, row in result.table.items():
        print(f"{label:30}", "  ".join(f"{attack} {value}" for attack, value in row.items() if value))
    for name, reason in result.failed.items():
        print(f"{name} failed: {reason}")

    # One page with everything: robustness against rate, compute and time, and a section for each run.
    print(f"report: {pwoa.report(Path(folder) / 'runs')}")
    return result


if __name__ == "__main__":
    main()
