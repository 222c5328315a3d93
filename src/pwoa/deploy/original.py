"""The model that is exported: its network in torch, what is known of it, and images to compare an artefact on."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.data.images import Data, Images
from pwoa.data.load import load_data
from pwoa.deploy.artefact import Check
from pwoa.errors import InputError, first_line
from pwoa.models.border import LogitModel, Normalised, as_logits, check_complete, evaluating, is_finite
from pwoa.models.checkpoints.files import EMBEDDED
from pwoa.models.checkpoints.folder import describe_model, find_folder, fingerprint, read_description, to_safetensors
from pwoa.models.checkpoints.inspection import guess_architecture
from pwoa.models.load import kind_of, load_model, trained_threat
from pwoa.models.onnx import OnnxModel
from pwoa.progress import Progress
from pwoa.recipe import recorded_recipe, records_recipe
from pwoa.runs.folder import Result, Run
from pwoa.sparsity import DEFAULT, describe_size
from pwoa.storage.folder import CHECKSUM, sealed

Source = nn.Module | Result | str | Path
"""What can be exported: a network; what `prune` and `pretrain` return; or whatever `load_model` takes."""
_BATCH = 250
_RATES = ("rate", "overall_rate", "parameters", "nonzero", "macs", "macs_dense", "macs_rate")


@dataclass(frozen=True)
class Original:
    """A copy of the model on the CPU, in eval mode, with what is known of it; images to compare on, if there are any.

    missing: why there are no images.
    """

    model: nn.Module
    about: dict[str, Any]
    data: Data | None
    images: int
    missing: str = ""

    @classmethod
    def of(
        cls,
        source: Source,
        data: Any = None,
        *,
        data_folder: str | Path | None = None,
        architecture: str | nn.Module | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        images: int = 1000,
        progress: Progress | None = None,
    ) -> "Original":
        """Load a model and the images it is for, which for a run are its own; both are checked."""
        if images < 1:
            raise InputError(f"an artefact is compared with torch on 1 image or more, not on {images}")
        folder = _folder(source)
        found, missing = _find_data(source, folder, data, data_folder, progress or Progress())
        if isinstance(source, Result):
            source = source.model
        if (not isinstance(source, nn.Module) and kind_of(source) == "onnx") or isinstance(source, OnnxModel):
            raise InputError("an ONNX file cannot be exported again; export the run or the checkpoint it was made from")
        given = _copy(source) if isinstance(source, nn.Module) else source
        model = load_model(given, found, architecture=architecture, mean=mean, std=std).cpu().eval()
        _check_weights(model)
        about = _known(source, folder, model, found)
        return cls(model.requires_grad_(False), about, found, images, missing)

    @cached_property
    def dense_bytes(self) -> int:
        """The bytes of the weights as a run keeps them, dense in float32."""
        return len(to_safetensors(self.model.state_dict()))

    @cached_property
    def test(self) -> Images:
        """The first test images."""
        return self._data.test.first(self.images).to("cpu")

    @property
    def sample(self) -> Tensor:
        """Two images, to trace the network with; a batch of one could be taken for a constant."""
        x = self.test.first(2).batch(torch.arange(min(2, len(self.test))))[0]
        return x if len(x) == 2 else x.repeat(2, 1, 1, 1)

    @property
    def images_to_test(self) -> Tensor:
        """A few test images, for an artefact that keeps some to be tested with."""
        few = self.test.first(8)
        return few.batch(torch.arange(len(few)))[0]

    @property
    def classes(self) -> int:
        """The classes of the data."""
        return self._data.classes

    @cached_property
    def logits(self) -> Tensor:
        """The logits of the first test images in torch."""
        return self.run(as_logits(self.model, self.classes))

    @torch.no_grad()
    def run(self, logits: LogitModel) -> Tensor:
        """Return the logits that a model has for the first test images."""
        batches = torch.split(torch.arange(len(self.test)), _BATCH)
        return torch.cat([logits(self.test.batch(index)[0]) for index in batches])

    def compare(self, logits: LogitModel) -> Check:
        """Compare an artefact with torch on the first test images."""
        ours, theirs, labels = self.logits, self.run(logits), self.test.labels
        largest = ours.abs().max().clamp_min(torch.finfo(ours.dtype).tiny)
        verdicts = ours.argmax(1), theirs.argmax(1)
        right = [100 * int((verdict == labels).sum()) / len(labels) for verdict in verdicts]
        difference = float((ours - theirs).abs().max() / largest)
        return Check(len(labels), difference, int((verdicts[0] == verdicts[1]).sum()), right[1], right[0])

    def calibration(self, images: int) -> Tensor:
        """Return natural training images, the same ones each time and a fair sample of them."""
        train = self._data.train.to("cpu")
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        return train.batch(order[:images])[0]

    @property
    def _data(self) -> Data:
        if self.data is None:
            raise InputError(self.missing)
        return self.data


def _folder(source: Source) -> Path | None:
    """Return the run folder that a source is, if it is one."""
    if isinstance(source, Result):
        return Path(source.folder)
    return None if isinstance(source, nn.Module) or not records_recipe(source) else Path(source)


def _find_data(
    source: Source, folder: Path | None, data: Any, data_folder: str | Path | None, progress: Progress
) -> tuple[Data | None, str]:
    """Load the images that are given, or those of the run; without any, say why there are none."""
    if data is not None:
        return load_data(data, data_folder=data_folder, progress=progress.reach), ""
    if source == EMBEDDED:
        return load_data("mnist-mini"), ""
    if folder is None:
        return None, "give the data that the model is for: --data (in Python: data=)"
    there = recorded_recipe(folder).data
    if there.name == "custom":
        return None, "the run was made from data given in Python; give them again: --data (in Python: data=)"
    try:
        where = data_folder or there.folder or None
        return load_data(there.name, data_folder=where, progress=progress.reach), ""
    except InputError as error:
        return None, f"the run's data are not to be had ({error}); give --data or --data-folder"


def _copy(model: nn.Module) -> nn.Module:
    """Copy a network, which stays as it is."""
    check_complete(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a user's own network can raise anything
        raise InputError(f"the model cannot be copied: {first_line(error)}") from None


def _check_weights(model: nn.Module) -> None:
    for name, value in model.state_dict().items():
        if not is_finite(value):
            raise InputError(f"the model holds NaN or infinite weights in {name}; it cannot be exported")


def _known(source: nn.Module | str | Path, folder: Path | None, model: nn.Module, data: Data | None) -> dict[str, Any]:
    """Gather what is known of a model: what it is, its rates, its threat, and what its run measured of it."""
    network = model.model if isinstance(model, Normalised) else model
    described: dict[str, Any] = {}
    if not isinstance(source, nn.Module) and kind_of(source) == "folder":
        described = read_description(find_folder(source), str(source))
    guess = guess_architecture(network.state_dict())
    classes, channels = (None, None) if guess is None else (guess.classes, guess.channels)
    classes, channels = described.get("classes") or classes, described.get("channels") or channels
    shape = None
    if data is not None:
        shape = list(data.test.pixels.shape[1:])
        classes, channels = data.classes, shape[0]
    own = fingerprint(model)
    threat = trained_threat(str(folder) if folder else source)
    about = {
        **describe_model(model, classes, channels),
        "format": 1,
        "input": {"shape": shape, "range": [0, 1], "normalisation": "inside"},
        "threat": None if threat is None else asdict(threat),
        **_rates(model, folder, data),
        "model": own,
        **(_measured(folder, own) if folder else {}),
    }
    if described.get("architecture"):
        about["architecture"] = described["architecture"]
    return about


def _rates(model: nn.Module, folder: Path | None, data: Data | None) -> dict[str, Any]:
    """Return how much is left of weights, parameters and multiply-adds; nothing of a model without prunable weights."""
    recipe = DEFAULT if folder is None else recorded_recipe(folder).sparsity
    x = None if data is None else data.test.first(1).to("cpu").batch(torch.arange(1))[0]
    try:
        with evaluating(model):
            found = describe_size(model, recipe, x)
    except InputError:  # there is nothing to prune
        return {}
    return {key: found[key] for key in _RATES if key in found}


def _measured(folder: Path, own: str) -> dict[str, Any]:
    """Return what a finished run measured, if it was of these very weights."""
    run = Run(folder)
    if not run.finished:
        return {}
    result = run.result()
    if result.get("model") != own:
        return {}
    return {
        "run": sealed(result)[CHECKSUM],
        "method": result["method"],
        "example_free": result["example_free"],
        "accuracy": result.get("pruned") or result["accuracy"],
        "accuracy_images": {"all": result["images"], **result.get("fewer", {})},
    }
