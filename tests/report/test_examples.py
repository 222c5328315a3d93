"""The images of an evaluation that people look at."""

from __future__ import annotations

import io
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

from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.evaluation.examples import COUNT, EXAMPLES, first_of_each_class, load_examples
from pwoa.report.html import png


def test_the_first_of_each_class_come_first() -> None:
    labels = torch.tensor([5, 5, 5, 1, 5, 1, 2])
    assert first_of_each_class(labels, 3).tolist() == [0, 3, 6]
    assert first_of_each_class(labels, 5).tolist() == [0, 1, 3, 5, 6]
    assert first_of_each_class(labels).tolist() == list(range(7))


def test_examples_are_those_images_within_the_radius(made: Path, tiny_data: Data) -> None:
    examples, about = load_examples(made / "evaluation" / EXAMPLES)
    assert len(examples) == COUNT
    assert about["radius"] == 0.05
    x, labels = tiny_data.test.batch(torch.tensor([example.place for example in examples]))
    for example, image, label in zip(examples, x, labels.tolist(), strict=True):
        assert example.label == label
        assert np.array_equal(example.pixels, (255 * image).round().to(torch.uint8).numpy())
        assert example.attacked is not None
        moved = np.abs(example.attacked.astype(int) - example.pixels)
        assert 0 < moved.max() <= 0.05 * 255 + 1
        assert 1 / 3 <= example.natural.confidence <= 1


def test_teacher_and_model_show_the_same_images(made: Path) -> None:
    folders = [made / "runs" / "pwoa" / "evaluation" / name / EXAMPLES for name in ("teacher", "model")]
    teacher, model = (load_examples(folder)[0] for folder in folders)
    assert [example.place for example in teacher] == [example.place for example in model]


@pytest.mark.parametrize("cut", [0, 7, 100, 1000, -1])
def test_a_damaged_file_of_examples_is_refused_in_a_line(made: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / EXAMPLES
    path.write_bytes((made / "evaluation" / EXAMPLES).read_bytes()[:cut])
    with pytest.raises(InputError):
        load_examples(path)
    shutil.copy(made / "evaluation" / "verdicts.safetensors", path)
    with pytest.raises(InputError, match="no file of examples"):
        load_examples(path)


@given(
    st.sampled_from([1, 3]).flatmap(
        lambda c: arrays(np.uint8, st.tuples(st.just(c), st.integers(1, 9), st.integers(1, 9)))
    )
)
def test_a_picture_is_read_back_by_another_library(pixels: NDArray[np.uint8]) -> None:
    image = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(image.reshape(*pixels.shape[1:], -1).transpose(2, 0, 1), pixels)
