"""A network filled from a checkpoint, whole or not at all, and what may be wrong when it does not fit."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from pwoa.errors import InputError, counted
from pwoa.models.architectures.registry import build
from pwoa.models.border import Normalisation, normalised
from pwoa.models.checkpoints.contents import Checkpoint, normalises, unpacked
from pwoa.models.checkpoints.files import Opened, fitted, float32, load_state, misfit
from pwoa.models.checkpoints.inspection import Guess, guess_architecture, likeness

_SHARED = 0.5


def fill(
    model: nn.Module,
    opened: Opened,
    source: str,
    given: Normalisation | None = None,
    kept: float | None = None,
    channels: int | None = None,
) -> nn.Module:
    """The model with the weights of a file; behind a normalisation if the file holds one, or one is given.

    A file with exactly the model's own tensors fills it as it is, whatever they are called. From any other the network
    is unpacked first; every tensor must fit, and the error says what to try. channels: those of the images, if known.
    """
    tensors = float32(opened.tensors)
    if not misfit(model, tensors):
        if given is not None and normalises(tensors, source):
            raise InputError(f"{source}: the network normalises its images itself; leave out the mean and std")
        load_state(model, tensors, source)
        return normalised(model, given)
    found = unpacked(opened, source, kept)
    if misfit(model, found.state):
        nearest = min(tensors, found.state, key=lambda state: _strangers(model, state))
        load_state(model, nearest, source, _likely_fix(model, found.state))
    agreed = _agreed(found, given)
    agreed = agreed.for_channels(channels) if agreed and channels else agreed
    load_state(model, found.state, source)
    return normalised(model, agreed)


def recognised(found: Checkpoint, classes: int, channels: int) -> nn.Module:
    """A new network of the registered architecture that the file is of, for images with these classes and channels."""
    guess = guess_architecture(found.state)
    if guess is None:
        near = likeness(found.state)
        raise InputError(
            f"{found.source} is of no registered architecture{near and f' ({near})'}; "
            "for a network of your own give --arch MODULE:FUNCTION (in Python the network itself)"
        )
    if wrong := _other_data(guess, classes, channels):
        raise InputError(f"{found.source} is a {guess.architecture}, but {wrong}")
    return build(guess.architecture, classes, channels)


def _likely_fix(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Why the tensors of a file may not fit a network, and what to try."""
    theirs = guess_architecture(state)
    if theirs is None:
        return _foreign_prefix(model, state) or likeness(state)
    mine = guess_architecture(model.state_dict())
    if mine is not None and mine.architecture == theirs.architecture:
        return _other_data(theirs, mine.classes, mine.channels)
    return f"it looks like a {theirs.architecture}: try --arch {theirs.architecture}"


def _strangers(model: nn.Module, state: Mapping[str, Tensor]) -> int:
    """How many names are in one of the two alone."""
    return len(fitted(model, state).keys() ^ model.state_dict().keys())


def _other_data(guess: Guess, classes: int, channels: int) -> str:
    if guess.classes != classes:
        return f"the file has {counted(guess.classes, 'class', 'classes')}, the data has {classes}"
    if guess.channels != channels:
        return f"the file takes {guess.channels}-channel images, the data has {channels}-channel ones"
    return ""


def _foreign_prefix(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """What the names of the file have before those of the model, if most have the same."""
    own = list(model.state_dict())
    for prefix in {key.removesuffix(own[0]) for key in state if key.endswith("." + own[0])}:
        if sum(prefix + key in state for key in own) > _SHARED * len(own):
            return f"the names in the file have the prefix {prefix!r}; save the network without it"
    return ""


def _agreed(found: Checkpoint, given: Normalisation | None) -> Normalisation | None:
    """The normalisation of the file or the one given, which must not contradict each other."""
    own = found.normalisation
    if own is not None and given is not None and not own.for_channels(len(given.mean)).near(given):
        raise InputError(f"{found.source} normalises by {own}, not by {given}; leave out the mean and std")
    if own is None and given is None and found.hidden:
        raise InputError(
            f"{found.source}: the network stood behind another layer ({found.prefix}…), most likely a normalisation, "
            "of which the file holds nothing; give its --mean and --std (0 and 1 a channel if it did nothing)"
        )
    return own or given
