from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.errors import InputError
from pwoa.models.border import as_logits, check_model, is_finite

X = torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(0))
LOGITS = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
FEATURES = torch.zeros(2, 9)
MAPS = torch.zeros(2, 3, 1, 1)


class WithAuxiliary(NamedTuple):
    """What torchvision's Inception returns in training: two tensors of the same shape."""

    logits: Tensor
    aux_logits: Tensor


class ModelOutput(OrderedDict[str, Tensor]):
    """What transformers returns: a dict whose values are attributes too."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Says(nn.Module):
    """A model with one layer that returns what it is told to."""

    def __init__(self, output: Callable[[Tensor], Any], classes: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(9, classes)
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS,),
        (LOGITS, FEATURES),
        (FEATURES, LOGITS),
        [MAPS, LOGITS],
        (LOGITS, None, "aux"),
        {"logits": LOGITS, "loss": FEATURES},
        {"aux": MAPS, "out": LOGITS},
        ModelOutput(loss=FEATURES, logits=LOGITS, hidden_states=MAPS),
        SimpleNamespace(logits=LOGITS, loss=None),
        WithAuxiliary(LOGITS, LOGITS + 1),
    ],
)
def test_logits_are_found(output: Any) -> None:
    assert as_logits(lambda x: output, classes=4)(X) is LOGITS


def test_without_the_number_of_classes_one_candidate_is_enough() -> None:
    assert as_logits(lambda x: (LOGITS, MAPS))(X) is LOGITS


@pytest.mark.parametrize(
    ("output", "classes", "message"),
    [
        ((LOGITS, LOGITS), 4, "returns 2 things, of which 2 could be the logits; wrap it"),
        ((LOGITS, FEATURES), None, "returns 2 things, of which 2 could be the logits"),
        ([FEATURES, MAPS, None], 4, "returns 3 things, of which 0 could be the logits"),
        ((), 4, "returns 0 things"),
        ({"scores": LOGITS, "loss": MAPS}, 4, r"a dict without 'logits' \(keys: scores, loss\)"),
        (None, 4, "returns a NoneType, not a tensor"),
        (SimpleNamespace(logits=None), 4, "returns a SimpleNamespace, not a tensor"),
    ],
)
def test_what_cannot_be_the_logits_is_said(output: Any, classes: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_logits(lambda x: output, classes)(X)


@pytest.mark.parametrize("output", [lambda z: z, lambda z: (FEATURES, z), lambda z: {"logits": z}])
def test_a_classifier_passes(output: Callable[[Tensor], Any]) -> None:
    check_model(Says(output), X, 4)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda z: z.softmax(1), r"outputs probabilities; let it return logits \(drop its last softmax\)"),
        (lambda z: z.log_softmax(1), r"outputs log-probabilities; .*log_softmax"),
        (lambda z: z[:, :3], "gives 3 classes, the data has 4"),
        (lambda z: (z, z), "2 could be the logits"),
        (lambda z: z.sum(), "the model"),
        (lambda z: z.sum(1), "the model"),
        (lambda z: None, "NoneType"),
    ],
    ids=[
        "probabilities",
        "log-probabilities",
        "classes",
        "ambiguous",
        "a number",
        "a number an image",
        "nothing",
    ],
)
def test_a_model_that_does_not_give_logits_is_refused(output: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_model(Says(output), X, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float) -> None:
    model = Says(lambda z: z)
    with torch.no_grad():
        model.layer.bias[2] = value
    with pytest.raises(InputError, match=r"NaN or infinite weights in layer\.bias"):
        check_model(model, X, 4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e5m2],
    ids=str,
)
def test_one_number_that_is_not_finite_is_found_among_many(dtype: torch.dtype) -> None:
    assert is_finite(torch.ones(1000).to(dtype))
    for places in ({500: float("nan")}, {500: float("inf")}, {0: float("inf"), 999: float("-inf")}):
        value = torch.ones(1000)
        for place, number in places.items():
            value[place] = number
        assert not is_finite(value.to(dtype))


def test_numbers_whose_sum_overflows_are_finite_and_so_are_whole_ones() -> None:
    assert is_finite(torch.full((1000,), 3e38))
    assert is_finite(torch.full((1000,), 6e4, dtype=torch.float16))
    assert is_finite(torch.full((1000,), 2**62))
    assert is_finite(torch.ones(3, dtype=torch.bool))
    assert is_finite(torch.zeros(0))


def test_buffers_are_looked_at_too() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 4))
    model.get_buffer("1.running_mean")[0] = float("nan")
    with pytest.raises(InputError, match=r"1\.running_mean"):
        check_model(model, X, 4)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(49, 4)),
        nn.Sequential(nn.BatchNorm3d(1), nn.Flatten(), nn.Linear(9, 4)),
    ],
    ids=["channels", "size", "dimensions"],
)
def test_a_model_for_other_images_is_refused_in_one_line(model: nn.Module) -> None:
    with pytest.raises(InputError, match="cannot take images of 1×3×3: ") as caught:
        check_model(model, X, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
def test_it_looks_at_the_model_in_eval_mode_and_leaves_it_as_it_was(training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 4)).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_model(model, X, 4)
    assert [module.training for module in model.modules()] == [training] * 5
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError):
        check_model(model, X.repeat(1, 2, 1, 1), 4)
    assert model.training is training


def test_what_attacks_see_is_defined_once() -> None:
    sources = Path(pwoa.__file__).parent.rglob("*.py")
    assert sum("\nLogitModel = " in source.read_text(encoding="utf-8") for source in sources) == 1
