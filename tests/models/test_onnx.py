from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from pwoa.attacks.gradient import fgsm
from pwoa.data.load import load_data
from pwoa.errors import InputError
from pwoa.evaluation.evaluate import evaluate
from pwoa.models import onnx as room
from pwoa.models.border import Normalised, as_logits, check_model
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import load_model
from pwoa.models.onnx import OnnxModel
from pwoa.threat import Threat

OUTPUTS: dict[str, list[str | int | None]] = {
    "logits": ["n", 4],
    "hidden": ["n", 75],
    "maps": ["n", 3, 5, 5],
    "loss": [],
    "top": ["n", 1],
}


def network() -> nn.Sequential:
    """What the graphs of these tests compute."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4)).eval()


def images(n: int) -> Tensor:
    return torch.rand(n, 2, 5, 5, generator=torch.Generator().manual_seed(1))


def save(
    path: Path,
    *,
    shape: Sequence[int | str] | None = ("n", 2, 5, 5),
    kind: int = TensorProto.FLOAT,
    outputs: Sequence[str] = ("logits",),
    extra: Sequence[str] = (),
    aside: str | None = None,
) -> Path:
    """The network as an ONNX file, built by hand; `aside` puts the weights into a file of that name."""
    state = network().state_dict()
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {"w1": state["0.weight"], "b1": state["0.bias"], "w2": state["3.weight"], "b2": state["3.bias"]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["maps"]),
        helper.make_node("Flatten", ["maps"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["logits"], transB=1),
        helper.make_node("ReduceMean", ["logits"], ["loss"], keepdims=0),
        helper.make_node("ArgMax", ["logits"], ["top"], axis=1),
    ]
    kinds = {name: TensorProto.INT64 if name == "top" else kind for name in OUTPUTS}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name in ("x", *extra)],
        [helper.make_tensor_value_info(name, kinds[name], OUTPUTS[name]) for name in outputs],
        [numpy_helper.from_array(value.numpy().astype(dtype), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=aside is not None, location=aside, size_threshold=0)
    return path


def refused(path: Path, x: Tensor | None = None, **options: Any) -> str:
    """What is said of a file that cannot be opened, or with `x`, run."""

    def use() -> None:
        model = OnnxModel(path, **options)
        if x is not None:
            model(x)

    with pytest.raises(InputError) as caught:
        use()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save(tmp_path / "net.onnx")


def assert_equal(model: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(model(x), network()(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_logits_are_those_of_the_same_network_in_torch(file: Path, n: int) -> None:
    assert_equal(OnnxModel(file), images(n))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_graph_with_a_fixed_batch_takes_any_number_of_images(tmp_path: Path, batch: int, n: int) -> None:
    assert_equal(OnnxModel(save(tmp_path / "net.onnx", shape=(batch, 2, 5, 5))), images(n))


@pytest.mark.parametrize("shape", [None, ("n", "c", "h", "w"), ("n", 2, "side", "side")])
def test_a_graph_that_leaves_sizes_open_is_run(tmp_path: Path, shape: Sequence[int | str] | None) -> None:
    assert_equal(OnnxModel(save(tmp_path / "net.onnx", shape=shape)), images(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_images_are_cast_to_what_the_graph_takes(tmp_path: Path, dtype: torch.dtype) -> None:
    x = images(3)
    for kind in (TensorProto.FLOAT16, TensorProto.FLOAT):
        found = OnnxModel(save(tmp_path / "net.onnx", kind=kind))(x.to(dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, network()(x).detach(), atol=5e-3, rtol=5e-3)


def test_the_layout_of_the_images_in_memory_is_no_matter(file: Path) -> None:
    assert_equal(OnnxModel(file), images(3).to(memory_format=torch.channels_last))
    assert_equal(OnnxModel(file), images(6)[::2])


@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        (("maps", "logits"), None),
        (("hidden", "logits"), 4),
        (("logits", "top", "loss", "maps"), None),
    ],
)
def test_the_logits_are_found_among_several_outputs(
    tmp_path: Path, outputs: Sequence[str], classes: int | None
) -> None:
    path = save(tmp_path / "net.onnx", shape=(2, 2, 5, 5), outputs=outputs)
    assert_equal(OnnxModel(path, classes), images(3))


@pytest.mark.parametrize(
    ("outputs", "classes", "message"),
    [
        (("hidden", "logits"), None, "returns 2 things, of which 2 could be the logits"),
        (("hidden", "logits"), 10, "returns 2 things, of which 0 could be the logits"),
        (("maps",), 4, "net.onnx gives an output of shape (2, 3, 5, 5) for 2 images, not a row of logits an image"),
        (("loss",), 4, "net.onnx gives an output of shape () for 2 images"),
        (("top",), 4, "not a tensor of logits"),
    ],
)
def test_outputs_that_cannot_be_the_logits_are_refused(
    tmp_path: Path, outputs: Sequence[str], classes: int | None, message: str
) -> None:
    assert message in refused(save(tmp_path / "net.onnx", outputs=outputs), images(2), classes=classes)


@pytest.mark.parametrize(
    ("shape", "x", "message"),
    [
        (("n", 2, 5, 5), torch.zeros(2, 1, 5, 5), "takes inputs of 2×5×5, the images are 1×5×5; choose the data"),
        ((3, 2, 5, 5), torch.zeros(3, 2, 5, 6), "takes inputs of 2×5×5, the images are 2×5×6"),
        (("n", 2, "h", "w"), torch.zeros(2, 3, 8, 8), "takes inputs of 2×?×?, the images are 3×8×8"),
        (("n", 2, 5, 5), torch.zeros(2, 50), "takes inputs of 2×5×5, the images are 50"),
        (("n", "c", "h", "w"), torch.zeros(2, 2, 6, 6), "net.onnx fails on images of 2×6×6: "),
    ],
)
def test_images_of_another_shape_are_refused(
    tmp_path: Path, shape: Sequence[int | str], x: Tensor, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "net.onnx", shape=shape)
    said = refused(path, x)
    assert capfd.readouterr().err == ""
    assert message in said
    assert str(path) in said
    assert "ONNXRuntimeError" not in said


def test_check_says_so_without_running(file: Path) -> None:
    model = OnnxModel(file)
    model.check(images(2))
    with pytest.raises(InputError, match="takes inputs of 2×5×5, the images are 2×4×4"):
        model.check(torch.zeros(1, 2, 4, 4))


@pytest.mark.parametrize(
    "content", [b"", b"hello, world", b"\x80\x04K\x01.", None], ids=["empty", "text", "pickle", "cut"]
)
def test_what_is_not_onnx_is_refused(file: Path, content: bytes | None, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:200] if content is None else content)
    assert refused(file).startswith(f"{file} is not an ONNX model that onnxruntime can run: ")
    assert capfd.readouterr().err == ""


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.onnx") == f"{tmp_path / 'no.onnx'} does not exist"
    assert refused(tmp_path) == f"{tmp_path} is not a file"


def test_an_operator_of_a_library_of_its_own_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Run", ["x"], ["y"], domain="my.library")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([node], "net", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.library", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "net.onnx")
    assert "my.library" in refused(tmp_path / "net.onnx")


def test_a_graph_must_take_images_alone(tmp_path: Path) -> None:
    assert "has 2 inputs (x, mask); export it with one, the images" in refused(
        save(tmp_path / "a.onnx", extra=["mask"])
    )
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([node], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "b.onnx")
    assert "takes tensor(uint8), not tensor(float) or tensor(float16); export it for images in [0, 1]" in refused(
        tmp_path / "b.onnx"
    )


def test_without_onnxruntime_it_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refused(file) == "ONNX models need onnxruntime: pip install 'pwoa[onnx]'"


def test_a_gradient_is_refused_where_one_would_be_tracked(file: Path) -> None:
    model = OnnxModel(file)
    x = images(2).requires_grad_()
    with pytest.raises(InputError) as caught:
        model(x)
    assert str(caught.value) == (
        f"{file} is an ONNX model, which gives no gradients; use the attacks natural, square, square-paper, or transfer"
    )
    with torch.no_grad():
        assert_equal(model, x)
    assert not model(images(2)).requires_grad
    assert OnnxModel.differentiable is False


def test_an_attack_by_gradients_says_so(file: Path) -> None:
    with pytest.raises(InputError, match="gives no gradients"):
        fgsm(OnnxModel(file), images(2), torch.tensor([0, 1]), Threat(radius=0.1))


def test_the_weights_of_the_graph_are_not_the_callers_to_change(file: Path) -> None:
    model, x = OnnxModel(file), images(2)
    model(x).fill_(9.0)
    assert_equal(model, x)
    assert torch.equal(x, images(2))


def test_it_passes_for_a_network(file: Path) -> None:
    model = OnnxModel(file, classes=4)
    twin = copy.deepcopy(model).to("cpu").eval()
    assert_equal(twin, images(2))
    assert list(twin.parameters()) == []
    check_model(twin, images(2), 4)
    assert as_logits(twin, 4)(images(2)).shape == (2, 4)
    with pytest.raises(InputError, match="gives 4 classes, the data has 10"):
        check_model(twin, images(2), 10)


def test_its_natural_accuracy_is_that_of_the_network(file: Path) -> None:
    labels = network()(images(40)).argmax(1)
    labels[:10] = (labels[:10] + 1) % 4
    data = ((images(40), labels), (images(40), labels))
    scores = evaluate(OnnxModel(file), data, attacks="natural", threat=Threat(radius=0.1), device="cpu", batch=16)
    assert scores["natural"] == 75.0


def test_a_normalisation_outside_the_graph_is_done_before_it(file: Path, tmp_path: Path) -> None:
    mean, std = (0.4, 0.1), (0.2, 0.5)
    inside = Normalised(network(), mean, std)
    labels = inside(images(40)).argmax(1)
    data = load_data(((images(40), labels), (images(40), labels)))
    model = load_model(str(file), data, mean=mean, std=std)
    torch.testing.assert_close(model(images(5)), inside(images(5)).detach(), atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="gives no gradients"):
        model(images(2).requires_grad_())
    options: Any = {"attacks": "natural,square", "threat": Threat(radius=0.1), "device": "cpu", "checks": False}
    scores = evaluate(str(file), data, mean=mean, std=std, folder=tmp_path / "inside", **options)
    assert scores["natural"] == 100.0
    assert evaluate(str(file), data, **options)["natural"] < 100
    assert fingerprint(model) != fingerprint(load_model(str(file), data))
    with pytest.raises(InputError, match="holds another evaluation"):
        evaluate(str(file), data, folder=tmp_path / "inside", **options)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.4,), (0.2,), "the mean has length 1; give one number a channel, 2 in all"),
        ((0.4, 0.1), None, "the std is missing"),
    ],
)
def test_a_normalisation_that_does_not_fit_is_refused(file: Path, mean: Any, std: Any, message: str) -> None:
    data = load_data(((images(4), torch.arange(4)), (images(4), torch.arange(4))))
    with pytest.raises(InputError, match=message):
        load_model(str(file), data, mean=mean, std=std)


def test_the_fingerprint_is_that_of_the_file(file: Path, tmp_path: Path) -> None:
    model = OnnxModel(file)
    assert fingerprint(model) == model.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()
    assert model.name == "net.onnx"
    assert OnnxModel(save(tmp_path / "other.onnx", shape=(1, 2, 5, 5))).fingerprint != model.fingerprint


def test_the_fingerprint_tells_weights_beside_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", aside="net.onnx.data")
    (tmp_path / "neighbour.txt").write_text("no part of it")
    model = OnnxModel(path)
    assert_equal(model, images(2))
    weights = tmp_path / "net.onnx.data"
    assert model.fingerprint == hashlib.sha256(path.read_bytes() + weights.read_bytes()).hexdigest()
    weights.write_bytes(np.zeros(weights.stat().st_size // 4, np.float32).tobytes())
    assert OnnxModel(path).fingerprint != model.fingerprint
    weights.unlink()
    assert refused(path).startswith(f"{path} is not an ONNX model that onnxruntime can run: ")


def test_it_takes_as_many_threads_as_torch(file: Path) -> None:
    session = OnnxModel(file)._session(torch.device("cpu"))
    assert session.get_session_options().intra_op_num_threads == torch.get_num_threads()


@pytest.mark.parametrize(
    ("available", "device", "expected"),
    [
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda:1", "cuda:1"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "cpu", "cpu"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "mps", "cpu"),
        (["CPUExecutionProvider"], "cuda:1", "cpu"),
    ],
)
def test_it_runs_where_the_images_are_if_onnxruntime_can(
    available: list[str], device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: available)
    assert room._placed(torch.device(device)) == torch.device(expected)


@pytest.mark.parametrize("location", ["../secret.bin", "a/../../secret.bin", "link.bin"])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(10_000))
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    path = save(tmp_path / "model" / "net.onnx", aside="weights.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    assert "outside its folder" in refused(path)


def test_a_file_whose_protobuf_never_ends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    message = b""
    for _ in range(3_000):  # graph, node, attribute, graph, …
        message = b"\x32" + _varint(len(message)) + message
        message = b"\x2a" + _varint(len(message)) + message
        message = b"\x0a" + _varint(len(message)) + message
    path.write_bytes(b"\x3a" + _varint(len(message)) + message)
    assert "its protobuf is damaged" in refused(path)


def _varint(number: int) -> bytes:
    content = b""
    while number > 0x7F:
        content, number = content + bytes([number & 0x7F | 0x80]), number >> 7
    return content + bytes([number])


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", shape=("batch_size", 2, 5, 5))
    path.write_bytes(path.read_bytes().replace(b"batch_size", b"batch\x8asize"))
    assert "names that are not text" in refused(path)
