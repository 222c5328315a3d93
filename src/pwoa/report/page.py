"""One self-contained page of runs, evaluations and sweeps: no request leaves it, and no script is needed to read it."""

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from pwoa import __version__
from pwoa.errors import InputError
from pwoa.report.charts import accuracy_bars, hsic_plane, learning_curves, loss_parts, security_curves
from pwoa.report.figure import Figure
from pwoa.report.gather import gather, left_out
from pwoa.report.html import Markup, element, join
from pwoa.report.overview import FEW, anchors, figures_of, lead_of_many, overview_of, runs_of, title_of_many
from pwoa.report.sections import STUDENT, TEACHER, lead_of, model_name, parts_of, sections_of, title_of
from pwoa.report.story import Story
from pwoa.report.sweeps import failures
from pwoa.storage.folder import naming, replacing

NAME = "report.html"
"""What the page is called in the folder that it is of."""
FORMATS = ("svg", "png", "pdf")


def report(*folders: str | os.PathLike[str], out: str | Path | None = None, plots: str | Sequence[str] = ()) -> Path:
    """Write one page of runs, evaluations or sweeps, and return where it is.

    Example: `report("runs/mine")`, or `report("runs/a", "runs/b", out="both.html", plots="svg,png")`.

    folders: of runs, evaluations or sweeps, or what `prune` and `pretrain` return.
    out: the page; by default report.html in the folder, or here where several are given.
    plots: formats in which the figures are written as well, into a folder beside the page; they need matplotlib.
    What is missing or damaged in a folder is said in the page.
    """
    if not folders:
        raise InputError("name at least one folder of a run, an evaluation or a sweep")
    formats = _formats(plots)
    places = list(map(Path, folders))
    stories = gather(places)
    if empty := [story.path for story in stories if story.kind == "folder"]:
        raise InputError(f"{empty[0]} has no run in it; give the folder of a run, an evaluation or a sweep")
    target = Path(out) if out is not None else (places[0] if len(places) == 1 else Path()) / NAME
    failed = {name: why for folder in places for name, why in failures(folder).items()}
    notes = [note for folder in places if (note := left_out(folder, stories))]
    content = render(stories, _named(places), failed, notes).encode("utf-8", "replace")
    with naming(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(content)
    if formats:
        from pwoa.report.plots import save_figures

        save_figures(figures_by_name(stories), target.with_name(f"{target.stem}-plots"), formats)
    return target


def render(
    stories: Sequence[Story],
    title: str,
    failed: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    *,
    live: bool = False,
    up: str = "",
) -> str:
    """Return the page of one or several folders.

    notes: what is said first. live: it renews itself. up: where a list of all pages is.
    """
    if len(stories) == 1:
        (story,) = stories
        heading, lead = title_of(story), lead_of(story)
        links = [(f"#{name}", words) for name, words, _ in parts_of(story)]
        main = sections_of(story)
        over = str(story.path)
    else:
        heading, over, lead = title_of_many(stories), title, lead_of_many(stories)
        shown = list(zip(anchors(stories), stories, strict=True)) if len(stories) <= 2 * FEW else []
        links = [("#overview", "All together"), *((f"#{anchor}", story.name) for anchor, story in shown)]
        main = overview_of(stories, failed or {}) + runs_of(stories)
    said = join(element("div", element("p", f"{note}."), class_="note missing") for note in notes)
    return shell(heading, over, lead, links, said + main, live=live, up=up)


def shell(
    heading: str,
    over: str,
    lead: Markup,
    links: Iterable[tuple[str, str]],
    main: Markup,
    *,
    live: bool = False,
    up: str = "",
) -> str:
    """Return a whole page around its content."""
    style, scripts = _file("style.css"), [_file("sort.js"), *([_file("live.js")] if live else [])]
    head = join(
        (
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="Content-Security-Policy", content=policy(live)),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="generator", content=f"pwoa {__version__}"),
            element("link", rel="icon", href="data:,"),
            element("title", f"{heading} · pwoa"),
            Markup(f"<style>{style}</style>"),
        ),
        "\n",
    )
    renewing = element(
        "p", "This page renews itself. ", element("button", "Pause", type="button", hidden=""), class_="live"
    )
    top = element(
        "header",
        element("p", element("a", "All runs", href=up) + " · " if up else "", over, class_="over"),
        element("h1", heading),
        lead,
        renewing if live else "",
    )
    items = join(element("li", element("a", words, href=target)) for target, words in links)
    body = join(
        (
            element("a", "Skip to the content", href="#main", class_="skip"),
            top,
            element("nav", element("ul", items), aria_label="Sections") if items else "",
            element("main", main, id="main"),
            element(
                "footer", f"Made by pwoa {__version__}. Intervals are 95 % (Wilson; for differences Bonett and Price)."
            ),
            *(Markup(f"<script>{script}</script>") for script in scripts),
        ),
        "\n",
    )
    inside = element("head", head) + "\n" + element("body", body)
    return f"<!doctype html>\n{element('html', inside, lang='en')}\n"


def policy(live: bool) -> str:
    """Return what a browser lets the page do: its own style and scripts, images inside it, and nothing else."""
    scripts = " ".join(_hash(_file(name)) for name in ("sort.js", *(["live.js"] if live else [])))
    parts = ["default-src 'none'", "img-src data:", f"style-src {_hash(_file('style.css'))}", f"script-src {scripts}"]
    parts += ["base-uri 'none'", "form-action 'none'", *(["connect-src 'self'"] if live else [])]
    return "; ".join(parts)


def _named(folders: Sequence[Path]) -> str:
    """Return the names of the folders that a page is of, for the line above its title."""
    names = [str(folder) for folder in folders]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def figures_by_name(stories: Sequence[Story]) -> dict[str, Figure]:
    """Return the figures of a page, by the names of their files."""
    if len(stories) != 1:
        return {_file_name(figure.title): figure for figure in figures_of(stories)}
    (story,) = stories
    pairs = (("teacher", story.teacher, TEACHER), (model_name(story), story.model, STUDENT))
    measured = {name: who for name, who, _ in pairs if who}
    looks = [look for _, who, look in pairs if who]
    found: list[Figure] = [accuracy_bars(measured, looks), *security_curves(measured, looks)] if measured else []
    found += [*learning_curves(story.epochs), *loss_parts(story.epochs)]
    plane = hsic_plane(story.epochs, story.start)
    return {_file_name(figure.title): figure for figure in [*found, *([plane] if plane else [])]}


def _file_name(title: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in title.lower()).split())


def _formats(given: str | Sequence[str]) -> list[str]:
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]
    if odd := [name for name in names if name and name not in FORMATS]:
        raise InputError(f"plots cannot be written as {odd[0]!r}; choose of {', '.join(FORMATS)}")
    return [name for name in names if name]


@cache
def _file(name: str) -> str:
    return (resources.files("pwoa.report") / name).read_text(encoding="utf-8").strip()


@cache
def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
