"""A network filled from a checkpoint, whole or not at all, and what may be wrong when it does not fit."""

from collections.abc import Mapping

from torch import Tensor, nn

from pwoa.errors import InputError, counted
from pwoa.models.border import Normalisation, normalise
from pwoa.models.checkpoints.contents import Checkpoint, normalises, unpack
from pwoa.models.checkpoints.files import Opened, float32, load_state, misfit, rename_for
from pwoa.models.checkpoints.inspection import Guess, guess_architecture, likeness

_SHARED = 0.5


class OtherImages(InputError):
    """A checkpoint is of a known architecture, `guess`, but for other images than those of the data."""

    def __init__(self, source: str, guess: Guess, wrong: str) -> None:
        super().__init__(f"{source} is a {guess.architecture}, but {wrong}")
        self.guess = guess


def fill(
    model: nn.Module,
    opened: Opened,
    source: str,
    given: Normalisation | None = None,
    kept: float | None = None,
    channels: int | None = None,
) -> nn.Module:
    """Put the weights of a file into the model; return it, behind a normalisation if the file or the user gives one.

    A file with exactly the model's own tensors fills it as it is, whatever they are called. From any other the network
    is unpacked first; every tensor must fit, and the error says what to try. channels: those of the images, if known.
    """
    tensors = float32(opened.tensors)
    if not misfit(model, tensors):
        if given is not None and normalises(tensors, source):
            raise InputError(f"{source}: the network normalises its images itself; leave out the mean and std")
        load_state(model, tensors, source)
        return normalise(model, given)
    contents = unpack(opened, source, kept)
    if misfit(model, contents.state):
        nearest = min(tensors, contents.state, key=lambda state: _strangers(model, state))
        load_state(model, nearest, source, _likely_fix(model, contents.state))
    by = _agreed_normalisation(contents, given)
    by = by.for_channels(channels) if by and channels else by
    load_state(model, contents.state, source)
    return normalise(model, by)


def recognise(contents: Checkpoint, classes: int | None, channels: int | None) -> Guess:
    """Return the registered architecture that a file is of; refuse other classes and channels than those given."""
    guess = guess_architecture(contents.state)
    if guess is None:
        near = likeness(contents.state)
        raise InputError(
            f"{contents.source} is of no registered architecture{near and f' ({near})'}; "
            "for a network of your own give --arch FILE.py:CLASS (in Python: architecture=, also the network itself)"
        )
    if wrong := _other_data(guess, classes, channels):
        raise OtherImages(contents.source, guess, wrong)
    return guess


def _likely_fix(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Say why the tensors of a file may not fit a network, and what to try."""
    saved = guess_architecture(state)
    if saved is None:
        return _foreign_prefix(model, state) or likeness(state)
    wanted = guess_architecture(model.state_dict())
    if wanted is not None and wanted.architecture == saved.architecture:
        return _other_data(saved, wanted.classes, wanted.channels)
    return f"it looks like a {saved.architecture}: try --arch {saved.architecture}"


def _strangers(model: nn.Module, state: Mapping[str, Tensor]) -> int:
    """Count the names that are in one of the two alone."""
    wanted = model.state_dict()
    return len(rename_for(wanted, state).keys() ^ wanted.keys())


def _other_data(guess: Guess, classes: int | None, channels: int | None) -> str:
    if classes is not None and guess.classes != classes:
        return f"the file has {counted(guess.classes, 'class', 'classes')}, the data has {classes}"
    if channels is not None and guess.channels != channels:
        return f"the file takes {guess.channels}-channel images, the data has {channels}-channel ones"
    return ""


def _foreign_prefix(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Say what the names of the file have before those of the model, if most have the same."""
    wanted = list(model.state_dict())
    for prefix in {key.removesuffix(wanted[0]) for key in state if key.endswith("." + wanted[0])}:
        if sum(prefix + key in state for key in wanted) > _SHARED * len(wanted):
            return f"the names in the file have the prefix {prefix!r}; save the network without it"
    return ""


def _agreed_normalisation(contents: Checkpoint, given: Normalisation | None) -> Normalisation | None:
    """Return the normalisation of the file or the one given, which must not contradict each other."""
    saved = contents.normalisation
    if saved is not None and given is not None and not saved.for_channels(len(given.mean)).near(given):
        raise InputError(f"{contents.source} normalises by {saved}, not by {given}; leave out the mean and std")
    if saved is None and given is None and contents.hidden:
        raise InputError(
            f"{contents.source}: the network stood behind another layer ({contents.prefix}…), most likely a "
            "normalisation, of which the file holds nothing; give its --mean and --std (0 and 1 a channel if it did "
            "nothing)"
        )
    return saved or given
