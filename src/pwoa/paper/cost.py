"""What runs will take, in seconds, from what others have taken on the same device."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from pwoa.attacks.registry import find_attack, parse_attacks
from pwoa.methods import PruningMethod, find_method
from pwoa.paper.cells import Cell, packaged
from pwoa.recipe import Recipe

IMAGES = {"mnist": (60000, 10000), "cifar10": (50000, 10000), "cifar100": (50000, 10000), "mnist-mini": (10000, 2000)}
"""Training and test images of the data sets of the plans."""
BROKEN_EARLY = 0.1
"""What AutoAttack costs on a network that is not robust, against one that is."""
_REFERENCE = "NVIDIA H200"


class Rates:
    """Rates of a device: those that were measured on it, corrected by what the rows of finished runs say.

    where: the device that the rates are of; another than this one where nothing is known of this one.
    """

    def __init__(self, device: str, rows: Iterable[Mapping[str, Any]] = (), cells: Iterable[Cell] = ()) -> None:
        tables = packaged("rates.toml")
        self._rates = tables.get(device, tables[_REFERENCE])
        recipes = {cell.run: cell.recipe for cell in cells}
        factors: dict[str, list[float]] = {}
        for row in rows:
            if row.get("device") == device and row.get("run") in recipes and row.get("training_seconds"):
                whole = row["training_seconds"] + row.get("evaluation_seconds", 0.0)
                guess = self._guess(row["architecture"], recipes[row["run"]])
                factors.setdefault(row["architecture"], []).append(whole / guess)
        self._factors = {name: statistics.median(values) for name, values in factors.items()}
        self.where = device if device in tables or factors else _REFERENCE

    def seconds(self, cell: Cell) -> float:
        """Return what a run, or the measurement of a teacher, will take."""
        return self._corrected(cell.key.architecture, cell.recipe, cell.measures)

    def training(self, recipe: Recipe) -> float:
        """Return what the training of a teacher will take."""
        return self._corrected(recipe.teacher.architecture, recipe)

    def _corrected(self, architecture: str, recipe: Recipe, measures: bool = False) -> float:
        factor = self._factors.get(architecture, statistics.median(self._factors.values() or [1.0]))
        return factor * self._guess(architecture, recipe, measures)

    def _guess(self, architecture: str, recipe: Recipe, measures: bool = False) -> float:
        rate = self._rates.get(architecture, self._rates["resnet18"])
        train, test = IMAGES.get(recipe.data.name, IMAGES["mnist-mini"])
        method = find_method(recipe.method)
        robust = measures or recipe.training.mix > 0 or recipe.objective.distillation > 0 or not method.prunes
        seconds = rate["start"] + self._evaluation(rate, recipe, test, robust)
        if measures:
            return float(seconds)
        epochs = sum(method.stage_epochs(recipe))
        mix = recipe.training.mix if issubclass(method, PruningMethod) else float(method.attacks)
        size = recipe.pretrain.lite if not method.prunes else 1.0
        training = epochs * train * (rate["epoch"] / 50_000 + mix * (recipe.pretrain.steps + 1) * rate["attack"] / 1e6)
        return float(seconds + training / size**0.5)

    @staticmethod
    def _evaluation(rate: Mapping[str, float], recipe: Recipe, test: int, robust: bool) -> float:
        evaluation, images = recipe.evaluation, min(recipe.evaluation.images or test, test)
        attacks = [find_attack(name) for name in parse_attacks(evaluation.attacks)]
        steps = {attack.loss: 0 for attack in attacks if attack.short}
        for attack in attacks:
            if attack.short:  # a longer PGD goes on from a shorter one
                steps[attack.loss] = max(steps[attack.loss], attack.steps or 1)
        seconds = images * sum(steps.values()) * rate["attack"] / 1e6
        if any(not attack.short for attack in attacks):
            share = 1.0 if robust else BROKEN_EARLY
            seconds += share * rate["autoattack"] * min(evaluation.long or images, images) / 1000
        elif evaluation.strong:
            seconds += min(evaluation.strong, images) * 100 * rate["attack"] / 1e6
        return seconds


def time_text(seconds: float) -> str:
    """Write a time as people do: 40 s, 12 min, 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
