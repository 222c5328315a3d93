"""Prune adversarially robust networks without adversarial examples, and keep their robustness."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from pwoa.data import load_data as load_data
    from pwoa.errors import InputError as InputError
    from pwoa.evaluation import compare as compare
    from pwoa.evaluation import evaluate as evaluate
    from pwoa.models import from_pretrained as from_pretrained
    from pwoa.models import inspect_checkpoint as inspect_checkpoint
    from pwoa.models import load_model as load_model
    from pwoa.pipeline import prune as prune
    from pwoa.pretraining import pretrain as pretrain
    from pwoa.recipe import Recipe as Recipe
    from pwoa.recipe import Threat as Threat
    from pwoa.recipe import load_recipe as load_recipe
    from pwoa.run import load_run as load_run
    from pwoa.sharing import push_to_hub as push_to_hub
    from pwoa.sharing import save_pretrained as save_pretrained

_HOMES = {
    "InputError": "pwoa.errors",
    "Recipe": "pwoa.recipe",
    "Threat": "pwoa.recipe",
    "compare": "pwoa.evaluation",
    "evaluate": "pwoa.evaluation",
    "from_pretrained": "pwoa.models",
    "inspect_checkpoint": "pwoa.models",
    "load_data": "pwoa.data",
    "load_model": "pwoa.models",
    "load_recipe": "pwoa.recipe",
    "load_run": "pwoa.run",
    "pretrain": "pwoa.pretraining",
    "prune": "pwoa.pipeline",
    "push_to_hub": "pwoa.sharing",
    "save_pretrained": "pwoa.sharing",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `pwoa --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pwoa' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
