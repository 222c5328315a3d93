"""Prune adversarially robust networks without adversarial examples, and keep their robustness."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.4.0"

if TYPE_CHECKING:
    from pwoa.data.load import load_data as load_data
    from pwoa.deploy.bench import bench as bench
    from pwoa.deploy.export import export as export
    from pwoa.errors import InputError as InputError
    from pwoa.evaluation.comparison import compare as compare
    from pwoa.evaluation.evaluate import evaluate as evaluate
    from pwoa.models.checkpoints.inspection import inspect_checkpoint as inspect_checkpoint
    from pwoa.models.load import load_model as load_model
    from pwoa.paper import reproduce as reproduce
    from pwoa.recipe import Evaluation as Evaluation
    from pwoa.recipe import Recipe as Recipe
    from pwoa.recipe import load_recipe as load_recipe
    from pwoa.report.page import report as report
    from pwoa.runs.pretrain import pretrain as pretrain
    from pwoa.runs.prune import prune as prune
    from pwoa.share.publish import push_to_hub as push_to_hub
    from pwoa.share.publish import save_pretrained as save_pretrained
    from pwoa.threat import Threat as Threat

_HOMES = {
    "Evaluation": "pwoa.recipe",
    "InputError": "pwoa.errors",
    "Recipe": "pwoa.recipe",
    "Threat": "pwoa.threat",
    "bench": "pwoa.deploy.bench",
    "compare": "pwoa.evaluation.comparison",
    "evaluate": "pwoa.evaluation.evaluate",
    "export": "pwoa.deploy.export",
    "inspect_checkpoint": "pwoa.models.checkpoints.inspection",
    "load_data": "pwoa.data.load",
    "load_model": "pwoa.models.load",
    "load_recipe": "pwoa.recipe",
    "pretrain": "pwoa.runs.pretrain",
    "prune": "pwoa.runs.prune",
    "push_to_hub": "pwoa.share.publish",
    "report": "pwoa.report",
    "reproduce": "pwoa.paper",
    "save_pretrained": "pwoa.share.publish",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `pwoa --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pwoa' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if home.__name__ == f"pwoa.{name}" else getattr(home, name)  # a room of that name is called itself


def __dir__() -> list[str]:
    return __all__
