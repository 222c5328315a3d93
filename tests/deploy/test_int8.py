"""int8: quantised by onnxruntime, the same each time, near its float32 twin, and honest about how near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.deploy.artefact import Artefact, read_about
from pwoa.deploy.export import export
from pwoa.models.load import load_model
from tests.conftest import TinyNet


@pytest.fixture(scope="module")
def digits_data() -> Data:
    return load_data("mnist-mini")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, digits_data: Data) -> Artefact:
    return export("embedded", "int8", tmp_path_factory.mktemp("int8"), data=digits_data, images=200)


def test_it_is_small_and_near_its_twin(made: Artefact, digits_data: Data) -> None:
    assert made.dense_bytes / made.bytes > 3.9
    assert made.check is not None
    assert made.check.same >= 198
    x, y = digits_data.test.batch(torch.arange(200))
    verdicts = load_model(made.path, digits_data)(x).argmax(1)
    torch_verdicts = load_model("embedded")(x).argmax(1)
    assert made.check.same == int((verdicts == torch_verdicts).sum())
    assert made.check.natural == pytest.approx(100 * float((verdicts == y).float().mean()))
    assert made.check.natural_torch == pytest.approx(100 * float((torch_verdicts == y).float().mean()))
    assert read_about(made.path)["checked"]["same"] == made.check.same


def test_weights_have_eight_bits_and_a_scale_for_each_channel(made: Artefact) -> None:
    graph = onnx.load(str(made.path)).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = [array for name, array in arrays.items() if array.ndim == 4]
    assert len(weights) == 2
    assert all(array.dtype == np.int8 for array in weights)
    scales = {array.size for name, array in arrays.items() if name.endswith("scale")}
    assert {len(array) for array in weights} <= scales


def test_logits_are_not_in_steps_of_eight_bits(made: Artefact, digits_data: Data) -> None:
    x, _ = digits_data.test.batch(torch.arange(200))
    logits = load_model(made.path, digits_data)(x)
    assert len(logits.unique()) > 1900
    assert made.check is not None
    assert made.check.difference < 0.05


def test_it_is_the_same_each_time(made: Artefact, digits_data: Data, tmp_path: Path) -> None:
    again = export("embedded", "int8", tmp_path, data=digits_data, images=200)
    assert again.sha256 == made.sha256


def test_it_is_quiet_and_says_how_far_it_is_off(
    tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = str(export(tiny_teacher, "int8", tmp_path, data=tiny_data))
    assert capfd.readouterr() == ("", "")
    assert "the same class on" in text
    assert "natural accuracy" in text
