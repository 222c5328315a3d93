"""The commands that make a run or an evaluation again."""

import shlex
from pathlib import Path

from pwoa.evaluation.measure import WEAK_TEACHER
from pwoa.recipe import MAY_BE_CODE, RECIPE, Evaluation
from pwoa.recipe.settings import is_factory
from pwoa.report.story import WORST, Story, words


def commands(story: Story) -> tuple[list[str], str]:
    """Return the commands that repeat what a folder holds, and what has to be known besides."""
    if story.kind == "run":
        return _of_run(story)
    return _of_evaluation(story) if story.kind == "evaluation" else ([], "")


def _of_run(story: Story) -> tuple[list[str], str]:
    folder, settings = str(story.path), story.settings
    again = Path(folder + "-again")
    if not settings:
        return [], "The recipe cannot be read, so the run cannot be repeated from this folder."
    verb = "prune" if story.pruned else "pretrain"
    code = [
        word
        for setting, option in MAY_BE_CODE.items()
        if is_factory(value := words(settings.get(setting))) and not value.startswith("hf:")
        for word in (option, value)
    ]
    force = ["--force"] if any(check == WEAK_TEACHER for check, _ in story.warnings) else []
    lines = [["pwoa", verb, "--recipe", str(story.path / RECIPE), *code, *force, "--out", str(again)]]
    if story.state == "finished" and story.pruned:
        lines += [["pwoa", "compare", folder]]
    lines += [["pwoa", "report", folder]]
    given = [
        what
        for what, is_so in (
            ("the model", settings.get("teacher.checkpoint") == "given"),
            ("the data", settings.get("data.name") == "custom"),
        )
        if is_so
    ]
    if given:
        note = (
            f"This run was started in Python: {' and '.join(given)} cannot be named on a command line. Call "
            f"pwoa.{verb} with the same, recipe={str(story.path / RECIPE)!r} and a new folder."
        )
        return [shlex.join(line) for line in lines[1:]], note
    others = "the others compare the teacher and the pruned model, and write" if len(lines) > 2 else "the other writes"
    note = (
        f"The first command makes the run again, {others} this page. The recipe has every setting. On a CPU the same "
        "versions give the same bits; the versions are in model.json."
    )
    return [shlex.join(line) for line in lines], note


def _of_evaluation(story: Story) -> tuple[list[str], str]:
    if story.model is None:
        return [], ""
    about, threat = story.model.about, story.model.threat
    attacks = [row.attack for row in story.model.rows if ":" not in row.attack and row.attack != WORST]
    if about.get("strong"):  # which comes after the others by itself
        attacks = [attack for attack in attacks if attack != "strong"]
    line = ["pwoa", "evaluate", "MODEL", "--data", words(about.get("dataset")), "--attacks", ",".join(attacks)]
    line += ["--images", str(story.model.images), "--seed", words(about.get("seed"))]
    if threat is not None:
        line += ["--radius", _exact(threat.radius)]
        line += ["--set", f"threat.norm={threat.norm}", "--set", f"threat.step={threat.step!r}"]
    for key in ("strong", "long"):
        line += ["--set", f"evaluation.{key}={words(about[key])}"] if about.get(key) else []
    if story.model.curve:
        radii = sorted({radius for points in story.model.curve.values() for radius, _ in points})
        line += ["--radii", ",".join(map(_exact, radii))]
    usual = Evaluation()
    for key in ("batch", "precision"):
        line += [f"--{key}", words(about[key])] if about.get(key, getattr(usual, key)) != getattr(usual, key) else []
    line += ["--no-checks"] if about.get("checks") is False else []
    other = "twin" if about.get("twin") else "surrogate" if about.get("surrogate") else ""
    line += [f"--{other}", other.upper()] if other else []
    note = (
        f"MODEL is what was measured: {words(about.get('name')) or 'a network'}, whose fingerprint begins "
        f"{words(about.get('model'))[:16]}."
    )
    if other:
        note += f" {other.upper()} is the other network, whose fingerprint begins {words(about['surrogate'])[:16]}."
    return [shlex.join(line), shlex.join(["pwoa", "report", str(story.path)])], note


def _exact(radius: float) -> str:
    """Write a radius so that it is read back as the same number: in few digits or in 255ths, if that is possible."""
    counts = round(255 * radius)
    return (
        f"{radius:g}" if float(f"{radius:g}") == radius else f"{counts}/255" if counts / 255 == radius else repr(radius)
    )
