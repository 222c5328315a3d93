"""APD: distillation on adversarial examples, by proximal steps."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods.apd import Apd, Proximal, _teacher
from pwoa.models.border import Normalised
from pwoa.recipe.sections import Recipe
from pwoa.sparsity.selection import prunable
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]


def stages_of(student: nn.Module, teacher: nn.Module, data: Data, recipe: Recipe) -> tuple[Apd, Batch]:
    material = Material.of(data, recipe, torch.device("cpu"))
    index = material.train[:20]
    return Apd(student, teacher, material, recipe), Batch(*material.images.batch(index), index)


def other_than(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return other


def test_the_loss_is_that_of_distillation(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    student = other_than(tiny_teacher)
    apd, batch = stages_of(student, tiny_teacher, tiny_data, quick(method="apd", apd__weight=0.7, apd__temperature=3.0))
    with torch.no_grad():
        loss = apd.stages[0].loss(batch)
        ours, theirs = student(batch.x), tiny_teacher(batch.x)
    soft, target = F.softmax(ours / 3, 1), F.softmax(theirs / 3, 1)
    apart = 9 * (target * (target / soft).log()).sum(1).mean()
    right = -F.log_softmax(ours, 1)[torch.arange(20), batch.y].mean()
    assert float(loss.parts["distillation"]) == pytest.approx(float(apart), rel=1e-4)
    assert float(loss.parts["classification"]) == pytest.approx(float(right), rel=1e-4)
    assert float(loss.total) == pytest.approx(float(0.3 * right + 0.7 * apart), rel=1e-4)


def test_the_student_sees_adversarial_images_and_the_teacher_natural_ones(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    student, seen = copy.deepcopy(tiny_teacher), list[Tensor]()
    recipe = quick(training__mix=1.0, data__augment="crop-flip")  # so that the teacher is asked each time
    apd, batch = stages_of(student, tiny_teacher, tiny_data, recipe)
    tiny_teacher.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    apart = apd.stages[0].loss(batch).parts["distillation"]
    assert torch.equal(seen[-1], batch.x)
    assert float(apart.detach()) > 0  # the student is the teacher, so only their images differ


def test_a_proximal_step_ends_at_the_nearest_weights_within_the_budget(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    student = copy.deepcopy(tiny_teacher)
    apd, _ = stages_of(student, tiny_teacher, tiny_data, quick(sparsity__rate=4.0))
    search = apd.stages[0]
    assert isinstance(search, Proximal)
    search.before_epoch(2)  # the last one
    search.after_step()
    for name, weight in prunable(student).items():
        before = prunable(tiny_teacher)[name].detach()
        kept = weight != 0
        assert abs(int(kept.sum()) - weight.numel() / 4) < 1
        assert torch.equal(weight[kept], before[kept])
        assert float(before[~kept].abs().max()) <= float(before[kept].abs().min())


def test_the_number_of_weights_falls_to_the_budget_over_the_search(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    student = copy.deepcopy(tiny_teacher)
    search = stages_of(student, tiny_teacher, tiny_data, quick(sparsity__rate=4.0, search__epochs=4))[0].stages[0]
    hidden, shares, constants = student.get_parameter("hidden.weight"), [], []
    for epoch in range(4):
        search.before_epoch(epoch)
        search.after_step()
        shares.append(float((hidden != 0).float().mean()))
        constants.append(search.constants())
    expected = [0.25 + 0.75 * left**3 for left in (0.75, 0.5, 0.25, 0.0)]
    assert shares == pytest.approx(expected, abs=1.5 / hidden.numel())
    assert all(one != other for one, other in itertools.pairwise(constants))


def test_a_weight_may_come_back_in_the_search_and_not_after(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    student = copy.deepcopy(tiny_teacher)
    apd, batch = stages_of(student, tiny_teacher, tiny_data, quick(sparsity__rate=4.0))
    weight, changed = student.get_parameter("hidden.weight"), []
    for stage in apd.stages:
        stage.begin()
        stage.before_epoch(2)
        stage.after_step()
        before = weight != 0
        for _ in range(3):
            stage.loss(batch).total.backward()
            stage.after_backward()
            with torch.no_grad():
                for parameter in student.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad)
            student.zero_grad()
            stage.after_step()
        changed.append(int(((weight != 0) & ~before).sum()))
    assert changed[0] > 0
    assert changed[1] == 0


def test_another_teacher_may_be_named(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    named = other_than(tiny_teacher)
    torch.save(named.state_dict(), tmp_path / "natural.pt")
    student = copy.deepcopy(tiny_teacher).eval()
    apart = []
    for checkpoint in ("", str(tmp_path / "natural.pt")):
        apd, batch = stages_of(student, tiny_teacher, tiny_data, quick(method="apd", apd__teacher=checkpoint))
        apart.append(float(apd.stages[1].loss(batch).parts["distillation"].detach()))
    assert apart[0] == pytest.approx(0, abs=1e-5)
    assert apart[1] > 0.01
    with pytest.raises(InputError, match=r"nowhere\.pt does not exist"):
        stages_of(student, tiny_teacher, tiny_data, quick(method="apd", apd__teacher="nowhere.pt"))
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"other\.pt does not fit TinyNet") as caught:
        stages_of(student, tiny_teacher, tiny_data, quick(method="apd", apd__teacher=str(tmp_path / "other.pt")))
    assert "\n" not in str(caught.value)


def test_the_other_teacher_may_be_bare_or_behind_a_normalisation(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data
) -> None:
    bare, teacher = other_than(tiny_teacher).eval(), Normalised(tiny_teacher, [0.2], [0.3]).eval()
    x = tiny_data.test.batch(torch.arange(8))[0]
    torch.save({"state_dict": {f"module.{key}": value for key, value in bare.state_dict().items()}}, tmp_path / "a.pt")
    torch.save(Normalised(bare, [0.2], [0.3]).state_dict(), tmp_path / "b.pt")
    torch.save(Normalised(bare, [0.5], [0.5]).state_dict(), tmp_path / "c.pt")
    before = copy.deepcopy(teacher.state_dict())
    for name, numbers in (("a", (0.2, 0.3)), ("b", (0.2, 0.3)), ("c", (0.5, 0.5))):
        with torch.no_grad():
            found, expected = _teacher(teacher, str(tmp_path / f"{name}.pt")), bare((x - numbers[0]) / numbers[1])
            assert torch.allclose(found(x), expected, atol=1e-5)
        assert not found.training
    assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())
    with torch.no_grad():  # and where the run's teacher is bare
        assert torch.allclose(_teacher(tiny_teacher, str(tmp_path / "b.pt"))(x), bare((x - 0.2) / 0.3), atol=1e-5)
