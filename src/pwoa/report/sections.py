"""The sections of a page that tell of one run or one evaluation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.evaluation.comparison import Difference
from pwoa.evaluation.examples import COUNT
from pwoa.evaluation.scores import weak_steps
from pwoa.recipe.settings import toml_value
from pwoa.report.charts import accuracy_bars, hsic_plane, learning_curves, loss_parts, security_curves
from pwoa.report.figure import Figure
from pwoa.report.gallery import gallery
from pwoa.report.html import Markup, breakable, element, join, table
from pwoa.report.repeat import commands
from pwoa.report.story import NATURAL, WORST, Accuracy, Layer, Measured, Story, number, whole, words
from pwoa.report.svg import draw, share_bar, stacked_bar
from pwoa.sparsity.selection import describe_left_out

TEACHER, STUDENT = 7, 0
"""The looks of the dense network and of the one that a run ended with."""


def title_of(story: Story) -> str:
    """Say in a line what a folder holds."""
    if story.kind == "folder":
        return f"{story.name}: nothing to show"
    what = " on ".join(filter(None, (story.architecture or "a network", story.data)))
    if not story.smaller:
        return what
    return f"{what}, {'' if story.state == 'finished' else 'to be '}{story.smaller}"


def lead_of(story: Story) -> Markup:
    """Say how it was made, in a line of short facts."""
    facts: list[object] = [f"method {story.way}" if story.method else story.kind]
    free = story.result.get("example_free")
    if story.pruned and isinstance(free, bool):
        facts.append("natural examples only" if free else "not example-free")
    facts += [f"threat {story.threat}"] if story.threat else []
    if (seed := whole(story.settings.get("training.seed"))) is not None:
        facts.append(f"seed {seed}")
    about = story.model.about if story.model else {}
    device = words(story.result.get("device") or about.get("device"))
    facts += [device] if device else []
    return element("p", join((element("span", fact) for fact in facts), " "), class_="facts")


def sections_of(story: Story, level: int = 2, examples: int = COUNT) -> Markup:
    """Return all that is to be told of one folder. level: of its headings. examples: how many images are shown."""
    builders: tuple[Callable[[Story], Markup], ...] = (_state, _cards, _beware, _missing)
    told = join(build(story) for build in builders)
    return told + join(
        element("section", element(f"h{level}", heading), inside, id=name if level == 2 else None, class_=name)
        for name, heading, inside in parts_of(story, level, examples)
    )


def parts_of(story: Story, level: int = 2, examples: int = COUNT) -> list[tuple[str, str, Markup]]:
    """Return the name, the heading and the content of each section that there is something to say in."""
    parts = [
        ("robustness", "Robustness", _robustness(story, level)),
        ("changes", "Image by image", _changes(story)),
        ("examples", "Examples", _examples(story, examples)),
        ("size", "Size and compute", _size(story)),
        ("training", "Training", _training(story, level)),
        ("settings", "Settings", _settings(story)),
        ("repeat", "Repeat it", _repeat(story)),
    ]
    return [part for part in parts if part[2]]


def _state(story: Story) -> Markup:
    if story.state in ("finished", "unknown"):
        return Markup("")
    done, asked = len(story.epochs), _epochs_asked(story)
    how_far = f"{done} of {asked} epochs" if asked else counted(done, "epoch")
    trained = "" if story.kind == "evaluation" else "It is trained. "
    doing = f"{trained}The evaluation goes on, or was stopped." if story.state == "evaluating" else f"Done: {how_far}."
    share = share_bar(done / asked, STUDENT) if asked and story.state == "training" else Markup("")
    return element("div", element("p", f"This {story.kind} is not finished. ", doing), share, class_="note state")


def _epochs_asked(story: Story) -> int:
    from pwoa.methods import METHODS
    from pwoa.recipe import Recipe

    method = METHODS.get(story.method)
    try:
        recipe = replace(Recipe().with_settings(story.settings), given=frozenset())  # it is read, not given
        return sum(method.stage_epochs(method.complete(recipe))) if method else 0
    except ValueError:
        return 0


def _cards(story: Story) -> Markup:
    """Return what matters most, large: teacher and student side by side."""
    cards = []
    model, teacher = story.model, story.teacher
    if model is not None:
        for row in dict.fromkeys(filter(None, (model.under(NATURAL), model.hardest))):
            before = teacher.under(row.attack) if teacher else None
            cards.append(_accuracy_card(row, before))
    rate, macs = story.rate, number(story.result.get("macs_rate"), 0)
    if story.pruned and rate and story.result:
        cards.append(_card("prunable weights", f"{rate:.4g}×", "fewer", f"{100 / rate:.3g} % are kept"))
    if story.pruned and macs:
        left, dense = whole(story.result.get("macs")), whole(story.result.get("macs_dense"))
        note = f"{_short(left)} of {_short(dense)} for an image" if left is not None and dense else ""
        cards.append(_card("multiply-adds", f"{macs:.4g}×", "fewer", note))
    if (seconds := number(story.result.get("training_seconds"), 0)) is not None:
        epochs = counted(len(story.epochs), "epoch") if story.epochs else ""
        cards.append(_card("trained in", *_duration(seconds), epochs))
    return element("div", join(cards), class_="cards") if cards else Markup("")


def _accuracy_card(row: Accuracy, before: Accuracy | None) -> Markup:
    label = "natural accuracy" if row.attack == NATURAL else "worst-case accuracy"
    label = label if row.attack in (NATURAL, WORST) else f"accuracy under {attack_label(row.attack)}"
    note = f"{row.low:.1f} to {row.high:.1f} % on {counted(row.images, 'image')}"
    if before is None:
        return _card(label, f"{row.value:.1f}", "%", note)
    was = element("span", f"{before.value:.1f}", class_="was") + element("span", " → ", class_="arrow")
    return _card(label, was + f"{row.value:.1f}", "%", f"teacher → pruned; {note}")


def _card(label: str, value: object, unit: str, note: str = "") -> Markup:
    return element(
        "div",
        element("p", label, class_="name"),
        element("p", value, element("span", f" {unit}", class_="unit"), class_="value"),
        element("p", note, class_="fine") if note else "",
        class_="card",
    )


def warnings_of(story: Story) -> list[str]:
    """Return what a reader should beware of: what the checks found, and attacks whose steps are too short."""
    found = [f"{check}: {message}" for check, message in story.warnings]
    accuracies = {row.attack: row.value for row in story.model.rows} if story.model else {}
    if story.threat and (short := weak_steps(accuracies, story.threat)):
        found.append(f"{short}.")
    return found


def _beware(story: Story) -> Markup:
    if not (found := warnings_of(story)):
        return Markup("")
    lines = element("ul", join(element("li", line) for line in found))
    return element("div", element("p", element("strong", "Warnings")), lines, class_="note warning")


def _missing(story: Story) -> Markup:
    if not story.missing:
        return Markup("")
    return element(
        "div",
        element("p", element("strong", "What is missing in this folder")),
        element("ul", join(element("li", line) for line in story.missing)),
        class_="note missing",
    )


def _robustness(story: Story, level: int) -> Markup:
    measured = {name: who for name, who in (("teacher", story.teacher), (model_name(story), story.model)) if who}
    if not measured:
        return Markup("")
    looks = [TEACHER, STUDENT] if story.teacher and story.model else [STUDENT]
    figures: list[Figure] = [accuracy_bars(measured, looks), *security_curves(measured, looks)]
    drawn = [draw(figure, level + 1) for figure in figures]
    beside, below = (drawn, []) if len(drawn) <= 2 else (drawn[:1], drawn[1:])
    told = element(
        "div", accuracy_table(measured, story.changes), element("div", join(beside), class_="pile"), class_="columns"
    )
    return told + (element("div", join(below), class_="figures") if below else "")


def accuracy_table(measured: Mapping[str, Measured], changes: Sequence[Difference] = ()) -> Markup:
    """Return the accuracies of several networks, a row for each attack. changes: of the second from the first."""
    counts = {who.images for who in measured.values()}
    images = max(counts)
    rows = [_accuracy_row(attack, measured.values(), images, changes) for attack in _attacks(measured.values())]
    head = ["attack", *map(breakable, measured), *(["difference"] if changes else [])]
    many = counted(images, "test image") if len(counts) == 1 else "each on its own number of test images"
    caption = f"Accuracy in % with 95 % intervals, {many}"
    return table(head, rows, caption, class_="numbers accuracies")


def _attacks(measured: Iterable[Measured]) -> list[str]:
    """Return the attacks of all, in their order, the worst case last."""
    found = dict.fromkeys(row.attack for who in measured for row in who.rows)
    return [attack for attack in found if attack != WORST] + [attack for attack in found if attack == WORST]


def _accuracy_row(
    attack: str, measured: Iterable[Measured], images: int, changes: Sequence[Difference]
) -> list[object]:
    rows = [who.under(attack) for who in measured]
    counts = {row.images for row in rows if row}
    fewer = next(iter(counts)) if len(counts) == 1 and max(counts) < images else None
    label = attack_label(attack).replace(" of AutoAttack", "")
    first = (element("span", "↳ ", aria_hidden="true") if ":" in attack else Markup("")) + label
    if fewer:
        first += element("span", f" first {fewer:,}", class_="fine")
    cells: list[object] = [first]
    for row in rows:
        on = f" on {row.images:,}" if row and len(counts) > 1 else ""
        cells.append(Markup("–") if row is None else Markup(f"{row.value:.2f}") + _interval(row.low, row.high, on))
    if changes:
        change = next((change for change in changes if change.attack == attack), None)
        cells.append(
            Markup("–")
            if change is None
            else Markup(_signed(change.difference)) + _interval(*change.interval, signed=True)
        )
    return cells


def _interval(low: float, high: float, on: str = "", signed: bool = False) -> Markup:
    low_text, high_text = (_signed(end, 1) if signed else f"{end:.1f}" for end in (low, high))
    return element("span", f" {low_text} to {high_text}{on}", class_="fine")


def _changes(story: Story) -> Markup:
    if not story.changes:
        return Markup("")
    rows = []
    for change in story.changes:
        kept, lost, won, neither = change.both, change.only_a, change.only_b, change.neither
        label = f"{kept} kept, {lost} lost, {won} won, {neither} by neither"
        bar = stacked_bar([("kept", kept), ("lost", lost), ("won", won), ("neither", neither)], label)
        p = f"{change.p_value:.3f}" if change.p_value >= 0.001 else "< 0.001"
        rows.append([attack_label(change.attack), f"{kept:,}", f"{lost:,}", f"{won:,}", f"{neither:,}", p, bar])
    legend = element(
        "ul",
        join(
            element("li", element("i", class_=name), text)
            for name, text in (
                ("kept", "kept: both are right"),
                ("lost", "lost: only the teacher is right"),
                ("won", "won: only the pruned model is right"),
                ("neither", "neither is right"),
            )
        ),
        class_="legend",
    )
    head = ["attack", "kept", "lost", "won", "neither", "p", "share"]
    caption = (
        "How many images the teacher and the pruned model get right. p: how likely it is that lost and won differ at "
        "least so much by chance (McNemar's test)"
    )
    return table(head, rows, caption, class_="numbers") + legend


def _examples(story: Story, most: int) -> Markup:
    both = {"teacher": story.teacher, model_name(story): story.model}
    return gallery({name: who.examples for name, who in both.items() if who and who.examples}, most)


def _size(story: Story) -> Markup:
    rows: list[list[object]] = []
    layers = [layer for layer in story.layers if layer.name != "total"]
    whole_of = next((layer for layer in story.layers if layer.name == "total"), None)
    about = story.model.about.get("size") if story.model else None
    known = {**(about if isinstance(about, dict) else {}), **story.result}
    if whole_of is not None:
        rows.append(_size_row("prunable weights", whole_of.total, whole_of.kept))
    parameters, nonzero = whole(known.get("parameters")), whole(known.get("nonzero"))
    if parameters and nonzero is not None:
        rows.append(_size_row("all parameters", parameters, nonzero))
    dense, left = whole(known.get("macs_dense")), whole(known.get("macs"))
    if dense and left is not None:
        rows.append(_size_row("multiply-adds for an image", dense, left))
    if parameters and nonzero is not None:
        packed = min(4 * parameters, 4 * nonzero + (parameters + 7) // 8)
        rows.append(_size_row("bytes, packed", 4 * parameters, packed))
    if not rows:
        return Markup("")
    told = table(
        ["what", "dense", "now", "rate"],
        rows,
        "What is left. A packed file has 4 bytes for each number that is not 0, and a bit for every number",
        class_="numbers",
    )
    if layers:
        told += _layers(layers, dense)
    named = known.get("left_out")
    if isinstance(named, dict) and named:
        left_out = {words(name): words(reason) for name, reason in named.items()}
        told += element("p", f"Not pruned: {describe_left_out(left_out, shown=len(left_out))}.")
    return element("div", told, class_="columns")


def _size_row(name: str, dense: int, left: int) -> list[object]:
    return [name, f"{dense:,}", f"{left:,}", f"{dense / left:.4g}×" if left else "∞"]


def _layers(layers: Sequence[Layer], dense: int | None) -> Markup:
    """Return the table of the layers that are pruned. dense: the multiply-adds of the whole network, if known."""
    rows = []
    for layer in layers:
        kept, rate = layer.kept / layer.total, f"{layer.total / layer.kept:.4g}×" if layer.kept else "∞"
        cells: list[object] = [layer.name.removesuffix(".weight"), f"{layer.total:,}", rate]
        cells.append(Markup(f"{100 * kept:.3g} %") + share_bar(kept, STUDENT))
        if dense:
            share = (layer.macs_dense or 0) / dense
            cells.append(Markup(f"{100 * share:.3g} %") + share_bar(share, TEACHER))
        rows.append(cells)
    if dense and (others := 1 - sum(layer.macs_dense or 0 for layer in layers) / dense) > 0:
        share_of = Markup(f"{100 * others:.3g} %") + share_bar(others, TEACHER)
        rows.append(["what is not pruned", "", "", "", share_of])
    head = ["layer", "weights", "rate", "kept", *(["multiply-adds"] if dense else [])]
    caption = "Layer by layer" + (". Multiply-adds: its share of the dense network's" if dense else "")
    return table(head, rows, caption, class_="numbers layers")


def _training(story: Story, level: int) -> Markup:
    if not story.epochs:
        return Markup("")
    figures = [*learning_curves(story.epochs), *filter(None, [hsic_plane(story.epochs, story.start)])]
    told = (
        element("div", join(draw(figure, level + 1) for figure in figures), class_="figures") if figures else Markup("")
    )
    if parts := loss_parts(story.epochs):
        told += element(f"h{level + 1}", "Parts of the loss")
        told += element("div", join(draw(figure, level + 2) for figure in parts), class_="figures many")
    return told


def _settings(story: Story) -> Markup:
    if not story.settings:
        return Markup("")
    lines, section = [], ""
    for key, value in story.settings.items():
        head, _, name = key.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{name} = {toml_value(value)}")
    inside = element("summary", f"All {len(story.settings)} settings") + element(
        "pre", element("code", "\n".join(lines)), tabindex=0, aria_label="settings", role="group"
    )
    return element("details", inside)


def _repeat(story: Story) -> Markup:
    lines, note = commands(story)
    told = element("p", note) if note else Markup("")
    if lines:
        shown = (join((element("span", word) for word in line.split(" ")), " ") for line in lines)
        code = element("code", join(shown, "\n"))
        told = element("pre", code, tabindex=0, aria_label="commands", role="group", class_="commands") + told
    return told


def model_name(story: Story) -> str:
    """Return what the network is called beside its teacher."""
    return "pruned" if story.pruned else "model"


def _signed(points: float, digits: int = 2) -> str:
    return f"{points:+.{digits}f}".replace("-", "−")


def _short(count: int | None) -> str:
    """Write a large number in three digits. Example: 13,883,904 is 13.9 M."""
    value, units = float(count or 0), iter(("", " k", " M", " G", " T"))
    unit = next(units)
    while value >= 1000 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:.3g}{unit}"


def _duration(seconds: float) -> tuple[str, str]:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}", unit
    return f"{seconds:.0f}", "s"
