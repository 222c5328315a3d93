"""What a page tells of several runs together: who is how robust at which size, in figures and a table."""

from collections.abc import Mapping, Sequence

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.evaluation.examples import COUNT
from pwoa.report.charts import accuracy_bars, trade_offs
from pwoa.report.figure import Bars, Figure, Plot
from pwoa.report.html import Markup, breakable, element, join, table
from pwoa.report.sections import TEACHER, accuracy_table, lead_of, sections_of, title_of, warnings_of
from pwoa.report.story import NATURAL, WORST, Measured, Story, number, whole, words
from pwoa.report.svg import LOOKS, draw, swatch

FEW = 4
"""So many runs are shown side by side in one figure, open, and with all example images."""
_LOOKS_OF_RUNS = LOOKS - 1  # the last is the teacher's
_ATTACKS = (NATURAL, "fgsm", "pgd10", "pgd20", "cw", "autoattack", "strong", WORST)


def title_of_many(stories: Sequence[Story]) -> str:
    """Say in a line what several folders hold."""
    what = {(story.architecture, story.data) for story in stories}
    shared = " on ".join(filter(None, next(iter(what)))) if len(what) == 1 else ""
    kinds = {story.kind for story in stories}
    counts = counted(len(stories), next(iter(kinds)) if len(kinds) == 1 else "folder")
    return f"{shared}: {counts}" if shared else counts


def lead_of_many(stories: Sequence[Story]) -> Markup:
    """Say what the runs have in common, in a line of short facts."""
    shared = {
        "threat ": {str(story.threat or "") for story in stories},
        "rate ": {f"{story.rate:.4g}" if story.rate else "" for story in stories},
        "method ": {story.way for story in stories},
    }
    facts = [name + next(iter(values)) for name, values in shared.items() if len(values) == 1 and next(iter(values))]
    return element("p", join((element("span", fact) for fact in facts), " "), class_="facts") if facts else Markup("")


def overview_of(stories: Sequence[Story], failed: Mapping[str, str]) -> Markup:
    """Return the part of a page that compares runs."""
    told = _cards(stories) + _notes(stories, failed)
    if side_by_side := networks_of(stories):
        networks = {name: who for name, (who, _) in side_by_side.items()}
        told += element("div", accuracy_table(networks), draw(_bars(side_by_side), 3), class_="columns")
    if trade := trade_offs_of(stories):
        told += element("div", join(draw(figure, 3) for figure in trade), class_="figures")
    told += _table(stories)
    return element("section", element("h2", "All together"), told, id="overview", class_="overview")


def runs_of(stories: Sequence[Story]) -> Markup:
    """Return a section for each run, which is closed where there are many."""
    examples = COUNT if len(stories) <= FEW else 1
    told = []
    for anchor, story in zip(anchors(stories), stories, strict=True):
        heading = element("summary", element("h2", story.name))
        inside = element("p", title_of(story)) + lead_of(story) + sections_of(story, 3, examples)
        details = element("details", heading, inside, **({"open": ""} if len(stories) <= FEW else {}))
        told.append(element("section", details, id=anchor, class_="run", aria_label=f"run {story.name}"))
    return join(told)


def anchors(stories: Sequence[Story]) -> list[str]:
    """Return the names of the sections, to link to."""
    return [f"run-{place}" for place in range(1, len(stories) + 1)]


def figures_of(stories: Sequence[Story]) -> list[Figure]:
    """Return the figures that compare runs."""
    side_by_side = networks_of(stories)
    return [*([_bars(side_by_side)] if side_by_side else []), *trade_offs_of(stories)]


def networks_of(stories: Sequence[Story]) -> dict[str, tuple[Measured, int]]:
    """Return the teacher, if all have the same, and the networks of a few runs, the most robust first, with a look."""
    measured = sorted((story for story in stories if story.model), key=lambda story: -_robust(story))
    if not measured or len(measured) > FEW:
        return {}
    teacher, looks = _teacher(stories), looks_of(stories)
    found = {"teacher": (teacher, TEACHER)} if teacher else {}
    for story in measured:
        assert story.model is not None
        found[_unlike(story.name, found)] = (story.model, looks[story.path])
    return found


def trade_offs_of(stories: Sequence[Story]) -> list[Plot]:
    """Return robustness against what it costs: each run for itself, or where there are many, by method."""
    measured = [story for story in stories if story.model]
    looks = looks_of(stories) if len(stories) <= _LOOKS_OF_RUNS else None
    named = list(zip(anchors(stories), stories, strict=True))
    return trade_offs(named, hardest_common(measured), looks) if measured else []


def _bars(networks: Mapping[str, tuple[Measured, int]]) -> Bars:
    return accuracy_bars({name: who for name, (who, _) in networks.items()}, [look for _, look in networks.values()])


def looks_of(stories: Sequence[Story]) -> dict[object, int]:
    """Return the look of each run: the most robust has the first."""
    order = sorted(stories, key=lambda story: -_robust(story))
    return {story.path: place % _LOOKS_OF_RUNS for place, story in enumerate(order)}


def hardest_common(stories: Sequence[Story]) -> str:
    """Return the hardest attack that all were measured under."""
    for attack in reversed(_ATTACKS):
        if all(story.model and story.model.under(attack) for story in stories):
            return attack
    return NATURAL


def _robust(story: Story) -> float:
    return story.model.hardest.value if story.model and story.model.hardest else -1.0


def _teacher(stories: Sequence[Story]) -> Measured | None:
    """Return the evaluation of the teacher, if all have the same."""
    found = {}
    for story in stories:
        if story.teacher:
            found[words(story.teacher.about.get("model")), story.teacher.rows] = story.teacher
    return next(iter(found.values())) if len(found) == 1 else None


def _unlike(name: str, taken: Mapping[str, object]) -> str:
    return name if name not in taken else f"{name} ({len(taken) + 1})"


def _cards(stories: Sequence[Story]) -> Markup:
    measured = [story for story in stories if story.model]
    if not measured:
        return Markup("")
    attack = hardest_common(measured)
    label = attack_label(attack)
    order = sorted(measured, key=lambda story: -_value(story, attack))
    teacher, looks = _teacher(stories), looks_of(stories)
    dense = teacher.under(attack) if teacher else None
    cards = [_card("teacher", dense.value, f"{label}, not pruned", TEACHER)] if dense else []
    for story in order[: FEW if len(measured) <= FEW else 1]:
        value, best = _value(story, attack), "" if len(measured) <= FEW else "best: "
        rate = f", {story.smaller}" if story.smaller else ""
        kept = f"; {100 * value / dense.value:.0f} % of the teacher's" if dense and dense.value else ""
        cards.append(_card(best + story.name, value, f"{label}{rate}{kept}", looks[story.path]))
    return element("div", join(cards), class_="cards")


def _value(story: Story, attack: str) -> float:
    row = story.model.under(attack) if story.model else None
    return row.value if row else -1.0


def _card(name: str, value: float, note: str, look: int) -> Markup:
    return element(
        "div",
        element("p", swatch(look), " ", breakable(name), class_="name"),
        element("p", f"{value:.1f}", element("span", " %", class_="unit"), class_="value"),
        element("p", note, class_="fine"),
        class_="card",
    )


def _notes(stories: Sequence[Story], failed: Mapping[str, str]) -> Markup:
    told = Markup("")
    if doubtful := [story.name for story in stories if warnings_of(story)]:
        said = f"There are warnings about {_some(doubtful)}; their own sections have them."
        told += element("div", element("p", said), class_="note warning")
    if broken := [story.name for story in stories if story.missing or story.state != "finished"]:
        said = f"{counted(len(broken), 'folder is', 'folders are')} not whole or not finished: {_some(broken)}."
        told += element("div", element("p", said), class_="note missing")
    if failed:
        items = join(element("li", f"{name}: {reason}") for name, reason in failed.items())
        told += element("div", element("p", "These runs failed:"), element("ul", items), class_="note missing")
    return told


def _some(names: Sequence[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _table(stories: Sequence[Story]) -> Markup:
    found = {row.attack for story in stories if story.model for row in story.model.rows if ":" not in row.attack}
    attacks = [attack for attack in _ATTACKS if attack in found]
    attacks[-1:-1] = sorted(found - set(attacks))
    head = ["run", "method", "rate", "multiply-adds", "seed", *map(attack_label, attacks), "training"]
    rows = []
    for anchor, story in zip(anchors(stories), stories, strict=True):
        macs, seconds = number(story.result.get("macs_rate"), 0), number(story.result.get("training_seconds"), 0)
        cells: list[object] = [element("a", breakable(story.name), href=f"#{anchor}")]
        cells.append(element("td", story.way or story.kind, class_="words"))
        cells.append(_number(story.rate, "{:.4g}×"))
        cells.append(_number(macs, "{:.4g}×"))
        cells.append(_number(whole(story.settings.get("training.seed")), "{}"))
        for attack in attacks:
            row = story.model.under(attack) if story.model else None
            cells.append(_number(row.value if row else None, "{:.2f}"))
        cells.append(_number(seconds, "{:,.0f} s"))
        rows.append(cells)
    return table(head, rows, "Accuracy in %; a column's name sorts by it", class_="numbers sortable")


def _number(value: float | None, form: str) -> Markup:
    return element(
        "td", "" if value is None else form.format(value), data_value="" if value is None else f"{value:.6g}"
    )
