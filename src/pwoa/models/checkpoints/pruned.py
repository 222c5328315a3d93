"""Masks and scores that pruning methods leave in their files: put into the weights, or refused.

HYDRA (Sehwag et al. 2020) and HARP (Zhao & Wressnegger 2023) compute with `weight * mask`, where the mask keeps the
part k of each layer with the largest |popup_scores|. HYDRA's files do not say k; HARP's hold `k_score`, from which
k = σ(k_score)·(1 − k_min) + k_min with k_min = 0.1·K, and do not say K, the part of all weights that is kept.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pwoa.errors import InputError
from pwoa.models.border import is_finite

SCORES, RATE_SCORE, RATE = ".popup_scores", ".k_score", ".k"
_HARP_FLOOR = 0.1
_HARP_CLOSE = 0.02


class ScoresError(InputError):
    """What the scores of a file keep cannot be known."""


def apply_masks(state: Mapping[str, Tensor], source: str) -> tuple[dict[str, Tensor], list[str]]:
    """Multiply the weights by the 0/1 masks beside them; return the weights, and the names of the masks, now gone.

    `weight_orig` with `weight_mask` is torch.nn.utils.prune's; `weight` with `mask` or `weight_mask` is others'.
    """
    weights = dict(state)
    applied = []
    for key, mask in state.items():
        weight = _masked_by(key, state)
        if weight is None or mask.shape != state[weight].shape or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        kept, values = mask.bool(), state[weight]
        if not bool(values[kept].any()) and bool(values[~kept].any()):
            raise InputError(f"{source}: {key} is 1 where {weight} is pruned, not where it is kept; turn it round")
        del weights[key]
        weights.pop(weight)
        weights[weight.removesuffix("_orig")] = values * kept
        applied.append(key)
    return {key: weights[key] for key in _ordered(state, weights)}, applied


def _masked_by(key: str, state: Mapping[str, Tensor]) -> str | None:
    """Return the name of the tensor that a mask is for."""
    name = key.removesuffix("_mask")
    if name != key:
        return next((weight for weight in (f"{name}_orig", name) if weight in state), None)
    layer = key.removesuffix(".mask")
    return f"{layer}.weight" if layer != key and f"{layer}.weight" in state else None


def _ordered(state: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights in the order of the file."""
    names = dict.fromkeys(key.removesuffix("_orig") for key in state)
    return [key for key in dict.fromkeys([*names, *state]) if key in weights]


def apply_scores(
    state: Mapping[str, Tensor], source: str, kept: float | None
) -> tuple[dict[str, Tensor], list[str], str]:
    """Return the weights that the scores of HYDRA and HARP keep, the names of the scores, now gone, and a remark.

    kept: the part of the weights that is kept, 1 for a dense network; None if only the file can tell.
    """
    layers = [key.removesuffix(SCORES) for key in state if key.endswith(SCORES)]
    layers = [layer for layer in layers if f"{layer}.weight" in state]
    if not layers:
        return dict(state), [], ""
    scores = [layer + end for layer in layers for end in (SCORES, RATE_SCORE, RATE) if layer + end in state]
    weights = {key: value for key, value in state.items() if key not in scores}
    for key in scores:
        if not state[key].is_floating_point() or not is_finite(state[key]):
            raise InputError(f"{source}: {key} is not made of finite numbers, and keeps no part of the weights")
    if kept == 1:
        return weights, scores, ""
    if kept is None and all(_multiplied(state, layer) for layer in layers):
        return weights, scores, "the weights are 0 already where the scores are lowest: taken as they are"
    parts = _parts(state, layers, source, kept)
    for layer in layers:
        weights[f"{layer}.weight"] = _top(state[f"{layer}.weight"], state[layer + SCORES], parts[layer], layer, source)
    return weights, scores, ""


def _multiplied(state: Mapping[str, Tensor], layer: str) -> bool:
    """Tell whether some weights are 0, and those are the ones with the lowest scores."""
    weight, scores = state[f"{layer}.weight"], state[layer + SCORES].abs()
    zero = weight == 0
    if scores.shape != weight.shape or bool(zero.all()) or not bool(zero.any()):
        return False
    return bool(scores[zero].max() <= scores[~zero].min())


def _parts(
    state: Mapping[str, Tensor], layers: list[str], source: str, kept: float | None
) -> dict[str, float | Tensor]:
    """Return what part of each layer is kept, as far as the file and the user say it."""
    if all(_is_number(state, layer + RATE) for layer in layers):
        return {layer: float(state[layer + RATE]) for layer in layers}
    harp = all(_is_number(state, layer + RATE_SCORE) for layer in layers)
    if kept is None:
        raise ScoresError(
            f"{source} has the scores of {'HARP' if harp else 'HYDRA'}, and does not say what part of the weights they "
            "keep; in Python give load_model(…, kept=0.1), or kept=1 for a dense network"
            + ("" if harp else "; or take HYDRA's checkpoint_dense.pth.tar")
        )
    if not harp:
        return dict.fromkeys(layers, kept)
    floor = _HARP_FLOOR * kept
    parts: dict[str, float | Tensor] = {
        layer: torch.sigmoid(state[layer + RATE_SCORE].float()) * (1 - floor) + floor for layer in layers
    }
    sizes = {layer: state[f"{layer}.weight"].numel() for layer in layers}
    total = sum(float(parts[layer]) * sizes[layer] for layer in layers) / sum(sizes.values())
    if abs(total / kept - 1) > _HARP_CLOSE:
        raise ScoresError(
            f"{source}: HARP's k_score keeps {total:.3g} of the weights with kept={kept:g}; save the layers' w = "
            "weight * mask there, or give the right number (1 for a dense network)"
        )
    return parts


def _is_number(state: Mapping[str, Tensor], key: str) -> bool:
    return key in state and state[key].numel() == 1


def _top(weight: Tensor, scores: Tensor, part: float | Tensor, layer: str, source: str) -> Tensor:
    """Return the weight with all but the part of largest |score| set to 0, as HYDRA counts it."""
    if scores.shape != weight.shape:
        raise ScoresError(f"{source}: {layer}{SCORES} scores whole channels; save weight * mask where the file is from")
    dropped = int((1 - part) * weight.numel())
    mask = torch.ones(weight.numel(), dtype=weight.dtype)
    mask[scores.abs().flatten().argsort()[:dropped]] = 0
    return weight * mask.view_as(weight)
