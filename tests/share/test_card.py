"""The model card says what was measured, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from pwoa.recipe import load_recipe
from pwoa.recipe.sections import Recipe
from pwoa.share.card import addressed, model_card, recorded, without_places

ABOUT: dict[str, Any] = {
    "architecture": "resnet18",
    "width": 0.5,
    "classes": 10,
    "channels": 3,
    "normalisation": None,
    "threat": {"norm": "linf", "radius": 8 / 255, "step": 2 / 255},
    "sparsity": [
        {"layer": "conv1.weight", "total": 1000, "kept": 400},
        {"layer": "linear.weight", "total": 7000, "kept": 600},
        {"layer": "total", "total": 8000, "kept": 1000},
    ],
    "parameters": 9000,
    "nonzero": 2000,
    "left_out": {"pos_embed": "positions"},
}
RESULT: dict[str, Any] = {
    "method": "pwoa",
    "example_free": True,
    "rate": 8.0,
    "seed": 3,
    "device": "NVIDIA H200",
    "images": 1234,
    "teacher": {"natural": 81.25, "pgd20": 50.125},
    "pruned": {"natural": 80.5, "pgd20": 47.75, "cw": 44.0},
}
RECIPE = load_recipe("cifar10")


def front_matter(card: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return read


def test_teacher_and_pruned_model_stand_side_by_side() -> None:
    card = model_card(ABOUT, RESULT, RECIPE)
    assert "# resnet18@0.5 for cifar10, pruned 8× by pwoa\n" in card
    assert "| model | natural | PGD-20 | CW |\n| --- | --- | --- | --- |\n" in card
    assert "| teacher (dense) | 81.25 | 50.12 |  |\n| pruned 8× | 80.50 | 47.75 | 44.00 |" in card
    assert "on 1,234 test images" in card
    assert "Threat: l∞, radius 8/255, step 2/255." in card
    assert "Of 8,000 prunable weights 1,000 are not zero: rate 8." in card
    assert "Of all 9,000 parameters 2,000 are not zero: rate 4.5. Not pruned: pos_embed (positions)." in card
    assert "| `conv1.weight` | 1,000 | 400 | 2.5 |" in card
    assert "seed 3, on NVIDIA H200" in card
    assert "booktitle = {IEEE International Conference on Data Mining (ICDM)}" in card


def test_every_accuracy_in_the_card_is_one_of_the_result() -> None:
    given = {f"{value:.2f}" for scores in (RESULT["teacher"], RESULT["pruned"]) for value in scores.values()}
    body = model_card(ABOUT, RESULT, RECIPE).split("## Accuracy")[1].split("## ")[0]
    assert set(re.findall(r"\d+\.\d\d\b", body)) == given


def test_what_was_measured_is_read_back_from_the_card() -> None:
    assert recorded(model_card(ABOUT, RESULT, RECIPE)) == ("1,234", {"natural": 80.5, "PGD-20": 47.75, "CW": 44.0})
    one = {"images": 1, "pruned": {"autoattack": 100.0}}
    assert recorded(model_card(ABOUT, RESULT | one, RECIPE)) == ("1", {"AutoAttack": 100.0})
    assert recorded(model_card(ABOUT)) == ("", {})


@pytest.mark.parametrize(
    "index", ["", "{", "{}", "[]", "[3]", '[{"results": [{"metrics": [{"name": 1, "value": 2}]}]}]']
)
def test_a_card_that_somebody_wrote_in_another_way_says_nothing(index: str) -> None:
    assert recorded(f"---\nmodel-index: {index}\n---\n") == ("", {})
    other = '[{"results": [{"metrics": [{"name": "top-1", "value": 2}]}]}]'
    assert recorded(f"---\nmodel-index: {other}\n---\n") == ("", {})


@pytest.mark.parametrize("free", [True, False])
def test_it_says_whether_the_run_was_example_free(free: bool) -> None:
    card = model_card(ABOUT, RESULT | {"example_free": free}, RECIPE)
    assert ("**Example-free**: in training and in model selection" in card) is free
    assert ("**Not example-free**: adversarial examples were used" in card) is not free


def test_the_hub_can_read_its_front_matter() -> None:
    card = model_card(ABOUT, RESULT, RECIPE)
    data: Any = ModelCard(card).data
    assert data.library_name == "pwoa"
    assert data.pipeline_tag == "image-classification"
    assert data.datasets == ["uoft-cs/cifar10"]
    found = {result.metric_name: result.metric_value for result in data.eval_results}
    assert found == {
        "accuracy in % of 1,234 images, natural": 80.5,
        "accuracy in % of 1,234 images, PGD-20": 47.75,
        "accuracy in % of 1,234 images, CW": 44.0,
    }
    assert front_matter(card)["tags"] == ["adversarial-robustness", "pruning", "pwoa"]


def test_a_robustly_trained_model_has_one_row() -> None:
    result = {key: RESULT[key] for key in ("seed", "device", "images")}
    result |= {"method": "trades", "example_free": False, "accuracy": {"natural": 90.0, "pgd20": 55.5}}
    card = model_card(ABOUT | {"sparsity": None}, result, RECIPE)
    assert "# resnet18@0.5 for cifar10, robustly trained by trades\n" in card
    assert "| this model | 90.00 | 55.50 |" in card
    assert "teacher (dense)" not in card
    assert "## Size" not in card


def test_a_model_without_a_result_makes_no_claim() -> None:
    card = model_card(ABOUT | {"threat": None, "sparsity": None})
    assert "nothing is known of its robustness" in card
    assert "## Accuracy" not in card
    assert "model-index" not in front_matter(card)
    assert "Example-free" not in card


def test_it_tells_how_to_load_the_model_here_and_on_the_hub() -> None:
    card = model_card(ABOUT, RESULT, RECIPE)
    assert 'model = pwoa.load_model(".")' in card
    assert 'model = pwoa.load_model("hf:me/net")' in addressed(card, "me/net")
    own = model_card(ABOUT | {"architecture": "nets.py:Net"}, RESULT, RECIPE)
    assert "net = …  # a fresh Net, from its own code" in own
    assert 'model = pwoa.load_model("hf:me/net", architecture=net)' in addressed(own, "me/net")


def test_nobody_learns_where_the_files_were() -> None:
    recipe = Recipe().with_settings(
        {
            "method": "apd",
            "data.name": "/home/me/secret/birds",
            "data.folder": "/home/me/secret",
            "teacher.checkpoint": "/home/me/secret/trades.pt",
            "teacher.architecture": "/home/me/secret/nets.py:Net",
            "apd.teacher": "/home/me/secret/natural.pt",
        }
    )
    card = model_card(ABOUT, RESULT, recipe)
    assert "secret" not in card
    assert 'checkpoint = "trades.pt"' in card
    assert 'teacher = "natural.pt"' in card
    assert 'architecture = "nets.py:Net"' in card
    assert 'name = "birds"' in card
    assert without_places(RECIPE) == RECIPE
    from_hub = RECIPE.with_settings({"method": "apd", "apd.teacher": "hf:me/net"})
    assert without_places(from_hub) == from_hub


def test_a_teacher_from_the_hub_is_named_as_the_base() -> None:
    recipe = RECIPE.with_settings({"teacher.checkpoint": "hf:me/teacher@v1"})
    assert front_matter(model_card(ABOUT, RESULT, recipe))["base_model"] == "me/teacher"
