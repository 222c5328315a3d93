"""What is measured: a model and the images it is measured on, and what tells one evaluation from another."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pwoa import __version__
from pwoa.attacks.registry import AUTOATTACK, REPLICA, STRONG, TRANSFER, find_attack, gradient_free, parse_attacks
from pwoa.data.images import Data, Images
from pwoa.devices import device_name
from pwoa.errors import InputError, first_line
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import as_logits, check_model, evaluating
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.replica import replica_of
from pwoa.recipe import Evaluation
from pwoa.threat import Threat


@dataclass(frozen=True)
class Subject:
    """A model and the images it is measured on, checked and on the device.

    data: what the images are of. twin: whether the surrogate is the network that the model was exported from.
    hashes: those of model, data and surrogate that are known already, and of the artefact that the model is of.
    """

    model: nn.Module
    images: Images
    data: Data
    device: torch.device
    surrogate: nn.Module | None = None
    twin: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Data,
        images: int,
        device: torch.device,
        surrogate: nn.Module | None = None,
        twin: bool = False,
    ) -> Subject:
        """Return the subject of so many test images (0: all), with copies of the networks, which are not changed."""
        test = data.test.first(images or len(data.test)).to(device)
        sample = test.batch(torch.arange(min(2, len(test)), device=device))[0]
        copies = [None if network is None else copy.deepcopy(network).to(device) for network in (model, surrogate)]
        for network in copies:
            if network is not None:
                check_model(network, sample, data.classes, logits_only=False)
        assert copies[0] is not None
        return cls(copies[0], test, data, device, copies[1], twin)

    @property
    def differentiable(self) -> bool:
        """Whether the model has gradients at all."""
        return getattr(self.model, "differentiable", True)

    @cached_property
    def replica(self) -> nn.Module | None:
        """What the model computes, with gradients, where it is an int8 graph that torch can compute."""
        replica = replica_of(self.model)
        return None if replica is None else replica.to(self.device).eval()

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the model, computed once."""
        return self.hashes.get("model") or fingerprint(self.model)

    def possible(self, attacks: str | Sequence[str], given: bool) -> tuple[str, ...]:
        """Return the attacks that this model can be given; for one without gradients the default is what is left.

        Natural accuracy is always measured, `transfer` wherever there is a surrogate (but a twin of a model that has
        gradients itself), and by default `replica` where there is one.
        """
        chosen = parse_attacks(attacks)
        if TRANSFER in chosen and self.surrogate is None:
            raise InputError("the attack transfer needs a surrogate: --surrogate MODEL (in Python: surrogate=)")
        if REPLICA in chosen and self.replica is None:
            raise InputError("the attack replica is for an int8 .onnx file, whose operators torch can compute")
        if not self.differentiable and not given:
            chosen = ("natural", "square", *([] if self.replica is None else [REPLICA]))
        transfers = self.surrogate is not None and not (self.twin and self.differentiable)
        chosen = tuple(dict.fromkeys(("natural", *chosen, *([TRANSFER] if transfers else []))))
        by_gradients = [name for name in chosen if find_attack(name).needs_gradients]
        if by_gradients and not self.differentiable:
            without = ", ".join(gradient_free())
            raise InputError(f"{by_gradients[0]} needs gradients, which this model has not; use {without}")
        sample = self.images.batch(torch.arange(min(2, len(self.images)), device=self.device))[0]
        if by_gradients:
            _check_gradients(self.model, "the model", sample, self.data.classes, by_gradients[0])
        for name, which, network in (
            (TRANSFER, "the surrogate", self.surrogate),
            (REPLICA, "its replica", self.replica),
        ):
            if network is not None and name in chosen:
                _check_gradients(network, which, sample, self.data.classes, name)
        return chosen

    def strong_images(self, evaluation: Evaluation) -> int:
        """Return on how many images the attack `strong` is to be run after the others, if it is."""
        included = {STRONG, AUTOATTACK} & set(evaluation.attacks)
        return 0 if included or not self.differentiable else min(evaluation.strong, len(self.images))

    def long_images(self, evaluation: Evaluation) -> int:
        """Return on how many images the long attacks among those of the evaluation are run."""
        return min(evaluation.long or len(self.images), len(self.images))

    def asked(self, evaluation: Evaluation, threat: Threat) -> dict[str, Any]:
        """Return what tells this evaluation from others; another version of pwoa may attack in another way."""
        return {
            "model": self.fingerprint,
            "architecture": _layers(self.model, self.surrogate),
            "data": self.hashes.get("data") or self.data.fingerprint(),
            "images": len(self.images),
            "attacks": list(evaluation.attacks),
            "strong": self.strong_images(evaluation),
            **({"long": self.long_images(evaluation)} if evaluation.long else {}),
            "threat": dataclasses.asdict(threat),
            "precision": evaluation.precision,
            "surrogate": None if self.surrogate is None else fingerprint(self.surrogate),
            "twin": self.twin or None,  # which earlier versions did not know
            "radii": [other.radius for other in curve_threats(evaluation, threat)],
            "batch": evaluation.batch,
            "seed": evaluation.seed,
            "checks": evaluation.checks,
            "version": __version__,
        }

    def about(self, asked: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return what result.json says of the model, the data and the circumstances."""
        shown = (
            "model",
            "data",
            "threat",
            "precision",
            "surrogate",
            "twin",
            "radii",
            "batch",
            "seed",
            "checks",
            "strong",
            "long",
        )
        return {
            "name": name,
            "dataset": self.data.name,
            "architecture": architecture_name(self.model) if self.differentiable else self.model.name,
            "images_of": len(self.data.test),
            **{key: asked[key] for key in shown if key in asked},
            "artefact": self.hashes.get("artefact"),
            "device": device_name(self.device),
            "versions": {"pwoa": __version__, "torch": torch.__version__},
        }


def curve_threats(evaluation: Evaluation, threat: Threat) -> list[Threat]:
    """Return the attacker at each radius of the security curve, its own among them; none without a curve.

    Verdicts are named by six digits of their radius; those of the attacker's own are there already.
    """
    if not evaluation.radii:
        return []
    different = {f"{radius:.6g}": radius for radius in (*evaluation.radii, threat.radius)}
    return [threat.at_radius(radius) for radius in sorted(different.values())]


def _layers(*networks: nn.Module | None) -> str:
    """Hash the networks as torch prints them: the same weights may be those of another activation."""
    return hashlib.sha256(re.sub(r" at 0x\w+", "", str(networks)).encode()).hexdigest()


def _check_gradients(model: nn.Module, which: str, x: Tensor, classes: int, attack: str) -> None:
    """Refuse a model that has no gradient at all with respect to the image; one that is zero is for the checks."""
    try:
        with evaluating(model), torch.enable_grad():
            at = x.clone().requires_grad_()
            torch.autograd.grad(as_logits(model, classes)(at).sum(), at)
    except Exception as error:  # a user's own forward can raise anything
        raise InputError(
            f"{attack} needs gradients, which {which} does not give ({first_line(error)}); "
            f"without them there are {', '.join(gradient_free())}"
        ) from None
