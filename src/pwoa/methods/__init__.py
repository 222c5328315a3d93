"""Methods: ways to prune, and to train a robust model, by name. A method is one file and one line here."""

from pwoa.errors import InputError, did_you_mean
from pwoa.methods.adversarial import Mart, Natural, PgdAt, RobustTraining, Trades
from pwoa.methods.advprune import AdvPrune, Magnitude
from pwoa.methods.apd import Apd
from pwoa.methods.fast_at import FastAt
from pwoa.methods.harp import Harp
from pwoa.methods.hbar import Hbar
from pwoa.methods.hydra import Hydra
from pwoa.methods.lbgat import Lbgat
from pwoa.methods.method import Method, PruningMethod
from pwoa.methods.pwoa import Pwoa

__all__ = ["METHODS", "Method", "PruningMethod", "RobustTraining", "find_method", "find_pruning", "find_training"]

METHODS: dict[str, type[PruningMethod] | type[RobustTraining]] = {
    method.name: method
    for method in (
        *(Pwoa, AdvPrune, Hydra, Apd, Harp, Magnitude),
        *(PgdAt, Trades, Mart, Hbar, Lbgat, FastAt, Natural),
    )
}


def find_method(name: str) -> type[PruningMethod] | type[RobustTraining]:
    """Return the method of that name, whether it prunes or trains from scratch."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"unknown method {name!r} ({did_you_mean(str(name), METHODS)})")
    return METHODS[name]


def find_pruning(name: str) -> type[PruningMethod]:
    """Return the method of pruning of that name."""
    method = find_method(name)
    if not issubclass(method, PruningMethod):
        raise InputError(f"{name} trains a model from scratch: use pwoa pretrain (in Python: pwoa.pretrain)")
    return method


def find_training(name: str) -> type[RobustTraining]:
    """Return the method of robust training of that name."""
    method = find_method(name)
    if not issubclass(method, RobustTraining):
        raise InputError(f"{name} prunes a robust model: use pwoa prune (in Python: pwoa.prune)")
    return method
