from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pwoa.attacks.apgd import ce, dlr, targeted_dlr
from pwoa.attacks.problem import lead, likely_targets

LOGITS = torch.tensor([[4.0, 1.0, 3.0, 0.0, 2.0]])


def test_dlr_by_hand() -> None:
    assert dlr(LOGITS, torch.tensor([0])).item() == pytest.approx(-(4 - 3) / (4 - 2))
    assert dlr(LOGITS, torch.tensor([1])).item() == pytest.approx((4 - 1) / (4 - 2))


def test_targeted_dlr_by_hand() -> None:
    loss = targeted_dlr(torch.tensor([2]))
    assert loss(LOGITS, torch.tensor([0])).item() == pytest.approx(-(4 - 3) / (4 - (2 + 1) / 2))
    assert loss(LOGITS, torch.tensor([3])).item() == pytest.approx((3 - 0) / (4 - (2 + 1) / 2))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), classes=st.integers(3, 10), scale=st.floats(0.01, 100), shift=st.floats(-9, 9))
def test_dlr_does_not_see_scale_or_shift_and_is_positive_where_broken(
    seed: int, classes: int, scale: float, shift: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (6,), generator=generator)
    for loss in (dlr, targeted_dlr((labels + 1) % classes)):
        assert torch.allclose(loss(logits, labels), loss(scale * logits + shift, labels))
    assert torch.equal(dlr(logits, labels) > 0, logits.argmax(1) != labels)
    assert torch.equal(lead(logits, labels) < 0, logits.argmax(1) != labels)


def test_two_classes_fall_back_to_cross_entropy() -> None:
    logits, labels = torch.tensor([[1.0, 3.0], [0.0, -1.0]]), torch.tensor([1, 1])
    assert torch.equal(dlr(logits, labels), ce(logits, labels))
    assert torch.equal(targeted_dlr(1 - labels)(logits, labels), ce(logits, labels))


def test_three_classes_use_the_spread_of_three() -> None:
    logits, labels = torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([1])
    assert targeted_dlr(torch.tensor([0]))(logits, labels).item() == pytest.approx(-2 / 3)


def test_targets_are_the_most_likely_other_classes() -> None:
    logits, labels = torch.tensor([[4.0, 1.0, 3.0, 0.0]]).repeat(2, 1), torch.tensor([0, 2])
    assert [likely_targets(logits, labels, rank).tolist() for rank in range(3)] == [[2, 0], [1, 1], [3, 3]]
