"""What a checkpoint from anywhere holds: a network's weights under its own names, and what stood around them.

Wrappers' prefixes come off, normalisation becomes numbers, masks go into the weights, and what no forward pass uses is
dropped by name. Everything else stays, so that a tensor nobody understands is an error when the model is filled.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pwoa.errors import InputError
from pwoa.models.border import Normalisation, is_finite
from pwoa.models.checkpoints.files import WRAPPERS, Opened, float32
from pwoa.models.checkpoints.pruned import apply_masks, apply_scores

_NUMBERS = (("mean", "std"), ("mu", "sigma"), ("new_mean", "new_std"))
_HOLDERS = ("", "normalizer.", "normalize.", "normalization.", "normaliser.", "normalise.", "norm.", "0.")
_ELEMENTS = ("0.", "1.")
_WHY = {
    "n_classes": "a number, not a weight (MAIR)",
    "attacker.*": "the same tensors by a second name (Madry's robustness)",
    "sub_block1.*": "never used by the network (TRADES, LBGAT)",
    "masks": "put into the weights",
    "scores": "put into the weights (HYDRA, HARP)",
}


@dataclass(frozen=True)
class Checkpoint:
    """A file's network: `state` has its own names; `tensors` are all of the file, as named there. Both in float32.

    dropped: what is in `tensors` and not in `state`, and why. hidden: the network stood behind a layer of which the
    file holds nothing, so that layer may have normalised the images.
    """

    source: str
    state: dict[str, Tensor]
    tensors: dict[str, Tensor]
    container: str
    prefix: str
    normalisation: Normalisation | None
    dropped: dict[str, str]
    warnings: tuple[str, ...]
    dtype: str
    hidden: bool


def unpack(opened: Opened, source: str, kept: float | None = None) -> Checkpoint:
    """Take the network out of a checkpoint that `open_checkpoint` has opened.

    kept: the part of the weights that HYDRA's or HARP's scores keep, if the file has some (1: a dense network).
    """
    if kept is not None and not 0 < kept <= 1:
        raise InputError(f"the part of the weights that is kept must be above 0 and up to 1, not {kept!r}")
    tensors = float32(opened.tensors)
    peeled = _peel(tensors, source)
    if kept is None and 0 < opened.numbers.get("k", 0) < 1:
        kept = opened.numbers["k"]
    state, masks = apply_masks(peeled.state, source)
    state, scores, remark = apply_scores(state, source, kept)
    dropped = [*peeled.dropped, *["masks"] * bool(masks), *["scores"] * bool(scores)]
    return Checkpoint(
        source=source,
        state=state,
        tensors=tensors,
        container=opened.container,
        prefix=peeled.prefix,
        normalisation=peeled.normalisation,
        dropped={name: _WHY[name] for name in dropped},
        warnings=(*opened.remarks, *[remark] * bool(remark)),
        dtype=_dtype(opened.tensors.values()),
        hidden=peeled.hidden,
    )


def normalises(tensors: Mapping[str, Tensor], source: str) -> bool:
    """Tell whether there is a normalisation among the tensors."""
    return _peel(tensors, source).normalisation is not None


class _Peeled(NamedTuple):
    state: dict[str, Tensor]
    prefix: str
    normalisation: Normalisation | None
    dropped: list[str]
    hidden: bool


def _peel(tensors: Mapping[str, Tensor], source: str) -> _Peeled:
    """Take off wrapper after wrapper, and from each what it keeps beside the network."""
    state = _uncompiled(tensors)
    prefix, hidden = "", False
    dropped: list[str] = []
    normalisations: list[Normalisation] = []
    while True:
        for name, keys in _unused(state).items():
            dropped.append(name)
            state = {key: value for key, value in state.items() if key not in keys}
        for mean, std in _normalisations(state):
            normalisations.append(_normalisation(state[mean], state[std], f"{source}: {prefix}{mean}"))
            state = {key: value for key, value in state.items() if key not in (mean, std)}
        if not state:
            raise InputError(f"{source} holds no weights")
        step = next((step for step in (*WRAPPERS, *_ELEMENTS) if all(key.startswith(step) for key in state)), "")
        if not step:
            return _Peeled(state, prefix, _single(normalisations, source), dropped, hidden)
        prefix += step
        hidden = hidden or (step == "1." and not normalisations)
        state = {key.removeprefix(step): value for key, value in state.items()}


def _uncompiled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their names before torch.compile, which names a network `_orig_mod` wherever it stands."""
    renamed = {key.replace("_orig_mod.", ""): value for key, value in tensors.items()}
    return renamed if len(renamed) == len(tensors) else dict(tensors)


def _unused(state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of what no forward pass of the network uses, by kind."""
    unused: dict[str, list[str]] = {}
    if "n_classes" in state and state["n_classes"].numel() == 1:
        unused["n_classes"] = ["n_classes"]
    attacker = [key for key in state if key.startswith("attacker.")]
    if attacker and all(_is_twin(state, key) for key in attacker):
        unused["attacker.*"] = attacker
    sub = [key for key in state if key.startswith("sub_block1.")]
    if sub and any(key.startswith("block1.") for key in state):
        unused["sub_block1.*"] = sub
    return unused


def _is_twin(state: Mapping[str, Tensor], key: str) -> bool:
    """Tell whether a tensor of Madry's attacker is one of the network or of its normalisation."""
    twin = state.get(key.removeprefix("attacker.").replace("normalize.", "normalizer."))
    return twin is not None and torch.equal(twin, state[key])


def _normalisations(state: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Return the names of each mean and its standard deviation beside the network."""
    names = [(holder + mean, holder + std) for holder in _HOLDERS for mean, std in _NUMBERS]
    return [pair for pair in names if all(name in state and _is_row(state[name]) for name in pair)]


def _is_row(value: Tensor) -> bool:
    """Tell whether there is one number a channel: of shape C, C×1×1 or 1×C×1×1, or a single number."""
    return value.is_floating_point() and value.numel() in (*value.shape, 1)


def _normalisation(mean: Tensor, std: Tensor, source: str) -> Normalisation:
    if mean.numel() != std.numel() or not is_finite(mean) or not bool((std > 0).all()):
        raise InputError(f"{source} and its standard deviation are no normalisation: {mean.tolist()}, {std.tolist()}")
    return Normalisation(tuple(mean.flatten().tolist()), tuple(std.flatten().tolist()))


def _single(normalisations: list[Normalisation], source: str) -> Normalisation | None:
    """Return the normalisation of the images, if there is one; two that do something would be a guess."""
    real = [one for one in normalisations if not one.trivial]
    if any(not one.near(real[0]) for one in real):
        raise InputError(f"{source} holds two normalisations ({real[0]}, and another); save the network with one")
    return next(iter(real or normalisations), None)


def _dtype(values: Iterable[Tensor]) -> str:
    """Return the precision of most numbers."""
    sizes = Counter[str]()
    for value in values:
        if value.is_floating_point():
            sizes[str(value.dtype).removeprefix("torch.")] += value.numel()
    return max(sizes, key=lambda name: sizes[name], default="none")
