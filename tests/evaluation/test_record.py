"""What result.json says, in the words of RobustBench."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.record import result_of
from pwoa.evaluation.scores import Scores, wilson
from pwoa.threat import Threat, parse_radii

ABOUT = {"name": "mine", "dataset": "cifar10", "architecture": "lenet", "images_of": 10_000, "data": "d1", "seed": 3}
FIELDS = {
    "link": str,
    "name": str,
    "authors": str,
    "additional_data": type(None),
    "number_forward_passes": int,
    "dataset": str,
    "venue": str,
    "architecture": str,
    "eps": str,
    "clean_acc": str,
    "reported": str,
    "autoattack_acc": str,
    "footnote": str,
    "unreliable": bool,
}
"""Of a model's entry in RobustBench, and what they hold."""


def right(count: int, n: int = 10_000) -> Tensor:
    return torch.arange(n) < count


def record(scores: Scores, model: nn.Module | None = None, **about: Any) -> dict[str, Any]:
    """As it is read back from the file."""
    found = result_of(scores, model or nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), ABOUT | about)
    return cast(dict[str, Any], json.loads(json.dumps(found)))


@pytest.fixture
def scores() -> Scores:
    verdicts = {"natural": right(7922), "pgd20": ~right(4000), "autoattack": right(4567)}
    after = {"apgd-ce": right(5000), "apgd-t": right(4600), "fab-t": right(4590), "square": right(4567)}
    seconds = {"natural": 0.25, "pgd20": 3.0004, "autoattack": 60.0, "autoattack:apgd-ce": 40.0}
    return Scores(Threat("linf", 8 / 255), verdicts, seconds, after)


def test_the_fields_are_those_of_robustbench(scores: Scores) -> None:
    found = record(scores)
    assert {name: type(found[name]) for name in FIELDS} == FIELDS
    expected = {
        "name": "mine",
        "dataset": "cifar10",
        "architecture": "lenet",
        "threat_model": "Linf",
        "eps": "8/255",
        "clean_acc": "79.22",
        "autoattack_acc": "45.67",
        "footnote": "",
        "unreliable": False,
    }
    assert {name: found[name] for name in expected} == expected
    assert (found["images"], found["data"], found["seed"], found["warnings"]) == (10_000, "d1", 3, [])


def test_what_was_not_run_has_no_accuracy() -> None:
    found = record(Scores(Threat("l2", 0.5), {"pgd20": right(1)}, {}))
    assert (found["clean_acc"], found["autoattack_acc"]) == ("", "")
    assert (found["threat_model"], found["eps"]) == ("L2", "0.5")
    assert found["attacks"][0]["seconds"] is None


def test_a_row_an_attack_with_the_parts_of_autoattack_before_it(scores: Scores) -> None:
    found = record(scores)
    rows = {row["attack"]: row for row in found["attacks"]}
    parts = [f"autoattack:{part}" for part in ("apgd-ce", "apgd-t", "fab-t", "square")]
    assert list(rows) == ["natural", "pgd20", *parts, "autoattack"]
    low, high = wilson(7922, 10_000)
    assert rows["natural"] == {
        "attack": "natural",
        "images": 10_000,
        "accuracy": 79.22,
        "low": round(low, 3),
        "high": round(high, 3),
        "right": 7922,
        "seconds": 0.25,
    }
    assert (rows["pgd20"]["accuracy"], rows["pgd20"]["seconds"]) == (60.0, 3.0)
    assert (rows[parts[0]]["seconds"], rows[parts[1]]["seconds"]) == (40.0, None)
    assert found["worst_case"]["right"] == 4567 - 4000  # right under all of them


def test_the_curve_has_a_row_a_radius_and_attack(scores: Scores) -> None:
    near = Scores(Threat("linf", 2 / 255), {"natural": right(7922), "pgd20": right(7000)}, {"pgd20": 1.0})
    main = Scores(scores.threat, scores.right, scores.seconds)
    found = record(Scores(scores.threat, scores.right, scores.seconds, curve=(near, main)))
    points = [(row["radius"], row["attack"], row["accuracy"]) for row in found["curve"]]
    assert points == [
        (2 / 255, "natural", 79.22),
        (2 / 255, "pgd20", 70.0),
        (8 / 255, "natural", 79.22),
        (8 / 255, "pgd20", 60.0),
        (8 / 255, "autoattack", 45.67),
    ]
    assert found["curve"][1]["seconds"] == 1.0


def test_findings_make_it_unreliable(scores: Scores) -> None:
    warned = Scores(scores.threat, scores.right, {}, findings=(Finding("randomised", "it is random"),))
    found = record(warned)
    assert found["unreliable"] is True
    assert found["warnings"] == [{"check": "randomised", "message": "it is random"}]


def test_the_footnote_tells_which_images() -> None:
    scores = Scores(Threat(), {"natural": right(900, 1000)}, {})
    assert record(scores)["footnote"] == "the first 1,000 of 10,000 test images"


class TestSize:
    def size(self, model: nn.Module) -> dict[str, Any]:
        return cast(dict[str, Any], record(Scores(Threat(), {"natural": right(1, 2)}, {}), model)["size"])

    def test_of_a_pruned_model(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3, bias=False))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1)
            cast(nn.Linear, model[3]).weight[1:] = 0
        assert self.size(model) == {
            "parameters": 18 + 2 + 2 + 2 + 24,
            "nonzero": 18 + 2 + 2 + 2 + 8,
            "bytes": 4 * 48,
            "overall_rate": 48 / 32,
            "rate": 42 / 26,
            "sparsity": [
                {"layer": "0.weight", "total": 18, "kept": 18},
                {"layer": "3.weight", "total": 24, "kept": 8},
                {"layer": "total", "total": 42, "kept": 26},
            ],
        }

    def test_of_half_precision(self) -> None:
        assert self.size(nn.Linear(4, 2).half())["bytes"] == 2 * 10

    def test_of_one_with_nothing_left(self) -> None:
        model = nn.Linear(2, 2)
        nn.init.zeros_(model.weight)
        assert self.size(model)["rate"] is None

    def test_of_one_that_cannot_be_pruned(self) -> None:
        assert self.size(nn.Flatten()) == {"parameters": 0, "nonzero": 0, "bytes": 0, "overall_rate": None}


@pytest.mark.parametrize(
    ("norm", "radius", "expected"),
    [
        ("linf", 8 / 255, "8/255"),
        ("linf", 0.5 / 255, "0.001961"),
        ("linf", 254 / 255, "254/255"),
        ("linf", 0.3, "0.3"),
        ("linf", 0.2, "0.2"),  # 51/255
        ("linf", 0.0, "0"),
        ("linf", 1.0, "1"),
        ("linf", 1e-9, "1e-09"),
        ("linf", 1.23456e-9, "1.235e-09"),
        ("l2", 0.5, "0.5"),
        ("l2", 128 / 255, "0.502"),
    ],
)
def test_a_radius_as_papers_write_it(norm: str, radius: float, expected: str) -> None:
    assert Threat(norm, radius).radius_text == expected
    assert str(Threat(norm, radius)) == f"{'l∞' if norm == 'linf' else norm} {expected}"


@given(level=st.integers(0, 255))
def test_a_radius_in_levels_is_read_as_it_is_written(level: int) -> None:
    assert parse_radii(Threat("linf", level / 255).radius_text) == [level / 255]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2/255,8/255", [0, 2 / 255, 8 / 255]),
        (" 0.3, 0.1 ,0.2", [0.1, 0.2, 0.3]),
        ("8/255,8/255", [8 / 255]),
        ("1e-2", [0.01]),
        ("1/2,0.5", [0.5]),
    ],
)
def test_radii_come_out_in_rising_order_and_once(text: str, expected: list[float]) -> None:
    assert parse_radii(text) == expected


HUGE = "1e9999999999"  # Fraction would write out every digit


@pytest.mark.parametrize(
    "text", ["", "0,", "a", "1/0", "8/255;4/255", "0.1 0.2", "nan", "inf", "1e999", "2/255/3", HUGE]
)
def test_what_is_no_list_of_radii_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"is no list of radii; give it as 0,2/255,8/255 or 0\.1,0\.2") as caught:
        parse_radii(text)
    assert "\n" not in str(caught.value)
