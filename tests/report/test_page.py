"""A page tells what was measured, in one file that asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.errors import DefenceWarning, InputError
from pwoa.evaluation.comparison import compare, worst_case
from pwoa.evaluation.examples import EXAMPLES, save_examples
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.recipe import load_recipe, sealed_toml
from pwoa.report.gather import gather
from pwoa.report.page import render, report
from pwoa.report.repeat import commands
from pwoa.runs.folder import Run
from pwoa.storage.folder import sealed, unsealed
from pwoa.storage.identity import identity
from pwoa.storage.reading import read_safetensors_metadata
from tests.report.conftest import ODD


class Page(HTMLParser):
    """What is on a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*folders: Path) -> Page:
    return Page(render(gather(folders), "title"))


def test_a_page_of_a_run_tells_all_of_it(made: Path) -> None:
    run = made / "runs" / "pwoa"
    page, summary = page_of(run), Run(run).result()
    for heading in (
        "Robustness",
        "Image by image",
        "Examples",
        "Size and compute",
        "Training",
        "Settings",
        "Repeat it",
    ):
        assert heading in page.text
    for who in ("teacher", "pruned"):
        for value in summary[who].values():
            assert f"{value:.2f}" in page.text
    for row in summary["sparsity"]:
        assert f"{row['total']:,}" in page.text
    (attack,) = (row for row in compare(run).rows if row.attack == "pgd2")
    assert f"PGD-2 {attack.both} {attack.only_a} {attack.only_b} {attack.neither}" in page.text
    assert "Security curve of the teacher" in page.text
    assert "HSIC plane" in page.text
    assert "threat" in page.text
    assert len(page.named("img")) == 12 * 5
    assert all(image["alt"] for image in page.named("img"))


def test_other_folders_have_the_sections_that_they_can(made: Path) -> None:
    scratch, evaluation = page_of(made / "runs" / "scratch"), page_of(made / "evaluation")
    assert "Training" in scratch.text
    assert "Image by image" not in scratch.text
    assert "method pgd-at" in scratch.text
    assert "Security curve" in evaluation.text
    assert "pwoa evaluate MODEL" in evaluation.text
    assert "What is missing" not in scratch.text + evaluation.text


def test_several_runs_are_compared_and_each_has_its_section(made: Path) -> None:
    page = page_of(made / "runs", made / "evaluation", made / "runs" / "pwoa")
    sections = [attributes["id"] for attributes in page.named("section") if attributes.get("class") == "run"]
    assert sections == ["run-1", "run-2", "run-3", "run-4"]
    targets = {attributes["href"] for attributes in page.named("a")}
    assert {f"#{name}" for name in sections} <= targets
    for title in ("Robustness against rate", "Robustness against compute", "Robustness against training time"):
        assert title in page.text
    assert [cells.get("class") for cells in page.named("table")].count("numbers sortable") == 1


def test_the_worst_case_is_compared_image_by_image(made: Path) -> None:
    found = compare(made / "runs" / "pwoa")
    worst = worst_case(found)
    assert worst is not None
    summary = Run(made / "runs" / "pwoa").result()
    assert (worst.accuracy_a, worst.accuracy_b) == pytest.approx(
        (summary["teacher"]["worst"], summary["pruned"]["worst"])
    )


def test_nothing_is_asked_for_and_only_its_own_style_and_script_are_let_in(made: Path) -> None:
    text = render(gather([made / "runs"]), "title")
    page = Page(text)
    for tag, attributes in page.elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "action", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), tag
    (policy,) = (each["content"] for each in page.named("meta") if each.get("http-equiv"))
    for tag in ("style", "script"):
        for inside in re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in str(policy)
    assert "unsafe" not in str(policy)
    assert not re.search(r"https?://", text)


def test_ids_are_given_once(made: Path) -> None:
    for folders in ([made / "runs"], [made / "runs" / "pwoa"]):
        ids = [attributes["id"] for _, attributes in page_of(*folders).elements if "id" in attributes]
        assert len(ids) == len(set(ids))


def test_names_and_values_cannot_break_out(runs: Path) -> None:
    run = runs / ODD.replace("/", "∕")
    os.rename(runs / "pwoa", run)
    (runs / f"{ODD.replace('/', '∕')}.failure.json").write_text(json.dumps({"error": ODD}))
    result = json.loads((run / "result.json").read_text())
    result.pop("checksum")
    result |= {"device": ODD, "method": ODD, "warnings": [{"check": ODD, "message": ODD, "model": ODD}]}
    result["sparsity"][0]["layer"] = ODD
    (run / "result.json").write_text(json.dumps(sealed(result)))
    place = run / "evaluation" / "model" / "result.json"
    measured = json.loads(place.read_text())
    measured.pop("checksum")
    measured |= {"dataset": ODD, "architecture": ODD, "name": ODD}
    measured["attacks"][1]["attack"] = ODD
    place.write_text(json.dumps(sealed(measured)))
    recipe = load_recipe().with_settings({"data.name": ODD, "teacher.checkpoint": ODD})
    (run / "recipe.toml").write_text(sealed_toml(recipe))
    lines = [{**json.loads(line), "stage": ODD} for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["train"][ODD] = 1.0
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plain = len(page_of(runs / "naive").named("script"))
    for folders in ([run], [runs]):
        target = pwoa.report(*folders, out=runs / "page.html")
        page = Page(target.read_text(encoding="utf-8"))
        assert len(page.named("script")) == plain
        assert page.text.count("alert(1)") > 10
        known = {
            "html",
            "head",
            "meta",
            "link",
            "title",
            "style",
            "body",
            "a",
            "header",
            "nav",
            "ul",
            "li",
            "main",
            "p",
        }
        known |= {
            "section",
            "div",
            "span",
            "strong",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "table",
            "caption",
            "thead",
            "tbody",
        }
        known |= {
            "tr",
            "th",
            "td",
            "figure",
            "svg",
            "desc",
            "rect",
            "line",
            "text",
            "path",
            "polygon",
            "circle",
            "g",
            "i",
        }
        known |= {"img", "details", "summary", "pre", "code", "footer", "script"}
        assert {tag for tag, _ in page.elements} <= known


def make_large(run: Path) -> None:
    """Let a run be of many epochs, of a deep network, and of colour images that are all noise."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(lines[place // 40]) + "\n" for place in range(120)))
    result = json.loads((run / "result.json").read_text())
    layer = result["sparsity"][0]
    result["sparsity"][:1] = [layer | {"layer": f"layer{place}.0.conv.weight"} for place in range(60)]
    result |= {"trained_epochs": 120}
    result["metrics_checksum"] = identity(run / "metrics.jsonl")
    result.pop("checksum")
    (run / "result.json").write_text(json.dumps(sealed(result)))
    for who in ("teacher", "model"):
        path = run / "evaluation" / who / EXAMPLES
        about = unsealed(json.loads(read_safetensors_metadata(path)["about"]), "about")
        noise = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
        save_examples(path, load_file(path) | {"pixels": noise, "attacked": noise[::-1].copy()}, about)


def test_thirty_large_runs_are_a_page_of_less_than_three_megabytes(made: Path, tmp_path: Path) -> None:
    for number in range(30):
        run = Path(shutil.copytree(made / "runs" / ("pwoa" if number % 2 else "naive"), tmp_path / f"run{number:02}"))
        make_large(run)
    begun = time.perf_counter()
    page = pwoa.report(tmp_path)
    assert time.perf_counter() - begun < 10
    assert page == tmp_path / "report.html"
    assert page.stat().st_size < 3_000_000
    text = page.read_text(encoding="utf-8")
    assert "layer59.0.conv" in text
    assert "not whole" not in text


def test_the_command_that_is_shown_makes_the_same_model(tmp_path: Path, digits: Callable[[int, int], Path]) -> None:
    quick = {"data.name": str(digits(60, 8)), "data.validation": 20, "search.epochs": 1, "finetune.epochs": 1}
    quick |= {"evaluation.attacks": "natural", "evaluation.strong": 0, "evaluation.checks": False, "teacher.minimum": 0}
    result = pwoa.prune(recipe="demo", settings=quick, folder=tmp_path / "a run")
    (story,) = gather([result.folder])
    (command, *_), _ = commands(story)
    words = shlex.split(command)
    answer = CliRunner().invoke(app, words[1:])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert fingerprint(pwoa.load_model(tmp_path / "a run-again")) == fingerprint(result.model)
    assert (tmp_path / "a run-again" / "report.html").is_file()


def test_a_teacher_that_was_pruned_by_force_is_a_warning_and_repeated_by_force(
    tmp_path: Path, digits: Callable[[int, int], Path]
) -> None:
    quick = {"data.name": str(digits(60, 8)), "data.validation": 20, "search.epochs": 1, "finetune.epochs": 1}
    quick |= {"evaluation.attacks": "natural", "evaluation.strong": 0, "evaluation.checks": False, "threat.radius": 0.9}
    with pytest.warns(DefenceWarning, match="weak teacher: the teacher is not robust: ") as caught:
        result = pwoa.prune(recipe="demo", settings=quick, folder=tmp_path / "run", force=True)
    assert [warning.filename for warning in caught if issubclass(warning.category, DefenceWarning)] == [__file__]
    page = page_of(result.folder)
    assert "the teacher is not robust: 0.0 % under PGD-10 at l∞ 0.9" in page.text
    assert "--force --out" in page.text
    (story,) = gather([result.folder])
    (command, *_), _ = commands(story)
    answer = CliRunner().invoke(app, shlex.split(command)[1:])
    assert answer.exit_code == 0
    assert "warning (weak teacher): the teacher is not robust: " in " ".join(answer.output.split())
    assert fingerprint(pwoa.load_model(tmp_path / "run-again")) == fingerprint(result.model)


def test_a_run_with_a_budget_of_multiply_adds_says_how_many_fewer_there_are(
    tmp_path: Path, digits: Callable[[int, int], Path], told: Any
) -> None:
    quick = {"data.name": str(digits(60, 8)), "data.validation": 20, "search.epochs": 1, "finetune.epochs": 1}
    quick |= {"evaluation.attacks": "natural", "evaluation.strong": 0, "evaluation.checks": False}
    quick |= {"sparsity.budget": "macs", "sparsity.allocation": "lamp-macs", "sparsity.exclude": ["conv1.weight"]}
    result = pwoa.prune(recipe="demo", settings=quick, folder=tmp_path / "run", rate=8, progress=told)
    said = "\n".join(told.said)
    assert ", rate 8 of multiply-adds by lamp-macs, " in said
    assert "note: rate 8 of multiply-adds of the layers that are pruned; of the whole network it is less" in said
    fewer, size = result.summary["macs_rate"], result.summary["rate"]
    assert 1 < fewer < 7
    page = page_of(result.folder)
    assert f", {fewer:.4g}× fewer multiply-adds, {size:.4g}× smaller" in page.text
    shares = re.search(r"what is not pruned ([\d.]+) %", page.text)
    assert shares is not None
    first = {row["layer"]: row for row in result.summary["sparsity"]}
    pruned = sum(row["macs_dense"] for name, row in first.items() if name != "total")
    assert float(shares[1]) == pytest.approx(100 * (1 - pruned / result.summary["macs_dense"]), abs=0.1)
    (tmp_path / "run" / "result.json").unlink()
    assert "to be 8× fewer multiply-adds" in page_of(result.folder).text


@pytest.mark.parametrize(
    ("attacks", "options"),
    [
        ("natural,pgd2", {"radii": [0, 4 / 255, 0.1], "batch": 3, "checks": False}),
        (None, {"precision": "float32", "settings": {"evaluation.strong": 2}}),
        ("natural,apgd-ce,transfer", {"surrogate": "embedded", "settings": {"evaluation.long": 2}}),
    ],
)
def test_the_command_that_is_shown_measures_the_same(
    attacks: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    threat, place = pwoa.Threat("linf", 8 / 255, 1 / 3 / 255), tmp_path / "an evaluation"
    pwoa.evaluate("embedded", "mnist-mini", attacks=attacks, threat=threat, images=4, seed=5, folder=place, **options)
    (story,) = gather([place])
    (command, *_), _ = commands(story)
    words = [{"MODEL": "embedded", "SURROGATE": "embedded"}.get(word, word) for word in shlex.split(command)]
    answer = CliRunner().invoke(app, [*words[1:], "--out", str(tmp_path / "again")])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert (tmp_path / "again" / "evaluation.json").read_bytes() == (place / "evaluation.json").read_bytes()
    assert (tmp_path / "again" / EXAMPLES).read_bytes() == (place / EXAMPLES).read_bytes()


def test_networks_that_were_measured_on_different_numbers_of_images_say_so(made: Path, tmp_path: Path) -> None:
    pwoa.evaluate("embedded", "mnist-mini", attacks="natural,pgd2", images=4, checks=False, folder=tmp_path / "fewer")
    page = render(gather([made / "evaluation", tmp_path / "fewer"]), "both")
    assert "95 % intervals, each on its own number of test images" in page
    overview = page[: page.index('id="run-1"')]
    found = [len(re.findall(rf"to \d+\.\d on {images}<", overview)) for images in (48, 8, 4)]
    assert found == [2, 1, 3]  # natural and PGD-2; the worst case, with the attack strong; all three
    assert "48 test images" in render(gather([made / "evaluation"]), "one")


def test_naive_pruning_is_not_called_the_papers_method(made: Path) -> None:
    pwoa_, naive = gather([made / "runs" / "pwoa", made / "runs" / "naive"])
    assert (pwoa_.method, pwoa_.way) == ("pwoa", "pwoa")
    assert (naive.method, naive.way) == ("pwoa", "pwoa (loss: cross-entropy)")
    assert "method pwoa (loss: cross-entropy)" in render([naive], "naive")


def test_report_is_one_call(made: Path, tmp_path: Path) -> None:
    one = pwoa.report(made / "evaluation", out=tmp_path / "new" / "a.html")
    assert one == tmp_path / "new" / "a.html"
    assert report(made / "evaluation", out=tmp_path / "b.html").read_bytes() == one.read_bytes()
    assert pwoa.__getattr__("report") is pwoa.report  # whether the room was imported before or not
    assert "report" in dir(pwoa)
    pwoa.report(made / "runs" / "pwoa", out=tmp_path / "c.html", plots="svg,png")
    drawn = {path.name for path in (tmp_path / "c-plots").iterdir()}
    assert {"accuracy-under-attack.svg", "accuracy-under-attack.png", "hsic-plane.svg", "loss.png"} <= drawn


@pytest.mark.parametrize(
    ("folders", "options", "message"),
    [
        ((), {}, "name at least one folder"),
        (("nowhere",), {}, "nowhere is not a folder"),
        (("a\0b",), {}, "is not a folder"),
        ((".",), {}, r"\. has no run in it; give the folder of a run, an evaluation or a sweep$"),
        ((".",), {"plots": "gif"}, "cannot be written as 'gif'"),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_line(
    folders: tuple[str, ...], options: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        pwoa.report(*folders, **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_runs_is_an_error_beside_one_too(made: Path, tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        app, ["report", str(made / "evaluation"), str(tmp_path), "--out", str(tmp_path / "p.html")]
    )
    expected = f"error: {tmp_path} has no run in it; give the folder of a run, an evaluation or a sweep\n"
    assert (ended.exit_code, ended.stderr) == (2, expected)
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_drawn_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    def fail(*folders: object) -> None:
        raise RuntimeError("no ink\nand no paper")

    def evaluated(*arguments: str) -> str:
        given = ["evaluate", "embedded", "--data", "mnist-mini", "--attacks", "natural", "--images", "4", *arguments]
        answer = CliRunner().invoke(app, given)
        assert answer.exit_code == 0
        return " ".join(answer.stdout.split())

    monkeypatch.chdir(tmp_path)
    assert "report: a/report.html" in evaluated("--out", "a")
    assert "report:" not in evaluated("--out", "b", "--no-report")
    assert not Path("b/report.html").exists()
    monkeypatch.setattr("pwoa.report.page.report", fail)
    assert "no report was written: no ink" in evaluated("--out", "c")
    assert Path("c/result.json").is_file()
