"""The paper's figures: accuracy over the rate or the training time, and the HSIC plane."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from pwoa.paper.cells import Cell
from pwoa.paper.plan import Plan, published_row
from pwoa.paper.rows import Row
from pwoa.paper.tables import Found, find
from pwoa.report.plots import Line, line_panels

FORMATS = ("svg", "png")
_WORDS = {"start": "teacher", "finetune": "fine-tuning"}


def draw(plan: Plan, rows: Sequence[Row], plane: Sequence[Row], folder: Path) -> list[Path]:
    """Draw a figure in every format; nothing if no point of it is measured."""
    rows = [row for row in rows if plan.shows(row)]
    if plan.show == "plane":
        panels = _plane(plan, plane)
    else:
        panels = _security(plan, rows) if plan.show == "curve" else _curves(plan, rows)
    if not any(not line.published for lines in panels.values() for line in lines.values()):
        return []
    labels = {"rate": "pruning rate", "training_seconds": "training without compiling, s"}
    labels |= {"radius": "l∞ radius", "": "HSIC(X, Z)"}
    by_show = {"plane": "HSIC(Y, Z)", "curve": "under FMN, %"}
    y = by_show.get(plan.show) or _measure(plan, rows)
    files = [folder / f"{plan.name}.{ending}" for ending in FORMATS]
    for file in files:
        line_panels(panels, file, x=labels[plan.x], y=y, title=plan.heading, doubling=plan.x == "rate")
    return files


def _measure(plan: Plan, rows: Sequence[Row]) -> str:
    attacks = {found.strongest for cell in plan.cells if (found := find(rows, cell))}
    return "under AutoAttack, %" if attacks == {"autoattack"} else "under the strongest attack, %"


def _curves(plan: Plan, rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    """Return for each data set and network a line for each method, and for the paper's numbers."""
    panels: dict[str, dict[str, Line]] = {}
    for panel, cells in _panels(plan).items():
        lines: dict[str, Line] = {}
        for name in dict.fromkeys(map(_name, cells)):
            own = [cell for cell in cells if _name(cell) == name]
            found = [(cell, one) for cell in own if (one := find(rows, cell)) and _accuracy(one) is not None]
            placed = [(x, cell, one) for cell, one in found if (x := place_of(plan.x, cell, one)) is not None]
            if placed:
                words = [f"{cell.key.mix:g}" for _, cell, _ in placed] if plan.x == "training_seconds" else []
                lines[name] = Line([x for x, *_ in placed], [_accuracy(one) or 0.0 for *_, one in placed], words)
            if published := _published(plan, own):
                lines[f"{name}, paper"] = published
        panels[panel] = lines
    return {panel: lines for panel, lines in panels.items() if any(not line.published for line in lines.values())}


def _security(plan: Plan, rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    """Return for each teacher its accuracy over the radius, and that of the networks pruned from it."""
    panels: dict[str, dict[str, Line]] = {}
    for panel, cells in _panels(plan).items():
        lines: dict[str, Line] = {}
        for cell in (cells[0].dense, *cells):
            found = find(rows, cell)
            if curves := [row["curve"] for row in (found.rows if found else ()) if row.get("curve")]:
                radii = [radius for radius, _ in curves[0]]
                means = [statistics.mean(curve[place][1] for curve in curves) for place in range(len(radii))]
                lines["teacher" if cell.measures else f"{_name(cell)}, {cell.key.rate:g}×"] = Line(radii, means)
        panels[panel] = lines
    return {panel: lines for panel, lines in panels.items() if lines}


def _published(plan: Plan, cells: Sequence[Cell]) -> Line | None:
    """Return the paper's own points over the rate; its times are those of another device."""
    points = [(cell.paper.rate, published_row(plan.name, cell.paper).get("autoattack")) for cell in cells]
    known = [(rate, value) for rate, value in points if value is not None]
    if plan.x != "rate" or not known or any(cell.key != cell.paper for cell in cells):
        return None
    return Line([rate for rate, _ in known], [value for _, value in known], published=True)


def _plane(plan: Plan, plane: Sequence[Row]) -> dict[str, dict[str, Line]]:
    """Return for each data set the way of each objective through the plane; where a stage begins or ends has a word."""
    panels: dict[str, dict[str, Line]] = {}
    for panel, cells in _panels(plan).items():
        for cell in cells:
            own = [row for row in plane if (row["table"], row["run"]) == (plan.name, cell.run)]
            if not own:  # the last of those that are like it
                last = next((row["run"] for row in reversed(plane) if _is_of(row, plan, cell)), None)
                own = [row for row in plane if _is_of(row, plan, cell) and row["run"] == last]
            if own:
                stages = [row["stage"] for row in own]
                begins = [stage != last for stage, last in zip(stages, ["", *stages], strict=False)]
                words = [_WORDS.get(stage, "") if new else "" for stage, new in zip(stages, begins, strict=True)]
                x, y = ([row[axis] for row in own] for axis in ("hsic_x", "hsic_y"))
                line = Line(x, y, [*words[:-1], "end"], way=True)
                panels.setdefault(panel, {})[str(cell.key.objective)] = line
    return panels


def _is_of(row: Row, plan: Plan, cell: Cell) -> bool:
    key = cell.key
    own = (plan.name, key.dataset, key.teacher, key.objective, key.rate)
    return own == tuple(row.get(name) for name in ("table", "dataset", "teacher", "objective", "rate"))


def _panels(plan: Plan) -> dict[str, list[Cell]]:
    """Group the cells of a figure by data set and teacher; a Lite network stands beside what it is compared with."""
    panels: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        title = cell.key.teacher or next(reversed(panels), "Lite")
        panels.setdefault(title, []).append(cell)
    return panels


def _name(cell: Cell) -> str:
    key = cell.key
    if key.teacher is None:
        return "Lite, trained from scratch"
    names = {"CE": "naive (CE)", "distillation + HSIC": "PwoA"}
    return names.get(str(key.objective), str(key.objective)) if key.method == "pwoa" else key.method


def place_of(axis: str, cell: Cell, found: Found) -> float | None:
    """Return where on an axis a point is; None if nobody knows what its training takes without compiling."""
    if axis == "rate":
        return cell.key.rate
    times = [row["steady_seconds"] for row in found.rows if row.get("steady_seconds")]
    return float(sum(times) / len(times)) if times else None


def _accuracy(found: Found) -> float | None:
    return found.values.get(found.strongest)
