"""Low rates take fewer epochs and lower learning rates, where a recipe says so."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods import METHODS
from pwoa.methods.pace import pace_notes, paced
from pwoa.methods.pwoa import Pwoa
from pwoa.recipe import Recipe, flat, load_recipe, recorded_recipe, to_toml

Make = Callable[..., Recipe]


def at(rate: float, **changes: object) -> Recipe:
    given = {name.replace("__", "."): value for name, value in changes.items()}
    return load_recipe("cifar10-robust").with_settings({"sparsity.rate": rate, **given})


def written(recipe: Recipe) -> Recipe:
    """Return the recipe as a file says it."""
    return Recipe().with_tree(tomllib.loads(to_toml(recipe)), "a file")


class TestTheRule:
    @pytest.mark.parametrize(
        ("rate", "epochs", "learning_rate"),
        [
            (1.0, (2, 1), 0.00625),
            (2.0, (2, 1), 0.0125),
            (4.0, (4, 2), 0.025),
            (8.0, (8, 3), 0.05),
            (16.0, (12, 4), 0.1),
        ],
    )
    def test_epochs_follow_the_logarithm_of_the_rate_and_learning_rates_the_rate(
        self, rate: float, epochs: tuple[int, int], learning_rate: float
    ) -> None:
        recipe = paced(at(rate))
        assert (recipe.search.epochs, recipe.finetune.epochs) == epochs
        assert recipe.search.learning_rate == pytest.approx(learning_rate)
        assert recipe.finetune.learning_rate == pytest.approx(learning_rate)

    def test_from_the_full_rate_on_nothing_else_changes(self) -> None:
        for recipe in (at(16.0), at(100.0), at(4.0, search__full_rate=0), at(8.0, sparsity__budget="macs")):
            assert paced(recipe) == recipe.with_settings({"search.full_rate": 0})

    def test_multiply_adds_count_double(self) -> None:
        assert paced(at(4.0, sparsity__budget="macs")).search == paced(at(8.0)).search
        assert paced(at(8.0, sparsity__budget="macs")).search == paced(at(16.0)).search

    @pytest.mark.parametrize("rate", [1.5, 3.0, 4.0, 7.0, 8.0, 15.9])
    def test_rho_ends_as_large(self, rate: float) -> None:
        whole, recipe = at(16.0).search, paced(at(rate)).search
        grown = [one.rho_growth ** (one.epochs / one.interval) for one in (whole, recipe)]
        assert grown[0] == pytest.approx(grown[1])
        assert recipe.epochs <= whole.epochs

    def test_without_a_rate_to_start_from_it_counts_from_1(self) -> None:
        assert paced(at(4.0, search__start_rate=0)).search.epochs == 6

    def test_an_allocation_is_learned_in_fewer_epochs_too(self) -> None:
        epochs = [
            paced(written(at(rate, search__allocation_epochs=6))).search.allocation_epochs for rate in (4.0, 8.0, 16.0)
        ]
        assert epochs == [2, 4, 6]

    @pytest.mark.parametrize(("full", "start"), [(0.5, 0.0), (1.0, 0.0), (2.0, 2.0), (1.5, 4.0)])
    def test_a_full_rate_that_the_start_is_beyond_is_refused(self, full: float, start: float) -> None:
        with pytest.raises(InputError, match=r"^settings: search\.full_rate = [\d.]+; allowed: above \d") as caught:
            Recipe().with_settings({"search.full_rate": full, "search.start_rate": start})
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("key", ["search.epochs", "search.learning_rate", "finetune.epochs", "search.rho_growth"])
    def test_what_somebody_chose_stays_and_the_rest_is_as_before(self, key: str) -> None:
        value = {"search.epochs": 20, "search.learning_rate": 0.7, "finetune.epochs": 5, "search.rho_growth": 1.3}[key]
        section, _, name = key.partition(".")
        before = flat(paced(at(4.0)))
        for given in ({key: value}, {section: {name: value}}, [f"{key}={value}"], [f"{section}={{{name}={value}}}"]):
            now = flat(paced(at(4.0).with_settings(given).with_settings({"training.seed": 0})))
            different = {name for name in now if now[name] != before[name]}
            assert now[key] == value
            assert different == ({key, "search.rho_growth"} if key == "search.epochs" else {key})

    def test_what_a_file_says_beside_a_full_rate_is_for_that_rate(self, tmp_path: Path) -> None:
        file = tmp_path / "own.toml"
        file.write_text("[sparsity]\nrate = 4\n[search]\nepochs = 30\nfull_rate = 16\n")
        assert paced(load_recipe(file)).search.epochs == 15

    def test_what_was_given_makes_no_other_recipe(self) -> None:
        given = Recipe().with_settings({"search.epochs": 50})
        assert given == Recipe()
        assert hash(given) == hash(Recipe())
        assert "given" not in flat(given)
        assert load_recipe(given).given == {"search.epochs"}

    @pytest.mark.parametrize("rate", [4.0, 16.0, 64.0])
    def test_what_comes_back_is_for_its_rate(self, rate: float) -> None:
        once = paced(at(rate))
        assert once.search.full_rate == 0
        assert paced(once) == once

    @pytest.mark.parametrize("rate", [4.0, 16.0, 64.0])
    def test_a_file_of_what_was_trained_trains_the_same_at_another_rate(self, rate: float) -> None:
        trained = paced(at(rate, finetune__epochs=9))
        again = paced(written(trained).with_settings({"sparsity.rate": 2.0}))
        assert (again.search, again.finetune) == (trained.search, trained.finetune)


def test_a_run_says_what_is_other_than_in_the_recipe() -> None:
    asked, rest = at(4.0), "; --set still wins, and --set search.full_rate=0 turns this off"
    begin = "at rate 4, below 16, this recipe trains with "
    assert pace_notes(asked, Pwoa.complete(asked)) == [
        f"{begin}fewer epochs (4 + 2, not 12 + 4) and lower learning rates (0.025 and 0.025, not 0.1 and 0.1){rest}"
    ]
    given: dict[str, Any] = {"search.epochs": 12, "finetune.epochs": 4, "search.learning_rate": 0.1}
    asked = asked.with_settings(given)
    assert pace_notes(asked, Pwoa.complete(asked)) == [
        f"{begin}lower learning rates (0.1 and 0.025, not 0.1 and 0.1){rest}"
    ]
    given |= {"finetune.learning_rate": 0.1, "sparsity.allocation": "learned", "training.optimizer": "sgd"}
    asked = asked.with_settings(given)
    assert pace_notes(asked, Pwoa.complete(asked)) == [f"{begin}fewer epochs of the allocation (1, not 2){rest}"]
    for recipe in (at(16.0), at(4.0, search__full_rate=0)):
        assert pace_notes(recipe, Pwoa.complete(recipe)) == []
    macs = at(4.0, sparsity__budget="macs")
    (note,) = pace_notes(macs, Pwoa.complete(macs))
    assert note.startswith("at rate 4 of multiply-adds, below 8, this recipe trains with fewer epochs (8 + 3, ")
    magnitude = at(4.0, method="magnitude")
    assert METHODS["magnitude"].complete(magnitude) == magnitude


def test_methods_say_how_long_they_take_at_the_rate() -> None:
    epochs = {name: method.stage_epochs(method.complete(at(4.0))) for name, method in METHODS.items() if method.prunes}
    assert epochs["pwoa"] == epochs["advprune"] == (4, 2)
    assert epochs["hydra"] == epochs["harp"] == epochs["apd"] == (12, 4)
    assert epochs["magnitude"] == (4,)
    assert Pwoa.stage_epochs(Pwoa.complete(at(4.0, sparsity__allocation="learned"))) == (1, 4, 2)


@pytest.mark.parametrize(("method", "stages"), [("pwoa", {"search": 1, "finetune": 2}), ("magnitude", {"finetune": 6})])
def test_a_run_does_it_and_its_recipe_says_what_was_done(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    told: Any,
    method: str,
    stages: dict[str, int],
) -> None:
    recipe = quick(
        method=method,
        search__epochs=3,
        search__full_rate=64.0,
        finetune__epochs=6,
        finetune__learning_rate=0.064,
        sparsity__rate=4.0,
    )
    recipe = written(recipe)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", progress=told)
    taken = [line["stage"] for line in result.metrics if "epoch" in line]
    assert {name: taken.count(name) for name in stages} == stages
    assert len(taken) == sum(stages.values())
    rates = [line["learning_rate"] for line in result.metrics if line.get("stage") == "finetune"]
    assert rates[0] == pytest.approx(0.064 if method == "magnitude" else 0.004)
    recorded = recorded_recipe(tmp_path / "run")
    assert {stage: getattr(recorded, stage).epochs for stage in stages} == stages
    assert recorded.finetune.learning_rate == pytest.approx(rates[0])
    again = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", progress=told)
    assert again.metrics == result.metrics
    assert pwoa.prune(tiny_teacher, tiny_data, recipe=recorded, folder=tmp_path / "run").metrics == result.metrics


def test_epochs_that_are_set_are_those_that_are_trained(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = written(quick(search__epochs=6, search__full_rate=64.0, finetune__epochs=6, sparsity__rate=4.0))
    folder, given = tmp_path / "run", {"finetune": {"epochs": 3}}
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, settings=given, folder=folder)
    assert [line["stage"] for line in result.metrics] == ["search"] * 2 + ["finetune"] * 3
