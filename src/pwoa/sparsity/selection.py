"""Which weights of a network are pruned, which are left out and why, and which keep more than their share.

Every parameter of two or more dimensions is a weight, unless it is known to be something else or is excluded.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from pwoa.errors import InputError
from pwoa.models.hidden import LAYER_TYPES
from pwoa.recipe import SparsityRecipe

FEW = 9
"""A grouped convolution keeps so many weights an output, those of a 3×3 filter, or all where it has fewer."""
_SMALL = 3 * FEW
"""Beside it, other filters with at most so many inputs do too: those of a 3×3 filter over three channels."""

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (*LAYER_TYPES, *_TRANSPOSED, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Modules whose tensors called a weight are one, whatever the module is called."""
_NORM = re.compile(r"Norm(\dd)?$")
_POSITION = {"pos", "position", "positions", "positional", "posemb", "relative", "rpb", "rpe", "wpe"}
_OTHER = {"token": "token", "tokens": "token", "bias": "bias", "biases": "bias", "mask": "mask", "scores": "scores"}
DEFAULT = SparsityRecipe()


@dataclass(frozen=True)
class Selection:
    """The weights that are pruned by name, and why each other parameter of two or more dimensions is not.

    outputs: how many outputs a weight computes, where that is known. least: how many entries a weight keeps at least.
    """

    weights: dict[str, nn.Parameter] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Use:
    """A place in the network where a parameter is found; shared ones have several."""

    name: str
    layer: nn.Module
    leaf: str


def prunable(model: nn.Module, recipe: SparsityRecipe = DEFAULT) -> dict[str, nn.Parameter]:
    """Return the weights that can be pruned by name, each once even if layers share it."""
    return select(model, recipe).weights


def select(model: nn.Module, recipe: SparsityRecipe = DEFAULT) -> Selection:
    """Return which weights are pruned by the recipe's `include` and `exclude`, and why others are not."""
    uses: dict[int, list[_Use]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for use, parameter in _matrices(model):
        uses.setdefault(id(parameter), []).append(use)
        parameters[id(parameter)] = parameter
    names = [use.name for places in uses.values() for use in places]
    included = _matching(recipe.include, names, "include")
    excluded = _matching(recipe.exclude, names, "exclude")
    selection, layers = Selection(), dict[str, nn.Module]()
    for key, parameter in parameters.items():
        places = uses[key]
        name, given = places[0].name, {use.name for use in places}
        reasons = [_reason(use, parameter) for use in places]
        if given & excluded:
            selection.left_out[name] = "excluded"
        elif all(reasons) and not given & included:
            selection.left_out[name] = str(reasons[0])
        else:
            _check(places[0], parameter, selection.weights)
            selection.weights[name] = parameter
            for use in places:
                if (outputs := _outputs(use, parameter)) and name not in layers:
                    layers[name], selection.outputs[name] = use.layer, outputs
    if not selection.weights:
        left = f": {describe_left_out(selection.left_out)}" if selection.left_out else ""
        raise InputError(f"{type(model).__name__} has no weights to prune{left}")
    selection.least.update(_least(layers, selection))
    return selection


def smaller(rate: float, overall: float | None, macs: float | None = None) -> str:
    """Say how much smaller a network is: by its prunable weights, and by all parameters where that is another number.

    macs: the rate of multiply-adds, where it was pruned by that.
    Example: `smaller(4.0, 3.17)` is "4× smaller (3.17× over all parameters)".
    """
    other = overall is not None and abs(overall - rate) > 0.01 * rate
    compute = "" if macs is None else f"{macs:.4g}× fewer multiply-adds, "
    return f"{compute}{rate:.4g}× smaller" + (f" ({overall:.4g}× over all parameters)" if other else "")


def describe_left_out(left_out: dict[str, str], shown: int = 3) -> str:
    """Return the first few names with their reasons, and how many there are besides."""
    texts = [f"{name} ({reason})" for name, reason in list(left_out.items())[:shown]]
    more = len(left_out) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def _matrices(model: nn.Module) -> Iterator[tuple[_Use, nn.Parameter]]:
    """Return every parameter of two or more dimensions at each place that uses it, a module that is shared once."""
    for name, module in model.named_modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None and parameter.dim() > 1:
                yield _Use(f"{name}.{leaf}" if name else leaf, module, leaf), parameter


def _matching(patterns: Sequence[str], names: list[str], setting: str) -> set[str]:
    """Return the names that patterns match; each pattern must match one."""
    matched: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            nearest = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise InputError(f"sparsity.{setting}: {pattern!r} matches no weight of two or more dimensions{hint}")
        matched |= hits
    return matched


def _reason(use: _Use, parameter: Tensor) -> str | None:
    """Tell why a parameter is not a weight; None for a weight."""
    layer = use.layer
    if not parameter.is_floating_point():
        return "no real numbers"
    if _NORM.search(type(layer).__name__):
        return "normalisation"
    if isinstance(layer, _LAYERS) and "weight" in use.leaf:
        return None
    called = use.name.split(".")[-2:][0] if isinstance(layer, nn.Embedding) else use.leaf
    words = re.split(r"[^a-z]+", called.lower())
    if _POSITION.intersection(words):
        return "positions"
    if isinstance(layer, nn.Embedding):
        return None
    if parameter.numel() == max(parameter.shape):
        return "a vector"
    return next((_OTHER[word] for word in words if word in _OTHER), None)


def _check(use: _Use, parameter: nn.Parameter, weights: dict[str, nn.Parameter]) -> None:
    """Refuse a parameter that is not what the network computes with, or whose memory another one has too."""
    hidden = [key for key, value in vars(use.layer).items() if isinstance(value, Tensor) and use.leaf != key]
    if isinstance(use.layer, ParametrizationList) or any(use.leaf.startswith(f"{key}_") for key in hidden):
        raise InputError(
            f"{use.name} cannot be pruned, the layer computes its weight from it (as weight_norm does): make the "
            "weight plain (remove_parametrizations, remove_weight_norm or prune.remove), or name it in sparsity.exclude"
        )
    place = parameter.data_ptr()
    other = next((name for name, weight in weights.items() if place and weight.data_ptr() == place), None)
    if other:
        raise InputError(f"{use.name} and {other} are two parameters over the same memory; let both be one Parameter")


def _outputs(use: _Use, weight: Tensor) -> int | None:
    """Return how many outputs a weight computes; None where only the code of the network knows."""
    if isinstance(use.layer, _TRANSPOSED):
        return int(use.layer.out_channels)
    return len(weight) if isinstance(use.layer, _LAYERS) else None


def _least(layers: dict[str, nn.Module], selection: Selection) -> dict[str, int]:
    """Return how many entries weights keep at least in a network with grouped convolutions, such as depthwise ones.

    They and the filters over a few channels, as of the first layer, have few inputs an output, and little to spare.
    """
    groups = {name: int(getattr(layer, "groups", 0)) for name, layer in layers.items()}
    if max(groups.values(), default=0) <= 1:
        return {}
    least = {}
    for name, outputs in selection.outputs.items():
        weight = selection.weights[name]
        small = groups[name] == 1 and weight.shape[2:].numel() > 1 and weight.numel() <= _SMALL * outputs
        if groups[name] > 1 or small:
            least[name] = min(weight.numel(), FEW * outputs)
    return least
