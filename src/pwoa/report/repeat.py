"""The commands that make a run or an evaluation again."""

import shlex
from pathlib import Path

from pwoa.recipe import MAY_BE_CODE, RECIPE
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
    lines = [["pwoa", verb, "--recipe", str(story.path / RECIPE), *code, "--out", str(again)]]
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
    note = "The recipe has every setting. On a CPU the same versions give the same bits; versions are in model.json."
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
        line += ["--radius", f"{threat.radius:g}"]
        line += ["--set", f"threat.norm={threat.norm}", "--set", f"threat.step={threat.step:g}"]
    if about.get("strong"):
        line += ["--set", f"evaluation.strong={words(about['strong'])}"]
    if story.model.curve:
        radii = sorted({radius for points in story.model.curve.values() for radius, _ in points})
        line += ["--radii", ",".join(f"{radius:g}" for radius in radii)]
    print_of = words(about.get("model"))[:16]
    note = (
        f"MODEL is what was measured: {words(about.get('name')) or 'a network'}, whose fingerprint begins {print_of}."
    )
    return [shlex.join(line), shlex.join(["pwoa", "report", str(story.path)])], note
