"""The figures of a page, from what was measured."""

from collections.abc import Mapping, Sequence

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.report.figure import Bar, Bars, Plot, Series
from pwoa.report.story import WORST, Epoch, Measured, Story
from pwoa.threat import norm_label

_TRAINING, _VALIDATION = 1, 0
_AXES = (
    ("Robustness against rate", "rate of the weights", "rate"),
    ("Robustness against compute", "rate of the multiply-adds", "macs_rate"),
    ("Robustness against training time", "training, seconds", "training_seconds"),
)
"""What several runs are compared over: a title, the axis, and where its values are in result.json."""


def accuracy_bars(measured: Mapping[str, Measured], looks: Sequence[int]) -> Bars:
    """Return the accuracy of several networks under each attack."""
    attacks = dict.fromkeys(row.attack for who in measured.values() for row in who.rows if ":" not in row.attack)
    ordered = [attack for attack in attacks if attack != WORST] + [attack for attack in attacks if attack == WORST]
    rows = []
    for attack in ordered:
        found = [who.under(attack) for who in measured.values()]
        rows.append((attack_label(attack), tuple(Bar(row.value, row.low, row.high) if row else None for row in found)))
    told = "; ".join(
        f"{name}: " + ", ".join(f"{attack_label(row.attack)} {row.value:.1f} %" for row in who.rows)
        for name, who in measured.items()
    )
    return Bars("Accuracy under attack", told + ".", tuple(measured), tuple(looks), tuple(rows))


def security_curves(measured: Mapping[str, Measured], looks: Sequence[int]) -> list[Plot]:
    """Return accuracy over the radius: a figure for each network that has one, a line for each attack."""
    plots = []
    for (name, who), _ in zip(measured.items(), looks, strict=True):
        series = [
            Series(
                attack_label(attack),
                tuple((radius, row.value) for radius, row in points),
                number,
                tuple((row.low, row.high) for _, row in points),
            )
            for number, (attack, points) in enumerate(who.curve.items())
            if ":" not in attack
        ]
        if series:
            norm = norm_label(who.threat.norm) + " " if who.threat else ""
            told = "; ".join(
                f"{one.name}: " + ", ".join(f"{y:.1f} % at {x:.4g}" for x, y in one.points) for one in series
            )
            title = "Security curve" + (f" of the {name}" if len(measured) > 1 else "")
            plots.append(Plot(title, told + ".", f"{norm}radius", "accuracy, %", tuple(series), y_range=(0.0, 102.0)))
    return plots


def learning_curves(epochs: Sequence[Epoch]) -> list[Plot]:
    """Return the loss and the accuracy by epoch, in training and on the validation split."""
    found = [_curve(epochs, "loss", "Loss", "loss"), _curve(epochs, "accuracy", "Accuracy while training", "%")]
    return [plot for plot in found if plot is not None]


def loss_parts(epochs: Sequence[Epoch]) -> list[Plot]:
    """Return each part of the loss by epoch, small."""
    keys = dict.fromkeys(key for epoch in epochs for key in (*epoch.train, *epoch.validation))
    parts = [_curve(epochs, key, key, "", small=True) for key in keys if key not in ("loss", "accuracy")]
    return [plot for plot in parts if plot is not None]


def _curve(epochs: Sequence[Epoch], key: str, title: str, y: str, small: bool = False) -> Plot | None:
    series = []
    for name, look in (("training", _TRAINING), ("validation", _VALIDATION)):
        values = [(epoch.train if name == "training" else epoch.validation).get(key) for epoch in epochs]
        points = tuple((float(place), value) for place, value in enumerate(values, 1) if value is not None)
        if points:
            series.append(Series(name, points, look))
    if not series:
        return None
    known = [value for one in series for _, value in one.points]
    log = "y" if key != "accuracy" and min(known) > 0 and max(known) / min(known) > 30 else ""
    told = "; ".join(f"{one.name} from {one.points[0][1]:.4g} to {one.points[-1][1]:.4g}" for one in series)
    told += f" over {counted(len(epochs), 'epoch')}."
    borders = () if len({epoch.stage for epoch in epochs}) < 2 else tuple(_stages(epochs))
    room = max(0.05 * (len(epochs) - 1), 0.1)
    whole = (1 - room, len(epochs) + room)
    return Plot(title, told, "epoch", y, tuple(series), whole, log=log, borders=borders, small=small)


def _stages(epochs: Sequence[Epoch]) -> list[tuple[float, str]]:
    """Return where each stage begins, and its name."""
    starts = [place for place, epoch in enumerate(epochs) if not place or epochs[place - 1].stage != epoch.stage]
    return [(place + 0.5 if place else 0.9, epochs[place].stage) for place in starts]


def hsic_plane(epochs: Sequence[Epoch], start: tuple[float, float] | None) -> Plot | None:
    """Return the way of the last hidden activation through the HSIC plane, from the teacher's point."""
    stages = dict.fromkeys(epoch.stage for epoch in epochs if epoch.hsic)
    series = []
    for number, stage in enumerate(stages):
        points = tuple(epoch.hsic for epoch in epochs if epoch.hsic and epoch.stage == stage)
        labels = tuple(f"{stage}, epoch {place}" for place in range(1, len(points) + 1))
        series.append(Series(stage, points, number, labels=labels, by_order=True))
    if not series:
        return None
    if start:
        series.insert(0, Series("teacher", (start,), 7, labels=("teacher",)))
    last = series[-1].points[-1]
    told = f"It ends at HSIC(X, Z) {last[0]:.4g} and HSIC(Y, Z) {last[1]:.4g}"
    told += f"; the teacher is at {start[0]:.4g} and {start[1]:.4g}." if start else "."
    return Plot("HSIC plane", told, "HSIC(X, Z): what it keeps of the image", "HSIC(Y, Z): of the label", tuple(series))


def trade_offs(
    stories: Sequence[tuple[str, Story]], attack: str, looks: Mapping[object, int] | None = None
) -> list[Plot]:
    """Return robustness against rate, multiply-adds and training time of several runs, a point each, which links.

    stories: by the name of their section. attack: which accuracy is shown. looks: by path, those of runs that each
    stand for themselves; without them those of one method belong together.
    """
    plots = []
    for title, axis, key in _AXES:
        groups: dict[str, list[tuple[str, Story, float]]] = {}
        colours: dict[str, int] = {}
        for anchor, story in stories:
            value = story.rate if key == "rate" else _positive(story.result.get(key))
            if value and story.model and story.model.under(attack) and story.kind == "run":
                group = story.name if looks else story.way or "unknown"
                colours.setdefault(group, looks[story.path] if looks else len(colours))
                groups.setdefault(group, []).append((anchor, story, value))
        series = [_points(name, colours[name], found, attack) for name, found in groups.items()]
        dense = next((row for _, story in stories if story.teacher and (row := story.teacher.under(attack))), None)
        if dense and series and key != "training_seconds":
            series.append(Series("teacher", ((1.0, dense.value),), 7, ((dense.low, dense.high),), joined=False))
        values = [x for one in series for x, _ in one.points]
        if len(set(values)) < 2:
            continue
        told = "; ".join(f"{one.name}: " + ", ".join(f"{y:.1f} % at {x:.4g}" for x, y in one.points) for one in series)
        log = "x" if max(values) / min(values) > 3 else ""
        label = f"{attack_label(attack)}, %"
        rates = key != "training_seconds"
        plots.append(Plot(title, told + ".", axis, label, tuple(series), None, (0.0, 102.0), log, doubling=rates))
    return plots


def _points(method: str, look: int, found: Sequence[tuple[str, Story, float]], attack: str) -> Series:
    rows = [(anchor, story, value, story.model.under(attack)) for anchor, story, value in found if story.model]
    known = [(anchor, story, value, row) for anchor, story, value, row in rows if row]
    return Series(
        method,
        tuple((value, row.value) for _, _, value, row in known),
        look,
        tuple((row.low, row.high) for _, _, _, row in known),
        tuple(f"#{anchor}" for anchor, _, _, _ in known),
        tuple(f"{story.name}: {row.value:.1f} %" for _, story, _, row in known),
        joined=False,
    )


def _positive(value: object) -> float | None:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e300 else None
    )
