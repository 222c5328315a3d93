"""Tables with the paper's number beside ours, in Markdown, LaTeX and HTML."""

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pwoa.attacks.registry import attack_label
from pwoa.evaluation.scores import wilson
from pwoa.methods import find_method
from pwoa.paper.cells import Cell, Key, packaged, setup_of
from pwoa.paper.plan import ATTACKS, Plan, published_row
from pwoa.paper.rows import NEAREST, Row, fits, settings_of
from pwoa.recipe import flat, load_recipe
from pwoa.sweep.rows import TEACHER, epochs_of

_ESCAPES = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "×": r"$\times$", "−": "$-$", "±": r"$\pm$"}
_ESCAPES |= {"λ": r"$\lambda$", "τ": r"$\tau$", "†": r"$^\dagger$", "…": r"\ldots{}"}
_ESCAPES |= {"‡": r"$^\ddagger$"}


@dataclass(frozen=True)
class Table:
    """A table as text: a title, the heads of its columns, its lines, and notes below."""

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Write the table as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.lines]
        rows = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n{rows}\n" + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self) -> str:
        """Write the table as LaTeX, which needs no package."""
        rows = " \\\\\n".join(" & ".join(map(_latex, line)) for line in self.lines)
        notes = "".join(f"\\par {_latex(note)}\n" for note in self.notes)
        return (
            f"\\begin{{table}}\n\\caption{{{_latex(self.title)}}}\n"
            f"\\begin{{tabular}}{{{'l' * len(self.head)}}}\n\\hline\n"
            f"{' & '.join(map(_latex, self.head))} \\\\\n\\hline\n{rows} \\\\\n\\hline\n\\end{{tabular}}\n{notes}"
            "\\end{table}\n"
        )

    def html(self) -> str:
        """Write the table as a whole page of HTML."""
        cells = [[html.escape(cell) for cell in line] for line in self.lines]
        body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in cells)
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.head)
        notes = "".join(f"<p>{html.escape(note)}</p>\n" for note in self.notes)
        title = html.escape(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>{_STYLE}</style></head>\n<body><h2>{title}</h2>\n<table>\n<tr>{head}</tr>\n{body}\n</table>\n{notes}</body></html>\n"
        )


OF_TEACHER = "of the teacher's"
"""The column of how much of the teacher's robust accuracy is kept."""
IN_FILES = ("95 % interval", "epochs", "training", "run")
"""The last columns, for which there is no room on a terminal."""
ON_MORE = "Beside the paper's number stands the difference. The interval is of the last attack."
"""What is said of that for which there is no room."""

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}"
    "th{border-bottom:2px solid #888}td:first-child,th:first-child{text-align:left}"
)


def _latex(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


@dataclass(frozen=True)
class Found:
    """What there is for a line: the mean over the seeds, and the rows it is of.

    to_scale: whether they have other epochs or settings than the paper's, or are on other data.
    """

    values: Mapping[str, float | None]
    rows: tuple[Row, ...]
    to_scale: bool

    @property
    def strongest(self) -> str:
        """The attack that ends the line: AutoAttack, or the one that stands in for it."""
        return "autoattack" if self.values.get("autoattack") is not None else "strong"

    @property
    def stands_in(self) -> bool:
        """Whether `strong` stands in for AutoAttack."""
        return self.strongest == "strong" and self.values.get("strong") is not None

    def deviation(self, attack: str) -> float | None:
        """Return the standard deviation over the seeds; None of a single one."""
        known = [row[attack] for row in self.rows if row.get(attack) is not None]
        return statistics.stdev(known) if len({row.get("seed") for row in self.rows}) > 1 < len(known) else None


def find(rows: Sequence[Row], cell: Cell) -> Found | None:
    """Return the best that the rows have for a line, whichever table they were measured for.

    That is its own runs; else those of the longest training, then with the settings asked for, then with the most
    attacks and images. Where settings were asked for, rows with others, or without any, are of something else.
    """
    own = [row for row in rows if fits(row, cell.key)]
    own = [row for row in own if settings_of(row) == cell.settings] if cell.settings else own
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in {(_alike(row), row.get("seed")): row for row in own}.values():  # several tables may have it
        groups.setdefault(_alike(row), []).append(row)
    if not groups:
        return None

    def worth(which: tuple[Any, ...]) -> tuple[Any, ...]:
        first = groups[which][0]
        asked = settings_of(first) == cell.settings
        measured = _known(groups[which]), first["n"]
        return which == (cell.setup,), _total(first["epochs"]), asked, "source" not in first, *measured

    best = max(groups, key=worth)
    chosen = groups.pop(best)
    settings, epochs = settings_of(chosen[0]), chosen[0]["epochs"]
    whole = cell.key == cell.paper and not settings
    paper = "0" if cell.key.method == TEACHER else _paper_epochs(cell)
    values = _values(chosen)
    if cell.key.method == TEACHER:  # which is the same network wherever it was measured by the same settings
        for others in (others for others in groups.values() if settings_of(others[0]) == settings):
            more = {attack: value for attack, value in _values(others).items() if values[attack] is None}
            chosen += others if any(value is not None for value in more.values()) else []
            values |= more
    return Found(values, tuple(chosen), not whole or epochs != paper)


_ALIKE = ("source", "epochs", "n", "settings")


def _alike(row: Row) -> tuple[Any, ...]:
    """Return what rows have in common of which a line is the mean: their setup; those of other files have none."""
    return (setup_of(row["run"]),) if "run" in row else tuple(row.get(key) for key in _ALIKE)


def _values(rows: Sequence[Row]) -> dict[str, float | None]:
    return {name: _mean([row.get(name) for row in rows]) for name in (*ATTACKS, "strong", NEAREST, "median_distance")}


def _paper_epochs(cell: Cell) -> str:
    """Return the epochs that the paper has for a line; the presets are its parameters."""
    method = find_method(cell.paper.method)
    if not method.prunes:
        return "100"
    name = cell.paper.dataset if method.name == "pwoa" else f"{cell.paper.dataset}-{method.name}"
    return epochs_of(load_recipe(name))


def _total(epochs: str) -> int:
    return sum(int(part) for part in str(epochs).split("+"))


def _known(rows: Sequence[Row]) -> int:
    return sum(row.get(attack) is not None for row in rows for attack in ATTACKS)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def table_of(plan: Plan, rows: Sequence[Row]) -> Table:
    """Return the table of a plan: a line for each cell, measured or not, headed by its teachers."""
    if plan.show == "parameters":
        return parameters()
    rows = [row for row in rows if plan.shows(row)]
    found = {cell: find(rows, cell) for cell in plan.cells}
    dense = {cell: find(rows, cell.dense) for cell in plan.cells if cell.key.teacher}
    lines, shown = [], set[Key]()
    for cell in plan.cells:
        teacher = dense.get(cell)
        if not cell.measures and cell.key.teacher and cell.key.dense not in shown:
            shown.add(cell.key.dense)
            lines.append(_line(plan, cell.dense, teacher, None))
        lines.append(_line(plan, cell, found[cell], teacher))
    there = [one for one in (*found.values(), *dense.values()) if one]
    head = ["", *map(attack_label, _columns(plan, there)), *(["median distance"] if plan.show == "curve" else [])]
    head += [OF_TEACHER, *IN_FILES]
    return Table(plan.heading, tuple(head), tuple(lines), _notes(plan, there))


def _columns(plan: Plan, found: Sequence[Found]) -> list[str]:
    """Return what the columns are of: the plan's attacks; if nothing but `strong` was run, that for AutoAttack."""
    instead = any(one.stands_in for one in found) and not any(one.values.get("autoattack") for one in found)
    return ["strong" if instead and attack == "autoattack" else attack for attack in plan.attacks]


def _line(plan: Plan, cell: Cell, found: Found | None, teacher: Found | None) -> tuple[str, ...]:
    dense = cell.key.method == TEACHER
    paper = published_row("pretrained" if dense else plan.name, cell.paper) if cell.comparable else {}
    values = found.values if found else {}
    key = cell.key if dense else replace(cell.paper, architecture=cell.key.architecture)
    cells = [_name(key) + (" †" if found and found.to_scale else "")]
    for attack in plan.attacks:
        measured = found.strongest if found and attack == "autoattack" else attack
        deviation = found.deviation(measured) if found and not dense else None
        fewer = " ‡" if found and _of_fewer_seeds(found, attack) else ""
        cells.append(_cell(values.get(measured), paper.get(attack), deviation) + fewer)
    if plan.show == "curve":
        median = values.get("median_distance")
        cells.append("" if median is None else f"{median:.3g}")
    interval = seconds = runs = epochs = ""
    if found:
        interval = _interval(found)
        epochs = str(found.rows[0]["epochs"]) if not dense else ""
        times = [row["training_seconds"] for row in found.rows if row.get("training_seconds")]
        seconds = f"{statistics.mean(times):,.0f} s" if times else ""
        runs = ", ".join(dict.fromkeys(map(_origin, found.rows)))
    if paper.get("hours"):
        seconds = f"{seconds} ({paper['hours']:g} h)".strip()
    kept = "" if dense else _retention(found, teacher, paper, cell.paper)
    return (*cells, kept, interval, epochs, seconds, runs)


def _of_fewer_seeds(found: Found, attack: str) -> bool:
    """Tell whether an accuracy is the mean over fewer seeds than there are."""
    seeds = {row.get("seed") for row in found.rows}
    return 0 < len({row.get("seed") for row in found.rows if row.get(attack) is not None}) < len(seeds)


def _origin(row: Row) -> str:
    """Return the run behind a row, and the settings that were changed by hand; or the file that it is from."""
    settings = f" ({row['settings']})" if row.get("settings") else ""
    return f"{row.get('run') or row.get('source')}{settings}"


def _name(key: Key) -> str:
    """Name a line as the paper's tables do."""
    if key.method == TEACHER:
        return f"{key.teacher} (dense)"
    what = key.objective if key.method == "pwoa" else key.method
    mix = f", mix {key.mix:g}" if key.mix and key.teacher else ""
    return f"{key.rate:g}×: {what}{mix}" + ("" if key.teacher else f" ({key.architecture}-Lite)")


def _cell(here: float | None, paper: float | None, deviation: float | None) -> str:
    """Write an accuracy with its deviation over the seeds, and in brackets the paper's and the difference."""
    if here is None:
        return "" if paper is None else f"({paper:.2f})"
    own = f"{here:.2f}" if deviation is None else f"{here:.2f} ± {deviation:.2f}"
    return own if paper is None else f"{own} ({paper:.2f}, {here - paper:+.2f})".replace("-", "−")


def _interval(found: Found) -> str:
    """Write Wilson's interval of the strongest attack's accuracy, over the images of one run."""
    attack = found.strongest
    accuracy = found.values.get(attack)
    if accuracy is None:
        return ""
    row = next(row for row in found.rows if row.get(attack) is not None)
    n = row.get(f"n_{attack}") or row["n"]
    low, high = wilson(round(accuracy * n / 100), n)
    return f"{low:.1f}…{high:.1f}"


def _retention(found: Found | None, teacher: Found | None, paper: Mapping[str, Any], key: Key) -> str:
    """Write how much of the teacher's robust accuracy is kept, here and in brackets in the paper."""
    here = ""
    if found and teacher:
        own, whole = found.values.get(found.strongest), teacher.values.get(found.strongest)
        here = f"{100 * own / whole:.0f} %" if own is not None and whole else ""
    robust, dense = paper.get("autoattack"), published_row("pretrained", key.dense).get("autoattack")
    return f"{here} ({100 * robust / dense:.0f} %)".strip() if robust is not None and dense else here


def _notes(plan: Plan, there: Sequence[Found]) -> tuple[str, ...]:
    notes = ["Accuracy in percent; in brackets the paper's.", ON_MORE]
    if any(one.deviation(attack) is not None for one in there for attack in (*plan.attacks, one.strongest)):
        notes.append(
            "Where there is a ±, it is the mean over the seeds of the runs that are named, and their deviation."
        )
    if any(one.to_scale for one in there):
        notes.append("† to scale: other epochs, settings or data than the paper's.")
    if any(_of_fewer_seeds(one, attack) for one in there for attack in plan.attacks):
        notes.append("‡ of fewer seeds than the rest of the line.")
    if not all(cell.comparable for cell in plan.cells):
        notes.append("A rehearsal on other data than the paper's, so its numbers are left out.")
    if any(one.stands_in for one in there):
        notes.append("AutoAttack was not run everywhere; strong, in its place, is APGD-CE and APGD-T.")
    n = sorted({row.get("n_autoattack") or 0 for one in there for row in one.rows} - {0})
    if n:
        notes.append(f"AutoAttack on the first {' or '.join(f'{count:,}' for count in n)} test images.")
    if plan.label:
        notes.append(f"In the paper's source: {plan.label}.")
    return tuple(notes)


def parameters() -> Table:
    """Return the paper's parameters beside those of the presets."""
    presets = [flat(load_recipe(name)) for name in ("mnist", "cifar10", "cifar100")]
    lines, notes = [], []
    for row in packaged("parameters.toml")["row"]:
        own = [str(preset[row["setting"]]) for preset in presets]
        mark = " †" if "note" in row else ""
        lines.append(
            (row["name"] + mark, f"{row['setting']}", *(f"{a} ({b})" for a, b in zip(own, row["paper"], strict=True)))
        )
        notes += [f"† {row['name']}: {row['note']}."] if mark else []
    head = ("", "setting", "MNIST", "CIFAR-10", "CIFAR-100")
    return Table("Parameters of the presets (in brackets the paper's)", head, tuple(lines), tuple(notes))
