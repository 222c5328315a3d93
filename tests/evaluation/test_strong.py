"""The attack `strong` at the end of a table, the worst case over all, and what is said of attacks that fall short."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.attacks.apgd import STRONG_CALLS
from pwoa.attacks.autoattack import State
from pwoa.attacks.registry import ATTACKS, find_attack
from pwoa.attacks.square import square_rounds
from pwoa.data.images import Data
from pwoa.errors import DefenceWarning
from pwoa.evaluation.checks import ATTACKED, FEWEST, affordable
from pwoa.evaluation.examples import EXAMPLES
from pwoa.evaluation.robustness import Measurement, robustness, work
from pwoa.evaluation.scores import Scores, weak_steps
from pwoa.evaluation.subject import Subject
from pwoa.progress import ConsoleProgress, Pace, Progress, choose_progress
from pwoa.recipe import Evaluation, Recipe
from pwoa.report.table import evaluation_table, result_table, score_rows
from pwoa.sparsity.selection import smaller
from pwoa.threat import Threat

Make = Callable[..., Recipe]
SMALL = Threat(radius=0.05, step=0.001)
"""An attacker whose two steps cross a twenty-fifth of the ball."""


def cells(table: object) -> list[str]:
    return list(table.columns[0].cells)  # type: ignore[attr-defined]


def test_a_run_ends_with_the_strong_attack_and_the_worst_case(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    assert Recipe().evaluation.strong == 256
    short = {"search__epochs": 1, "finetune__epochs": 1, "pretrain__epochs": 1}
    recipe = quick(evaluation__strong=20, threat__radius=0.35, threat__step=0.001, **short)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)
    summary = result.summary
    assert list(summary["teacher"]) == list(summary["pruned"]) == ["natural", "pgd2", "strong", "worst"]
    assert (summary["images"], summary["fewer"]) == (48, {"strong": 20, "worst": 20})
    assert summary["teacher"]["strong"] < summary["teacher"]["pgd2"]  # which hardly moves
    trained = pwoa.pretrain(
        tiny_teacher,
        tiny_data,
        recipe=recipe,
        settings={"method": "pgd-at", "pretrain.epochs": 1},
        folder=tmp_path / "p",
    )
    assert list(trained.summary["accuracy"]) == ["natural", "pgd2", "strong", "worst"]
    assert [row.attack for row in pwoa.compare(trained.folder, result.folder).rows] == ["natural", "pgd2", "strong"]
    assert [row.images for row in pwoa.compare(result.folder).rows] == [48, 48, 20]


def test_without_attacks_evaluate_ends_with_it_and_with_them_it_does_not(
    tiny_teacher: nn.Module, tiny_data: Data
) -> None:
    def names(**options: object) -> list[str]:
        found = pwoa.evaluate(tiny_teacher, tiny_data, threat=SMALL, checks=False, images=4, **options)  # type: ignore[arg-type]
        return list(found)

    paper = ["natural", "fgsm", "pgd10", "pgd20", "cw"]
    assert names() == [*paper, "strong"]
    assert names(settings={"evaluation.strong": 0}) == paper
    assert names(attacks="pgd2") == ["natural", "pgd2"]
    assert names(attacks="pgd2", settings={"evaluation.strong": 2}) == ["natural", "pgd2", "strong"]
    assert names(settings={"evaluation.attacks": "apgd-ce,strong"}) == ["natural", "apgd-ce", "strong"]


def test_it_is_the_attack_of_its_name_on_the_first_images(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    first = robustness(tiny_teacher, tiny_data.test, Threat(radius=0.2), ("natural", "pgd2"), strong=12)
    alone = robustness(tiny_teacher, tiny_data.test.first(12), Threat(radius=0.2), ("natural", "strong"))
    assert torch.equal(first.right["strong"], alone.right["strong"])
    assert (first.images, len(first.right["pgd2"]), len(first.right["strong"])) == (48, 48, 12)
    both = first.right["natural"][:12] & first.right["pgd2"][:12] & first.right["strong"]
    assert torch.equal(first.worst, both)
    assert first.accuracies["worst"] == 100 * int(both.sum()) / 12
    assert first.interval("strong") == alone.interval("strong")


def test_long_attacks_are_run_on_the_first_images_only(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"evaluation.long": 10, "evaluation.attacks": "natural,pgd2,autoattack"}
    threat = Threat(radius=0.2, step=0.02)
    monkeypatch.setattr("pwoa.evaluation.folder.SAVE_SECONDS", 0.0)
    found = pwoa.evaluate(tiny_teacher, tiny_data, settings=few, threat=threat, checks=False, folder=tmp_path / "few")
    alone = robustness(tiny_teacher, tiny_data.test.first(10), threat, ("natural", "autoattack"))
    assert torch.equal(found.right["autoattack"], alone.right["autoattack"])
    assert found.fewer == {"autoattack": 10, "worst": 10}
    assert {len(after) for after in found.after.values()} == {10}
    assert [row.n for row in score_rows(found)] == [48, 48, 10, 10, 10, 10, 10, 10]
    again = pwoa.evaluate(tiny_teacher, tiny_data, settings=few, threat=threat, checks=False, folder=tmp_path / "few")
    assert again.accuracies == found.accuracies
    result = json.loads((tmp_path / "few" / "result.json").read_text())
    assert (result["long"], result["footnote"]) == (10, "the first 10 of 48 test images")


def test_it_is_not_run_where_autoattack_is(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    subject = Subject.of(tiny_teacher, tiny_data, 30, torch.device("cpu"))
    assert subject.strong_images(Evaluation()) == 30
    assert subject.strong_images(Evaluation(strong=20)) == 20
    assert subject.strong_images(Evaluation(attacks=("natural", "autoattack"))) == 0


def test_what_is_kept_of_fewer_images_is_read_back(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    def measure() -> Scores:
        changes = {"evaluation.strong": 10, "evaluation.attacks": "pgd2", "evaluation.radii": [0, 0.02]}
        return pwoa.evaluate(
            tiny_teacher, tiny_data, threat=SMALL, settings=changes, folder=tmp_path / "e", checks=False
        )

    first, again = measure(), measure()
    assert {name: right.tolist() for name, right in first.right.items()} == {
        name: right.tolist() for name, right in again.right.items()
    }
    assert [len(point.right["strong"]) for point in again.curve] == [10, 10, 10]
    result = json.loads((tmp_path / "e" / "result.json").read_text())
    assert {row["attack"]: row["images"] for row in result["attacks"]} == {"natural": 48, "pgd2": 48, "strong": 10}
    assert (result["worst_case"]["images"], result["strong"]) == (10, 10)


class Counting(Progress):
    """Counts the steps of a measurement."""

    def __init__(self) -> None:
        self.steps = 0

    def advance(self, units: int = 1) -> None:
        self.steps += 1


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
def test_killed_within_it_an_evaluation_is_resumed_to_the_same(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    monkeypatch.setattr("pwoa.evaluation.folder.SAVE_SECONDS", 0.0)
    chosen: dict[str, object] = {"evaluation.attacks": ["natural", "pgd2"], "evaluation.strong": 20}
    chosen |= {"evaluation.checks": False, "evaluation.batch": 8}

    def measure(name: str, progress: Progress | bool = False) -> Scores:
        folder = tmp_path / name
        return pwoa.evaluate(tiny_teacher, tiny_data, threat=SMALL, settings=chosen, folder=folder, progress=progress)

    steps = Counting()
    whole = measure("whole", steps)
    with pytest.raises(KeyboardInterrupt):
        measure("cut", killed(int(share * steps.steps)))
    again = measure("cut")
    assert again.fewer == {"strong": 20, "worst": 20}
    assert again.accuracies == whole.accuracies
    assert (tmp_path / "cut" / EXAMPLES).read_bytes() == (tmp_path / "whole" / EXAMPLES).read_bytes()


def test_tables_say_on_how_many_images() -> None:
    right = {"natural": torch.ones(8, dtype=torch.bool), "strong": torch.tensor([True, False, True, True])}
    scores = Scores(Threat(), right, {})
    expected = ["natural", "strong, first 4", "worst case, first 4"]
    assert cells(evaluation_table(score_rows(scores))) == expected
    table = result_table({"m": scores.accuracies}, 8, fewer=scores.fewer)
    assert cells(table) == expected
    assert list(table.columns[1].cells) == ["100.00", "75.00", "75.00"]
    assert list(table.columns[2].cells)[1] == "30.06 to 95.44"  # Wilson's, of 3 out of 4
    assert "strong 75.00 % (first 4)" in repr(scores)


@pytest.mark.parametrize(
    ("threat", "attacks", "words"),
    [
        (
            Threat("linf", 0.3, 0.01),
            ("fgsm", "pgd10", "pgd20"),
            "PGD-10 moves at most 0.1, PGD-20 moves at most 0.2 of 0.3",
        ),
        (Threat("linf", 0.3, 0.01), ("natural", "fgsm", "cw", "pgd30", "strong", "worst"), ""),
        (Threat("linf", 8 / 255, 2 / 255), ("pgd10", "pgd20", "cw"), ""),
        (Threat("linf", 8 / 255, 2 / 255), ("pgd2",), "PGD-2 moves at most 4/255 of 8/255"),
        (Threat("linf", 0.0, 0.0), ("pgd10",), ""),
    ],
)
def test_an_attack_that_cannot_reach_the_edge_is_named(threat: Threat, attacks: tuple[str, ...], words: str) -> None:
    note = weak_steps(dict.fromkeys(attacks, 50.0), threat)
    assert note.startswith(words)
    assert bool(note) == bool(words)
    assert weak_steps(dict.fromkeys(attacks, 0.0), threat) == ""  # no accuracy is lower


# What the checks cost


def test_checks_attack_no_more_images_than_the_attacks_pay_for() -> None:
    def bound(images: int, *attacks: str) -> tuple[int, int]:
        return affordable(dict.fromkeys(("natural", *attacks), torch.ones(images, dtype=torch.bool)))

    for images, attacks in ((1000, ("pgd20",)), (300, ("pgd20",)), (500, ("fgsm", "pgd10", "pgd20", "cw", "strong"))):
        limit, calls = bound(images, *attacks)
        spent = images * sum(find_attack(name).calls for name in attacks)
        assert FEWEST <= limit <= ATTACKED
        assert limit == FEWEST or limit * calls <= spent
    assert bound(1000, "pgd20")[0] > bound(300, "pgd20")[0]
    assert bound(20, "pgd2")[0] == FEWEST
    assert bound(20, "autoattack")[0] == ATTACKED  # its parts cost what they cost


def test_the_calls_of_the_checks_are_bounded(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    calls = {"attacks": 0, "checks": 0}

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.now = tiny_teacher, "attacks"

        def forward(self, x: Tensor) -> Tensor:
            calls[self.now] += len(x)
            logits: Tensor = self.net(x)
            return logits

        def __deepcopy__(self, memo: object) -> Counting:
            return self

    model = Counting()

    class Watch(Progress):
        def start(self, task: str, total: int, done: int = 0) -> None:
            model.now = "checks" if task.startswith("checking") else "attacks"

    pwoa.evaluate(model, tiny_data, threat=Threat(radius=0.01, step=0.002), attacks="pgd40", progress=Watch())
    assert 0 < calls["checks"] < 2.5 * calls["attacks"]  # forward passes of Square among them, and of the answers


# What a person sees


def test_a_bar_moves_within_a_batch_and_ends_at_its_total(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    steps: list[int] = []
    robustness(tiny_teacher, tiny_data.test, SMALL, ("natural", "pgd10"), batch=48, strong=16, advance=steps.append)
    assert sum(steps) == 48 * (1 + 10) + 16 * STRONG_CALLS == work(48, ("natural", "pgd10"), 16)
    assert len(steps) > 10
    assert min(steps) > 0


def test_pace_counts_what_is_decided_early_at_once() -> None:
    steps: list[int] = []
    pace = Pace(steps.append, 10, calls=4)
    model = pace.watch(lambda x: x)
    model([0] * 10)
    assert sum(steps) == 10
    pace.decide(6)
    assert sum(steps) == 4 * 6 + 4
    for _ in range(9):
        model([0] * 4)
    pace.decide(4)
    assert sum(steps) == 40


def test_the_bar_of_an_attack_that_goes_on_begins_where_it_was(
    tiny_teacher: nn.Module, tiny_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the parts of AutoAttack that are over count at once."""
    fewer = replace(find_attack("square"), rounds=partial(square_rounds, queries=20))
    monkeypatch.setitem(ATTACKS, "square", fewer)
    whole, again = Measurement(), Measurement()
    kept: list[State] = []

    def save(measured: Measurement) -> None:
        state = measured.ensemble
        if state is not None and state.attack == 2 and not kept:  # after natural and APGD-CE
            kept.append(copy.deepcopy(state))

    data, steps = tiny_data.test.first(16), list[int]()
    given: dict[str, Any] = {"attacks": ("natural", "autoattack"), "batch": 16}
    robustness(tiny_teacher, data, SMALL, **given, measured=whole, save=save)
    again.right, again.done, again.ensemble = {"natural": whole.right["natural"].clone()}, 16, kept[0]
    again.seconds = {"natural": 0.0}
    robustness(tiny_teacher, data, SMALL, **given, measured=again, advance=steps.append)
    assert torch.equal(again.right["autoattack"], whole.right["autoattack"])
    assert sum(steps) == work(16, given["attacks"])
    assert steps[0] == 16  # natural
    assert steps[1] >= 16 * find_attack("apgd-ce").calls


def test_progress_is_shown_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Progress()
    assert choose_progress(given) is given
    assert type(choose_progress(None)) is type(choose_progress(False)) is Progress
    assert isinstance(choose_progress(True), ConsoleProgress)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert isinstance(choose_progress(None), ConsoleProgress)
    assert type(choose_progress(False)) is Progress


def test_an_epoch_says_which_accuracy_it_has(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"search.epochs": 1, "finetune.epochs": 1, "pretrain.epochs": 1}
    for name, settings in (("a", {}), ("b", {"training.mix": 1.0}), ("c", {"training.mix": 0.25})):
        pwoa.prune(
            tiny_teacher, tiny_data, recipe=quick(), settings=short | settings, folder=tmp_path / name, progress=True
        )
    pwoa.pretrain(
        tiny_teacher, tiny_data, recipe=quick(method="pgd-at"), settings=short, folder=tmp_path / "p", progress=True
    )
    out = capsys.readouterr().out
    for words in ("natural", "adversarial", "25 % adversarial", "PGD-10"):
        assert re.search(rf"  {words} [\d.]+ %  ", out)
    assert re.search(
        r"teacher on 24 validation images: natural [\d.]+ %, PGD-10 \(in steps of 0\.\d+\) [\d.]+ %\n", out
    )


def test_findings_are_python_warnings(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    masked = nn.Sequential(tiny_teacher, Scale())
    with pytest.warns(DefenceWarning, match="vanishing-gradients: ") as caught:
        scores = pwoa.evaluate(masked, tiny_data, attacks="pgd2", threat=SMALL)
    checks = [found.check for found in scores.findings]
    assert [str(warning.message).partition(":")[0] for warning in caught] == [*checks, "steps"]  # PGD-2 falls short
    assert all(warning.filename == __file__ for warning in caught)
    recipe = quick(evaluation__checks=True, search__epochs=1, finetune__epochs=1)
    for _ in range(2):  # also where the run is finished
        with pytest.warns(DefenceWarning, match="vanishing-gradients, teacher: ") as caught:
            result = pwoa.prune(masked, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)
        assert all(warning.filename == __file__ for warning in caught)
    assert "teacher" in [found.get("model") for found in result.summary["warnings"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pwoa.evaluate(tiny_teacher, tiny_data, attacks="pgd20", threat=Threat(radius=0.01, step=0.002))


class Scale(nn.Module):
    """Logits so large that float32 has no gradient left."""

    def forward(self, logits: Tensor) -> Tensor:
        return 1e4 * logits


def test_results_and_data_are_readable(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    assert repr(tiny_data) == "<Data custom: 96 training images and 48 test images of 1×6×6, 3 classes>"
    assert repr(tiny_data.test) == "<48 images of 1×6×6>"
    recipe = quick(search__epochs=1, finetune__epochs=1)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
    size = f"4× smaller ({result.summary['overall_rate']:.4g}× over all parameters)"
    assert repr(result).startswith(f"<Result in {tmp_path / 'run'}: TinyNet, {size}: natural ")
    assert "\n" not in repr(result)
    trained = dataclasses.replace(result, summary={"rate": 1.0, "accuracy": {"natural": 50.0}})
    assert repr(trained) == f"<Result in {tmp_path / 'run'}: TinyNet: natural 50.00 %>"


def test_both_rates_are_told_where_they_differ(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    class Placed(nn.Module):
        """A fifth of its numbers are positions, which are not pruned."""

        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = nn.Parameter(torch.zeros(1, 1, 36))
            self.first, self.last = nn.Linear(36, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(torch.relu(self.first(x.flatten(1) + self.pos_embed[0])))
            return logits

    recipe = quick(search__epochs=1, finetune__epochs=1, objective__hsic_x=0.0, objective__hsic_y=0.0)
    result = pwoa.prune(Placed(), tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)
    overall = result.summary["overall_rate"]
    assert overall < 3
    told = f"4× smaller ({overall:.4g}× over all parameters)"
    assert told in repr(result)
    page = pwoa.report(tmp_path / "run", out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert told in page
    assert "Not pruned: pos_embed (positions)." in page.replace("<wbr>", "")
    assert smaller(4.0, 3.99) == smaller(4.0, None) == "4× smaller"


def test_python_is_warned_of_attacks_that_fall_short(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    with pytest.warns(DefenceWarning, match=r"steps: PGD-2 moves at most 0\.002 of 0\.05") as caught:
        pwoa.evaluate(tiny_teacher, tiny_data, attacks="pgd2", threat=SMALL, checks=False)
    assert all(warning.filename == __file__ for warning in caught)
    recipe = quick(search__epochs=1, finetune__epochs=1, threat__radius=0.05, threat__step=0.001)
    for _ in range(2):  # also where the run is finished
        with pytest.warns(DefenceWarning, match="steps: PGD-2 moves at most"):
            pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)


def test_an_evaluation_takes_the_threads_that_are_free_and_says_so(
    tiny_teacher: nn.Module, tiny_data: Data, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    usual, seen = torch.get_num_threads(), []
    free = usual + 1
    monkeypatch.setattr("pwoa.evaluation.evaluate.choose_threads", lambda: free)
    tiny_teacher.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    pwoa.evaluate(tiny_teacher, tiny_data, attacks="natural", checks=False, device="cpu", progress=told)
    assert seen[-1] == free
    assert torch.get_num_threads() == usual
    why = "because other work keeps the cores busy (OMP_NUM_THREADS chooses)"
    assert f"{free} threads instead of {usual}, {why}" in told.said
