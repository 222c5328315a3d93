"""A dozen images of an evaluation, attacked, and what the model says of them: for people to look at.

They are the first of each class in turn, so nobody picked them, and evaluations of the same images show the same ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pwoa.attacks.gradient import pgd
from pwoa.data.images import Images, as_float
from pwoa.devices import exact_float32
from pwoa.errors import InputError, first_line
from pwoa.evaluation.subject import Subject
from pwoa.models.border import as_logits, under_attack
from pwoa.storage.folder import replacing
from pwoa.storage.reading import parse_json, read_bytes, read_safetensors
from pwoa.threat import Threat

EXAMPLES = "examples.safetensors"
"""What the file is called in the folder of an evaluation."""
COUNT, STEPS, LARGEST = 12, 10, 64
"""How many images, the steps of PGD, and how many pixels wide or high they are kept at most."""
_LIMIT = 1 << 20
"""Bytes of a file of examples; ours have some hundred thousand at most."""


@dataclass(frozen=True)
class Answer:
    """What a model says of an image: a class, and how sure it is, from 0 to 1."""

    label: int
    confidence: float


@dataclass(frozen=True)
class Example:
    """A test image, by its place among them, and what a model says of it, before and after an attack.

    pixels, attacked: uint8 [C, H, W]; attacked and under_attack are None for a model without gradients.
    """

    place: int
    label: int
    pixels: NDArray[np.uint8]
    natural: Answer
    attacked: NDArray[np.uint8] | None
    under_attack: Answer | None


def first_of_each_class(labels: Tensor, count: int = COUNT) -> Tensor:
    """Return the places of the first image of each class, then of the second of each, and so on, in order."""
    order, seen = [], dict[int, int]()
    for place, label in enumerate(labels.tolist()):
        order.append((seen.get(label, 0), place))
        seen[label] = seen.get(label, 0) + 1
    return torch.tensor(sorted(place for _, place in sorted(order)[:count]))


def keep_examples(path: Path, subject: Subject, threat: Threat, seed: int) -> None:
    """Attack a dozen of the subject's images by PGD, and write them with the model's answers.

    Its steps are quarters of the radius, so that they cross the ball however short those of the evaluation are.
    """
    chosen = first_of_each_class(subject.images.labels).to(subject.device)
    x, labels = Images(subject.images.pixels, subject.images.labels).batch(chosen)
    model = as_logits(subject.model, subject.data.classes)
    generator = torch.Generator(subject.device).manual_seed(seed)
    with under_attack(subject.model), exact_float32():
        tensors = {"place": chosen, "label": labels, "pixels": _small(x), **_answers("natural", model(x).detach())}
        if subject.differentiable:
            attacked = pgd(model, x, labels, threat.in_quarters(), STEPS, generator=generator)
            tensors |= {"attacked": _small(attacked), **_answers("attacked", model(attacked).detach())}
    about = {"norm": threat.norm, "radius": threat.radius, "steps": STEPS, "size": list(x.shape[2:])}
    with replacing(path) as file:
        arrays = {name: np.ascontiguousarray(value.cpu().numpy()) for name, value in tensors.items()}
        file.write(save(arrays, {"about": json.dumps(about)}))


def load_examples(path: Path) -> tuple[list[Example], dict[str, Any]]:
    """Return what `keep_examples` wrote, and how they were attacked; anything else is an InputError."""
    read_bytes(path, _LIMIT)
    content, metadata = read_safetensors(path)
    try:
        tensors = load(content)
        about = parse_json(metadata["about"], "what it says of itself")
        return _examples(tensors), dict(about)
    except Exception as error:  # a damaged file can hold anything
        raise InputError(f"{path} is damaged or no file of examples ({first_line(error)}); evaluate again") from None


def _answers(name: str, logits: Tensor) -> dict[str, Tensor]:
    confidence, label = logits.float().softmax(1).max(1)
    return {f"{name}.class": label, f"{name}.confidence": confidence}


def _small(x: Tensor) -> Tensor:
    """Return images as uint8, made smaller if they are large."""
    height, width = x.shape[2:]
    if (most := max(height, width)) > LARGEST:
        size = (max(1, round(height * LARGEST / most)), max(1, round(width * LARGEST / most)))
        x = adaptive_avg_pool2d(as_float(x), size)
    return (255 * x).round().clamp(0, 255).to(torch.uint8)


def _examples(tensors: Mapping[str, NDArray[Any]]) -> list[Example]:
    pixels, changed = tensors["pixels"], tensors.get("attacked")
    n = len(tensors["place"])
    for images in (pixels, changed):
        if images is not None and (images.dtype != np.uint8 or images.ndim != 4 or images.shape != pixels.shape):
            raise ValueError("its images are none")
    if not (1 <= n == len(pixels) and pixels.shape[1] and 1 <= min(pixels.shape[2:]) <= max(pixels.shape[2:]) <= 512):
        raise ValueError(f"it has images of {'×'.join(map(str, pixels.shape))}")

    def answers(name: str) -> list[Answer]:
        labels, confidences = tensors[f"{name}.class"], tensors[f"{name}.confidence"]
        if labels.shape != (n,) or confidences.shape != (n,) or not np.isfinite(confidences).all():
            raise ValueError(f"its answers are not those of {n} images")
        return [Answer(int(label), float(sure)) for label, sure in zip(labels, confidences, strict=True)]

    natural = answers("natural")
    attacked = answers("attacked") if changed is not None else [None] * n
    return [
        Example(
            int(tensors["place"][i]),
            int(tensors["label"][i]),
            pixels[i],
            natural[i],
            None if changed is None else changed[i],
            attacked[i],
        )
        for i in range(n)
    ]
