"""A dozen images of an evaluation, what its attacks made of them, and what the model says: for people to look at.

They are the first of each class in turn, so nobody picked them, and evaluations of the same images show the same ones.
Nothing is attacked for them: `Attempts` are kept while the attacks of the evaluation run.
"""

import hashlib
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

from pwoa.data.images import Images
from pwoa.devices import exact_float32
from pwoa.errors import InputError, first_line
from pwoa.evaluation.subject import Subject
from pwoa.models.border import as_logits, evaluating
from pwoa.storage.folder import replacing, sealed, unsealed
from pwoa.storage.reading import parse_json, read_bytes, read_safetensors

EXAMPLES = "examples.safetensors"
"""What the file is called in the folder of an evaluation."""
COUNT, LARGEST = 12, 64
"""How many images, and how many pixels wide or high they are kept at most."""
_LIMIT = 1 << 20
"""Bytes of a file of examples; ours have some hundred thousand at most."""


@dataclass
class Attempts:
    """What the attacks of an evaluation have made of a few images: what broke one first, else what was tried last.

    places: those of the images among all that are evaluated.
    images: float32 [n, C, H, W]. attacks: by which attack each was made; nothing before one has tried.
    """

    places: Tensor
    images: Tensor
    attacks: list[str]
    broken: list[bool]

    @classmethod
    def on(cls, images: Images) -> "Attempts":
        """Return those on the images that are shown, before any attack."""
        places = first_of_each_class(images.labels).to(images.pixels.device)
        return cls(places, images.batch(places)[0], [""] * len(places), [False] * len(places))

    def note(self, attack: str, places: Tensor, tried: Tensor, broken: Tensor) -> None:
        """Keep what an attack made of the images in these places, as far as they are shown and unbroken."""
        found = (self.places[:, None] == places).nonzero()
        for mine, theirs in found.tolist():
            if not self.broken[mine]:
                self.images[mine] = tried[theirs]
                self.attacks[mine], self.broken[mine] = attack, bool(broken[theirs])


@dataclass(frozen=True)
class Answer:
    """What a model says of an image: a class, and how sure it is, from 0 to 1."""

    label: int
    confidence: float


@dataclass(frozen=True)
class Example:
    """A test image, by its place among them, and what a model says of it, before and after an attack.

    pixels, attacked: uint8 [C, H, W]; attacked and under_attack are None, and attack is nothing, where none has tried.
    """

    place: int
    label: int
    pixels: NDArray[np.uint8]
    natural: Answer
    attack: str
    attacked: NDArray[np.uint8] | None
    under_attack: Answer | None


def first_of_each_class(labels: Tensor, count: int = COUNT) -> Tensor:
    """Return the places of the first image of each class, then of the second of each, and so on, in order."""
    order, seen = [], dict[int, int]()
    for place, label in enumerate(labels.tolist()):
        order.append((seen.get(label, 0), place))
        seen[label] = seen.get(label, 0) + 1
    return torch.tensor(sorted(place for _, place in sorted(order)[:count]))


def keep_examples(path: Path, subject: Subject, attempts: Attempts) -> None:
    """Ask the subject's model what it says of the images, before and after, and write all of it."""
    x, labels = subject.images.batch(attempts.places)
    model = as_logits(subject.model, subject.data.classes)
    with evaluating(subject.model), exact_float32(), torch.no_grad():
        answers = _answers("natural", model(x)) | _answers("attacked", model(attempts.images))
    tensors = {"place": attempts.places, "label": labels, "pixels": _small(x), "attacked": _small(attempts.images)}
    arrays = {name: np.ascontiguousarray(value.cpu().numpy()) for name, value in (tensors | answers).items()}
    save_examples(path, arrays, {"model": subject.fingerprint, "attacks": attempts.attacks})


def save_examples(path: Path, arrays: dict[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write, atomically, images and answers, and of which model and by which attacks they are."""
    heading = sealed({**about, "sha256": _digest(arrays)})
    with replacing(path) as file:
        file.write(save(arrays, {"about": json.dumps(heading)}))


def load_examples(path: Path, model: Any) -> list[Example]:
    """Return what `save_examples` was given; anything else, or what is of another model, is an InputError.

    model: the fingerprint of the one that they must be of.
    """
    read_bytes(path, _LIMIT)
    content, metadata = read_safetensors(path)
    try:
        arrays = load(content)
        about = unsealed(parse_json(metadata["about"], "its heading"), "its heading")
        if about["sha256"] != _digest(arrays):
            raise ValueError("its checksum is wrong")
        if about["model"] != model:
            raise ValueError("it is of another model")
        return _examples(arrays, about["attacks"])
    except Exception as error:  # a damaged file can hold anything
        raise InputError(f"{path} is damaged or no file of examples ({first_line(error)}); evaluate again") from None


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    return hashlib.sha256(save(arrays)).hexdigest()


def _answers(name: str, logits: Tensor) -> dict[str, Tensor]:
    confidence, label = logits.float().softmax(1).max(1)
    return {f"{name}.class": label, f"{name}.confidence": confidence}


def _small(x: Tensor) -> Tensor:
    """Return images as uint8, made smaller if they are large."""
    height, width = x.shape[2:]
    if (most := max(height, width)) > LARGEST:
        size = (max(1, round(height * LARGEST / most)), max(1, round(width * LARGEST / most)))
        x = adaptive_avg_pool2d(x, size)
    return (255 * x).round().clamp(0, 255).to(torch.uint8)


def _examples(arrays: Mapping[str, NDArray[Any]], attacks: list[str]) -> list[Example]:
    pixels, changed, n = arrays["pixels"], arrays["attacked"], len(attacks)
    for images in (pixels, changed):
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape != pixels.shape:
            raise ValueError("its images are none")
    if not (1 <= n == len(pixels) and pixels.shape[1] and 1 <= min(pixels.shape[2:]) <= max(pixels.shape[2:]) <= 512):
        raise ValueError(f"it has images of {'×'.join(map(str, pixels.shape))}")

    def answers(name: str) -> list[Answer]:
        labels, confidences = arrays[f"{name}.class"], arrays[f"{name}.confidence"]
        if labels.shape != (n,) or confidences.shape != (n,) or not np.isfinite(confidences).all():
            raise ValueError(f"its answers are not those of {n} images")
        return [Answer(int(label), float(sure)) for label, sure in zip(labels, confidences, strict=True)]

    natural, attacked = answers("natural"), answers("attacked")
    return [
        Example(
            int(arrays["place"][i]),
            int(arrays["label"][i]),
            pixels[i],
            natural[i],
            str(attack),
            changed[i] if attack else None,
            attacked[i] if attack else None,
        )
        for i, attack in enumerate(attacks)
    ]
