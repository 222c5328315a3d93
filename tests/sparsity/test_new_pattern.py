"""A pattern of one's own takes a few lines and one registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.recipe import Recipe
from pwoa.sparsity import PATTERNS, prunable


def rows(weight: Tensor, kept: int) -> Tensor:
    """Whole rows (outputs) stay, those with the largest norms; of the last one as many entries as are left."""
    order = weight.flatten(1).norm(dim=1).argsort(descending=True)
    places = torch.arange(weight.numel()).view(len(weight), -1)[order].flatten()
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[places[:kept]] = True
    return mask.view_as(weight)


@pytest.mark.parametrize("method", ["pwoa", "hydra", "apd"])
def test_a_new_pattern_prunes_by_every_kind_of_method(
    method: str,
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(inspect.getsource(rows).splitlines()) < 30
    monkeypatch.setitem(PATTERNS, "rows", rows)
    recipe = quick(method=method, sparsity__pattern="rows", training__average=0.0)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run")
    for name, weight in prunable(result.model).items():
        entries = weight.flatten(1).count_nonzero(1)
        assert int(((entries > 0) & (entries < weight[0].numel())).sum()) <= 1, name
    assert result.summary["rate"] == pytest.approx(4, rel=0.01)


def test_an_unknown_pattern_is_one_line(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    with pytest.raises(pwoa.InputError, match=r"unknown pattern 'unstructurd' .*\(did you mean 'unstructured'\?\)"):
        pwoa.prune(tiny_teacher, tiny_data, recipe=quick(sparsity__pattern="unstructurd"), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
