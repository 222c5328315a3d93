"""The images of an evaluation that people look at."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import pwoa
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.evaluation.examples import COUNT, EXAMPLES, Attempts, Example, first_of_each_class, load_examples
from pwoa.report.html import png
from tests.conftest import TinyNet


def test_the_first_of_each_class_come_first() -> None:
    labels = torch.tensor([5, 5, 5, 1, 5, 1, 2])
    assert first_of_each_class(labels, 3).tolist() == [0, 3, 6]
    assert first_of_each_class(labels, 5).tolist() == [0, 1, 3, 5, 6]
    assert first_of_each_class(labels).tolist() == list(range(7))


def test_what_breaks_an_image_first_is_kept_else_what_was_tried_last() -> None:
    images = Images(torch.zeros(6, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0, 1]))
    attempts = Attempts.on(Images(images.pixels[:3], images.labels[:3]))
    for number, (attack, broken) in enumerate((("one", [4, 1]), ("two", [0, 4]), ("three", []))):
        places = torch.tensor([4, 0, 1])
        tried = torch.full((3, 1, 2, 2), float(number + 1)) + places[:, None, None, None] / 10
        attempts.note(attack, places, tried, torch.isin(places, torch.tensor(broken, dtype=torch.int64)))
    assert attempts.places.tolist() == [0, 1, 2]
    assert attempts.attacks == ["two", "one", ""]
    assert attempts.broken == [True, True, False]
    assert torch.allclose(attempts.images[:, 0, 0, 0], torch.tensor([2.0, 1.1, 0.0]))


def read(folder: Path) -> list[Example]:
    """Return the examples of an evaluation, as those of the model that it is of."""
    return load_examples(folder / EXAMPLES, json.loads((folder / "result.json").read_text())["model"])


def test_examples_are_those_images_within_the_radius(made: Path, tiny_data: Data) -> None:
    examples = read(made / "evaluation")
    assert len(examples) == COUNT
    x, labels = tiny_data.test.batch(torch.tensor([example.place for example in examples]))
    for example, image, label in zip(examples, x, labels.tolist(), strict=True):
        assert example.label == label
        assert np.array_equal(example.pixels, (255 * image).round().to(torch.uint8).numpy())
        assert 1 / 3 <= example.natural.confidence <= 1
        if example.natural.label == label:
            assert example.attacked is not None
            moved = np.abs(example.attacked.astype(int) - example.pixels)
            assert 0 < moved.max() <= 0.05 * 255 + 1


@pytest.mark.parametrize("attacks", ["natural", "fgsm,pgd2", "pgd2,apgd-ce", "fmn,square"])
def test_what_is_shown_is_what_was_counted(
    attacks: str, tmp_path: Path, tiny_data: Data, tiny_teacher: TinyNet
) -> None:
    threat = pwoa.Threat(radius=0.3, step=0.15)
    labels = tiny_data.test.labels.clone()
    labels[:3] = (labels[:3] + 1) % 3  # which the teacher then gets wrong
    data = Data("mislabelled", tiny_data.train, Images(tiny_data.test.pixels, labels), 3)
    scores = pwoa.evaluate(
        tiny_teacher, data, attacks=attacks, threat=threat, checks=False, batch=5, folder=tmp_path / "e"
    )
    tried = {name: right for name, right in scores.right.items() if name not in ("natural", "fmn")}
    examples = read(tmp_path / "e")
    assert {example.natural.label == example.label for example in examples} == {True, False}  # both are tested
    for example in examples:
        right = bool(scores.right["natural"][example.place])
        assert (example.natural.label == example.label) == right
        if not right or not tried:
            assert (example.attack, example.attacked, example.under_attack) == ("", None, None)
            continue
        breaking = [name for name, verdicts in tried.items() if not verdicts[example.place]]
        assert example.attack == [*breaking, *reversed(tried)][0]
        assert example.under_attack is not None
        assert (example.under_attack.label != example.label) == bool(breaking)


def test_nothing_is_attacked_for_the_examples(tmp_path: Path, tiny_data: Data, tiny_teacher: TinyNet) -> None:
    def passes(folder: Path | None) -> int:
        """Return how many images go through the network in an evaluation."""
        seen: list[int] = []

        def count(module: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
            seen.append(len(given[0]) if isinstance(module, TinyNet) else 0)

        with register_module_forward_hook(count):
            pwoa.evaluate(
                tiny_teacher,
                tiny_data,
                attacks="pgd2,apgd-ce",
                threat=pwoa.Threat(),
                checks=False,
                images=20,
                folder=folder,
            )
        return sum(seen)

    assert passes(tmp_path / "kept") == passes(None) + 2 * COUNT


def test_teacher_and_model_show_the_same_images(made: Path) -> None:
    teacher, model = (read(made / "runs" / "pwoa" / "evaluation" / name) for name in ("teacher", "model"))
    assert [example.place for example in teacher] == [example.place for example in model]


@pytest.mark.parametrize("cut", [0, 7, 100, 1000, -1])
def test_a_damaged_file_of_examples_is_refused_in_a_line(made: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / EXAMPLES
    path.write_bytes((made / "evaluation" / EXAMPLES).read_bytes()[:cut])
    with pytest.raises(InputError):
        load_examples(path, "")
    shutil.copy(made / "evaluation" / "verdicts.safetensors", path)
    with pytest.raises(InputError, match="no file of examples"):
        load_examples(path, "")


def test_examples_that_were_changed_or_are_of_another_model_are_refused(made: Path, tmp_path: Path) -> None:
    model, path = json.loads((made / "evaluation" / "result.json").read_text())["model"], tmp_path / EXAMPLES
    content = bytearray((made / "evaluation" / EXAMPLES).read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="checksum"):
        load_examples(path, model)
    shutil.copy(made / "evaluation" / EXAMPLES, path)
    assert load_examples(path, model)
    with pytest.raises(InputError, match="of another model"):
        load_examples(path, "another")


@given(
    st.sampled_from([1, 3]).flatmap(
        lambda c: arrays(np.uint8, st.tuples(st.just(c), st.integers(1, 9), st.integers(1, 9)))
    )
)
def test_a_picture_is_read_back_by_another_library(pixels: NDArray[np.uint8]) -> None:
    image = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(image.reshape(*pixels.shape[1:], -1).transpose(2, 0, 1), pixels)
