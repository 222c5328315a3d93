"""What goes beyond the paper: hidden layers that are matched, and a constraint that tightens gradually."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods.advprune import AdvPrune
from pwoa.methods.pwoa import Pwoa, Search
from pwoa.models.hidden import recording
from pwoa.objectives.terms import matching, mean_squares
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe
from pwoa.sparsity.constraint import Constraint
from pwoa.sparsity.selection import prunable
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]
CPU = torch.device("cpu")
POINTS = ("conv", "hidden")


def batch_of(data: Data, recipe: Recipe) -> tuple[Material, Batch]:
    material = Material.of(data, recipe, CPU)
    index = material.train[:20]
    return material, Batch(*material.images.batch(index), index)


class TestHidden:
    def test_the_term_is_the_distance_at_the_hidden_points(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(objective__hidden=0.3, objective__hsic_x=0.0, objective__hsic_y=0.0)
        material, batch = batch_of(tiny_data, recipe)
        student = copy.deepcopy(tiny_teacher)
        with torch.no_grad():
            student.get_parameter("conv.weight").mul_(0.5)
        stage = Pwoa(student, tiny_teacher, material, recipe).stages[-1]
        with stage.running():
            loss = stage.loss(batch)
        validation, _ = material.images.batch(material.validation)
        with torch.no_grad(), recording(tiny_teacher, POINTS) as theirs, recording(student, POINTS) as ours:
            tiny_teacher(validation)
            scales = mean_squares([theirs[point] for point in POINTS])
            tiny_teacher(batch.x)
            student(batch.x)
        expected = matching([ours[point] for point in POINTS], [theirs[point] for point in POINTS], scales)
        assert loss.parts["hidden"].item() == pytest.approx(float(expected), rel=1e-5)
        total = loss.parts["distillation"] + 0.3 * loss.parts["hidden"]
        assert loss.total.item() == pytest.approx(total.item(), rel=1e-5)

    def test_what_differences_are_relative_to_is_found_a_batch_at_a_time(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(objective__hidden=0.3, objective__hsic_x=0.0, objective__hsic_y=0.0, data__validation=37)
        material, batch = batch_of(tiny_data, recipe)
        seen: list[int] = []
        teacher = copy.deepcopy(tiny_teacher)
        teacher.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
        student = copy.deepcopy(tiny_teacher)
        with torch.no_grad():
            student.get_parameter("conv.weight").mul_(0.5)
        several = Pwoa(student, teacher, material, recipe).stages[-1]
        assert max(seen) == recipe.training.batch == 16 < len(material.validation)
        whole = Pwoa(student, teacher, material, recipe.with_settings({"training.batch": 64})).stages[-1]
        values = []
        for stage in (several, whole):
            with stage.running():
                values.append(stage.loss(batch).parts["hidden"].item())
        assert values[0] == pytest.approx(values[1], rel=1e-5)

    def test_it_brings_the_hidden_layers_nearer_to_the_teachers(
        self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        def distance(weight: float) -> float:
            slow = {"search__learning_rate": 0.005, "finetune__learning_rate": 0.005}  # which is stable
            recipe = quick(objective__hidden=weight, finetune__epochs=6, **slow)
            result = pwoa.prune(tiny_teacher, tiny_data, rate=6, recipe=recipe, folder=tmp_path / f"{weight:g}")
            x, _ = tiny_data.test.batch(torch.arange(48))
            with torch.no_grad(), recording(tiny_teacher, POINTS) as theirs, recording(result.model, POINTS) as ours:
                tiny_teacher(x)
                result.model(x)
            goals = [theirs[point] for point in POINTS]
            return float(matching([ours[point] for point in POINTS], goals, mean_squares(goals)))

        assert distance(3.0) < 0.8 * distance(0.0)

    def test_a_network_without_hidden_layers_is_refused(self, tmp_path: Path, tiny_data: Data, quick: Make) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).eval()
        recipe = quick(objective__hidden=0.1, objective__hsic_x=0.0, objective__hsic_y=0.0, teacher__minimum=0.0)
        with pytest.raises(InputError, match=r"no hidden layer to compare; set .* objective\.hidden to 0"):
            pwoa.prune(net, tiny_data, recipe=recipe, folder=tmp_path / "run")

    def test_methods_without_a_teacher_do_not_match_it(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(method="advprune", objective__hidden=0.1)
        material, batch = batch_of(tiny_data, recipe)
        stage = AdvPrune(copy.deepcopy(tiny_teacher), tiny_teacher, material, recipe).stages[0]
        assert set(stage.loss(batch).parts) == {"classification", "admm"}


class TestTightening:
    def test_the_way_begins_at_the_start_rate_and_ends_at_the_constraint(self) -> None:
        weights = {"large": nn.Parameter(torch.randn(1000)), "small": nn.Parameter(torch.randn(20))}
        constraint = Constraint(weights, {"large": 10, "small": 15})
        assert constraint.on_the_way(4, 0.0).kept == {"large": 250, "small": 15}  # never fewer than in the end
        assert constraint.on_the_way(4, 0.5).kept == {"large": 10 + 240 // 8, "small": 15}
        for share in (1.0, 1.7):
            assert constraint.on_the_way(4, share).kept == constraint.kept
        numbers = [constraint.on_the_way(2, share / 10).kept["large"] for share in range(11)]
        assert numbers == sorted(numbers, reverse=True)

    def test_the_search_tightens_at_each_update_and_the_masks_are_of_the_end(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(search__start_rate=2.0, search__epochs=5, sparsity__rate=8.0)
        material, _ = batch_of(tiny_data, recipe)
        student = copy.deepcopy(tiny_teacher)
        search, finetune = Pwoa(student, tiny_teacher, material, recipe).stages
        assert isinstance(search, Search)
        kept = []
        for epoch in range(5):
            search.before_step(epoch * 10, 10)
            auxiliary = search.state_dict()["admm"]["auxiliary"]
            kept.append(sum(int(value.count_nonzero()) for value in auxiliary.values()))
        size = sum(weight.numel() for weight in prunable(student).values())
        assert kept[0] == pytest.approx(size / 2, abs=3)
        assert kept == sorted(kept, reverse=True)
        assert len(set(kept)) == 5
        assert kept[-1] == size // 8
        finetune.begin()
        assert sum(int(weight.count_nonzero()) for weight in prunable(student).values()) == size // 8

    @pytest.mark.parametrize(("epochs", "interval"), [(1, 3.0), (2, 1.0), (5, 3.0), (5, 5.0), (4, 0.25)])
    def test_the_constraint_is_the_whole_one_in_time_whenever_updates_come(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, epochs: int, interval: float
    ) -> None:
        recipe = quick(search__start_rate=2.0, search__epochs=epochs, search__interval=interval, sparsity__rate=8.0)
        material, _ = batch_of(tiny_data, recipe)
        search = Pwoa(copy.deepcopy(tiny_teacher), tiny_teacher, material, recipe).stages[0]
        for step in range(epochs * 10):
            search.before_step(step, 10)
        auxiliary = search.state_dict()["admm"]["auxiliary"]
        size = sum(value.numel() for value in auxiliary.values())
        assert sum(int(value.count_nonzero()) for value in auxiliary.values()) == size // 8

    @pytest.mark.parametrize(
        ("interval", "steps", "due"), [(1.0, 7, [7, 14]), (0.5, 4, [2, 4, 6, 8, 10]), (2.0, 6, [12])]
    )
    def test_updates_come_at_whole_multiples_of_the_interval_also_within_an_epoch(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, interval: float, steps: int, due: list[int]
    ) -> None:
        recipe = quick(search__interval=interval, search__epochs=3, search__rho_growth=2.0)
        material, _ = batch_of(tiny_data, recipe)
        search = Pwoa(copy.deepcopy(tiny_teacher), tiny_teacher, material, recipe).stages[0]
        seen, before = [], search.state_dict()["admm"]["rho"]
        for step in range(3 * steps):
            search.before_step(step, steps)
            now = search.state_dict()["admm"]["rho"]
            seen += [step] if now > before else []
            before = now
        assert seen == due

    @pytest.mark.parametrize("at", [7, 15])
    def test_killed_and_resumed_it_ends_with_the_same_bits(
        self,
        tmp_path: Path,
        tiny_teacher: nn.Module,
        tiny_data: Data,
        quick: Make,
        killed: Callable[[int], Progress],
        at: int,
    ) -> None:
        recipe = quick(
            search__interval=0.25, search__start_rate=2.0, objective__hidden=0.1, sparsity__allocation="lamp"
        )
        whole = pwoa.prune(tiny_teacher, tiny_data, rate=8, recipe=recipe, folder=tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            pwoa.prune(tiny_teacher, tiny_data, rate=8, recipe=recipe, folder=tmp_path / "cut", progress=killed(at))
        again = pwoa.prune(tiny_teacher, tiny_data, rate=8, recipe=recipe, folder=tmp_path / "cut")
        assert all(
            torch.equal(value, again.model.state_dict()[name]) for name, value in whole.model.state_dict().items()
        )

    @pytest.mark.parametrize("rate", [0.5, 0.99])
    def test_a_start_below_1_is_refused(self, rate: float) -> None:
        with pytest.raises(InputError, match=rf"search\.start_rate = {rate}; allowed: 0, or at least 1"):
            Recipe().with_settings({"search.start_rate": rate})


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "mnist"])
def test_the_robust_presets_are_beside_the_papers_and_example_free(data: str) -> None:
    robust, paper = load_recipe(f"{data}-robust"), load_recipe(data)
    assert (robust.data.name, robust.threat) == (paper.data.name, paper.threat)
    assert robust.objective.hidden > 0
    assert robust.search.start_rate > 1
    assert robust.sparsity.allocation == "lamp"
    assert robust.training.mix == 0
    assert (paper.objective.hidden, paper.search.start_rate) == (0, 0)
