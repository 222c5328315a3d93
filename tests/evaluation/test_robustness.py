from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pwoa.attacks.apgd import apgd_ce, apgd_dlr
from pwoa.attacks.ball import random_start
from pwoa.attacks.gradient import cross_entropy, margin, pgd
from pwoa.attacks.registry import ATTACKS
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.evaluation.evaluate import evaluate
from pwoa.evaluation.robustness import Measurement, robustness, work
from pwoa.evaluation.scores import Scores
from pwoa.threat import Threat

THREAT = Threat(radius=0.1, step=0.02)
QUICK = ("natural", "fgsm", "pgd10", "pgd20", "cw")


def images(n: int = 60, classes: int = 2, seed: int = 0) -> Images:
    generator = torch.Generator().manual_seed(seed)
    return Images(torch.rand(n, 1, 3, 3, generator=generator), torch.randint(classes, (n,), generator=generator))


def seeded(seed: int, *layers: Any) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), *(layer() for layer in layers))


def linear(seed: int = 0) -> nn.Sequential:
    return seeded(seed, lambda: nn.Linear(9, 2))


def curved(seed: int = 0) -> nn.Sequential:
    return seeded(seed, lambda: nn.Linear(9, 16), nn.Tanh, lambda: nn.Linear(16, 3))


def accuracy_at_worst(model: nn.Sequential, data: Images, radius: float) -> float:
    """In percent, of a linear model with two classes: each pixel where it hurts most, image by image."""
    layer = cast(nn.Linear, model[1])
    weight, bias = layer.weight.detach(), layer.bias.detach()
    right = 0
    for x, label in zip(data.pixels.flatten(1), data.labels.tolist(), strict=True):
        lead = weight[label] - weight[1 - label]
        worst = torch.where(lead > 0, (x - radius).clamp_min(0), (x + radius).clamp_max(1))
        right += bool(lead @ worst + bias[label] - bias[1 - label] > 0)
    return 100 * right / len(data)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), radius=st.sampled_from([0.0, 0.03, 0.1]), batch=st.sampled_from([7, 60, 500]))
def test_a_linear_model_has_the_accuracy_of_the_closed_form(seed: int, radius: float, batch: int) -> None:
    model, data = linear(seed), images(seed=seed)
    scores = robustness(model, data, Threat(radius=radius, step=0.02), QUICK, batch=batch)
    assert scores["natural"] == pytest.approx(accuracy_at_worst(model, data, 0))
    for attack in ("fgsm", "pgd10", "pgd20", "cw"):
        assert scores[attack] == pytest.approx(accuracy_at_worst(model, data, radius))
    assert scores.images == 60
    assert set(scores.seconds) == set(QUICK)
    assert min(scores.seconds.values()) > 0


def test_the_attack_is_not_idle_there() -> None:
    model, data = linear(), images()
    assert 0 < accuracy_at_worst(model, data, 0.1) < accuracy_at_worst(model, data, 0) < 100


def test_the_scores_are_those_of_attacks_run_one_by_one() -> None:
    """The shorter attack is a part of the longer one; that changes no number."""
    model, data = curved(3).eval(), images(200, classes=3, seed=3)
    threat = Threat(radius=0.3, step=0.04)
    x, labels = data.pixels, data.labels
    chained = robustness(model, data, threat, ("cw5", "pgd8", "natural", "pgd4"), seed=3)
    assert list(chained) == ["cw5", "pgd8", "natural", "pgd4"]
    for name, steps, loss in (("pgd4", 4, cross_entropy), ("pgd8", 8, cross_entropy), ("cw5", 5, margin)):
        start = random_start(x, threat, torch.Generator().manual_seed(3))
        adversarial = pgd(model, x, labels, threat, steps, start=start, loss=loss)
        right = (model(adversarial).argmax(1) == labels) & (model(x).argmax(1) == labels)
        assert chained[name] == pytest.approx(100 * float(right.float().mean()))
        assert robustness(model, data, threat, (name,), seed=3)[name] == chained[name]
    assert chained["pgd8"] < chained["pgd4"] < chained["natural"]
    assert chained["cw5"] != robustness(model, data, threat, ("pgd5",), seed=3)["pgd5"]


def test_the_same_seed_gives_the_same_scores() -> None:
    model, data = curved(), images(50, classes=3)
    first, second = (robustness(model, data, THREAT, QUICK, seed=5) for _ in range(2))
    assert dict(first) == dict(second)


class Wave(nn.Module):
    """Wrong at 0.5 and right at 0.4, where its gradient leads an attacker: moving there makes it right."""

    def forward(self, x: Tensor) -> Tensor:
        true = -torch.cos(20 * (x.flatten(1) - 0.5) + 0.1)
        return torch.cat([true, torch.zeros_like(true)], 1)


def test_what_is_wrong_naturally_is_wrong_under_every_attack() -> None:
    data = Images(torch.full((4, 1, 1, 1), 0.5), torch.zeros(4, dtype=torch.int64))
    model = Wave()
    assert model(data.pixels).argmax(1).tolist() == [1] * 4
    assert model(data.pixels - 0.1).argmax(1).tolist() == [0] * 4
    scores = robustness(model, data, Threat(radius=0.1, step=0.1), QUICK)
    assert dict(scores) == dict.fromkeys(QUICK, 0.0)


class Views(nn.Module):
    """Flattens as people do, which torch refuses for a batch of no images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()[1]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.view(x.size(0), -1))
        return logits


def test_a_batch_without_a_right_image_is_no_trouble() -> None:
    data = images(8)
    expected = dict(robustness(linear(), data, THREAT, QUICK, batch=1))
    assert 0 < expected["natural"] < 100
    assert dict(robustness(Views(), data, THREAT, QUICK, batch=1)) == expected


@pytest.mark.parametrize("training", [True, False])
def test_it_measures_in_eval_mode_and_restores_the_mode(training: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), linear()[1]).train(training)
    scores = robustness(model, images(), THREAT, QUICK)
    assert [module.training for module in model.modules()] == [training] * 4
    assert dict(scores) == dict(robustness(linear(), images(), THREAT, QUICK))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_fails_keeps_its_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).train()
    with pytest.raises(RuntimeError):
        robustness(model, images(), THREAT, QUICK)
    assert model.training


def test_progress_is_told_of_every_image() -> None:
    steps: list[int] = []
    robustness(linear(), images(25), THREAT, ("natural",), batch=10, advance=steps.append)
    assert steps == [10, 10, 5]


def data_of(split: Images, classes: int = 2) -> Data:
    return Data("mine", split, split, classes)


def test_scores_are_readable() -> None:
    right = {"natural": torch.tensor([True, True, True]), "pgd20": torch.tensor([True, False, True])}
    scores = Scores(Threat(), right, {})
    text = "natural 100.00 %, PGD-20 66.67 %, worst case 66.67 %"
    assert repr(scores) == f"<Scores on 3 images, l∞ 8/255: {text}>"
    assert dict(scores) == {"natural": 100.0, "pgd20": pytest.approx(200 / 3)}
    assert (list(scores), len(scores), scores["natural"], scores.folder) == (["natural", "pgd20"], 2, 100.0, None)


def test_evaluate_measures_the_first_test_images() -> None:
    model, data = linear().train(), data_of(images())
    scores = evaluate(model, data, attacks="natural,fgsm", threat=THREAT, images=20, device="cpu")
    assert scores.images == 20
    assert scores["fgsm"] == pytest.approx(accuracy_at_worst(model, data.test.first(20), 0.1))
    assert model.training


@pytest.mark.parametrize("others", [lambda z: (z, torch.zeros(len(z), 9)), lambda z: {"logits": z, "features": z}])
def test_evaluate_takes_models_that_return_more_than_logits(others: Any) -> None:
    class More(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, x: Tensor) -> Any:
            return others(self.net(x))

    data = data_of(images())
    expected = evaluate(linear(), data, attacks=QUICK, threat=THREAT, device="cpu")
    assert dict(evaluate(More(), data, attacks=QUICK, threat=THREAT, device="cpu")) == dict(expected)


@pytest.mark.parametrize(
    ("model", "attacks", "message"),
    [
        (linear(), "pgd", "unknown attack 'pgd'"),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 5)), "natural", "gives 5 classes, the data has 2"),
    ],
)
def test_evaluate_checks_what_it_is_given(model: nn.Module, attacks: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(model, data_of(images()), attacks=attacks, threat=THREAT, device="cpu")


def test_autoattack_and_its_components_can_be_asked_for() -> None:
    """On a linear model of two classes the worst case is known: margin against radius times l1 norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    pixels = 0.3 + 0.4 * torch.rand(40, 1, 2, 2)
    linear = cast(nn.Linear, model[1])
    radius = 0.05
    with torch.no_grad():
        linear.bias.copy_(-0.5 * linear.weight.sum(1))  # the boundary goes through the middle of the images
        labels = linear(pixels.flatten(1)).argmax(1)
        normal = linear.weight[0] - linear.weight[1]
        towards = torch.where(labels[:, None] == 0, -1, 1) * normal.sign()
        worst = linear((pixels.flatten(1) + radius * towards).clamp(0, 1))
    expected = 100 * float((worst.argmax(1) == labels).float().mean())
    assert 0 < expected < 100
    seen: list[int] = []
    names = ("natural", "apgd-ce", "autoattack")
    threat = Threat(radius=radius, step=radius / 4)
    found = robustness(model, Images(pixels, labels), threat, names, batch=16, advance=seen.append)
    assert list(found) == list(names)
    assert found["natural"] == 100
    assert found["apgd-ce"] == found["autoattack"] == pytest.approx(expected)
    assert sum(seen) == work(40, names) == 40 * work(1, names)


def test_given_back_what_it_saved_it_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, run in (("apgd-ce", apgd_ce), ("apgd-dlr", apgd_dlr)):
        monkeypatch.setitem(ATTACKS, name, replace(ATTACKS[name], run=partial(run, steps=3)))
    model, data, names = curved(), images(20, classes=3), ("natural", "pgd3", "apgd-ce", "apgd-dlr")
    whole = robustness(model, data, THREAT, names, batch=8)
    saved: list[Measurement] = []
    robustness(model, data, THREAT, names, batch=8, save=lambda measured: saved.append(copy.deepcopy(measured)))
    assert [measured.done for measured in saved[:4]] == [8, 16, 20, 20]
    for measured in saved:
        told: list[int] = []
        found = robustness(model, data, THREAT, names, batch=8, measured=measured, advance=told.append)
        assert list(found.right) == list(names)
        assert all(torch.equal(found.right[name], whole.right[name]) for name in names)
        assert sum(told) == work(20, names)


def test_transfer_without_a_surrogate_is_refused() -> None:
    with pytest.raises(InputError, match="the attack transfer needs a surrogate: another model"):
        robustness(linear(), images(), THREAT, ("natural", "transfer"))
