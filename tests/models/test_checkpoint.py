from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.contents import unpack
from pwoa.models.checkpoints.files import load_state, open_checkpoint
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import load_model

fuzz = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


STATE = network().state_dict()


def saved(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def read_state(path: Path | str) -> dict[str, Tensor]:
    return unpack(open_checkpoint(path), str(path)).state


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor] = STATE) -> None:
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        dict(STATE),
        {"state_dict": STATE, "epoch": 3},
        {"model_state_dict": STATE, "optimizer_state_dict": {"state": {}, "param_groups": []}},
        {"model": STATE, "args": {"lr": 0.1}},
        {"net": STATE, "acc": 91.5},
        {f"module.{key}": value for key, value in STATE.items()},
        {f"module.model.{key}": value for key, value in STATE.items()},
        {"state_dict": OrderedDict((f"module.{key}", value) for key, value in STATE.items())},
        {"rmodel": {f"model.module.{key}": value for key, value in STATE.items()}},
        {"best": {"state_dict": STATE}, "epoch": 3},
        {"model": {"depth": 18}, "net": STATE},
        {f"module._orig_mod.{key}": value for key, value in STATE.items()},
    ],
    ids=[
        "bare",
        "dict",
        "state_dict",
        "model_state_dict",
        "model",
        "net",
        "module.",
        "module.model.",
        "both",
        "rmodel",
        "best",
        "settings called model",
        "_orig_mod.",
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_people_save_is_read(tmp_path: Path, content: Any, zipped: bool) -> None:
    assert_same(read_state(saved(tmp_path / "a.pt", content, _use_new_zipfile_serialization=zipped)))


def test_safetensors(tmp_path: Path) -> None:
    save_file({f"module.{key}": value for key, value in STATE.items()}, tmp_path / "a.safetensors")
    found = read_state(str(tmp_path / "a.safetensors"))
    assert sorted(found) == sorted(STATE)
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32_and_counters_stay(tmp_path: Path, dtype: torch.dtype) -> None:
    lower = {key: value.to(dtype) if value.is_floating_point() else value for key, value in STATE.items()}
    found = read_state(saved(tmp_path / "a.pt", lower))
    assert_same(found, {key: value.float() if value.is_floating_point() else value for key, value in lower.items()})
    assert found["0.weight"].dtype == torch.float32
    assert found["1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("name", ["model", "module"])
def test_a_network_of_ones_own_whose_only_part_is_called_like_a_wrapper(tmp_path: Path, name: str) -> None:
    """Such as one that normalises its images and then calls `self.model`."""
    own, other = nn.ModuleDict({name: network()}), nn.ModuleDict({name: network()})
    load_state(other, read_state(saved(tmp_path / "a.pt", own.state_dict())), "a.pt")
    assert_same(dict(other.state_dict()), own.state_dict())


def test_the_embedded_checkpoint_is_a_lenet() -> None:
    state = read_state("embedded")
    assert {value.dtype for value in state.values()} == {torch.float32}
    load_state(build("lenet", 10, 1), state, "embedded")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"checkpoint .*gone\.pt does not exist"):
        read_state(tmp_path / "gone.pt")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        read_state(tmp_path)


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.safetensors", "noending"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello world\n",
        b"<html>\n404: Not Found</html>",
        b"version https://git-lfs\noid 1",
        b"PK\x03\x04",
        bytes(64),
    ],
    ids=["empty", "newline", "text", "html", "lfs", "zip", "zeros"],
)
def test_something_else_than_a_checkpoint(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_state(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    save_file(dict(STATE), folder / "a.safetensors")
    saved(folder / "zip.pt", STATE)
    saved(folder / "legacy.pt", STATE, _use_new_zipfile_serialization=False)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["a.safetensors", "zip.pt", "legacy.pt"])
@fuzz
@given(part=st.floats(0, 0.999))
def test_a_truncated_file(tmp_path: Path, files: dict[str, bytes], name: str, part: float) -> None:
    path = tmp_path / name
    path.write_bytes(files[name][: int(part * len(files[name]))])
    with pytest.raises(InputError) as caught:
        read_state(path)
    assert name in str(caught.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", ["a.safetensors", "zip.pt", "legacy.pt"])
@fuzz
@given(part=st.floats(0, 0.999), byte=st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused(
    tmp_path: Path, files: dict[str, bytes], name: str, part: float, byte: int
) -> None:
    content = bytearray(files[name])
    content[int(part * len(content))] = byte
    path = tmp_path / name
    path.write_bytes(content)
    with suppress(InputError):
        assert all(isinstance(value, Tensor) for value in read_state(path).values())


class Code:
    """A pickle that makes a folder when it is loaded without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, zipped: bool, nested: bool) -> None:
    code = Code(tmp_path / "owned")
    content = {"state_dict": dict(STATE), "extra": code} if nested else code
    path = saved(tmp_path / "a.pt", content, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"a\.pt is refused: it is not a plain file of tensors") as caught:
        read_state(path)
    assert "torch.save(model.state_dict()" in str(caught.value)
    assert not (tmp_path / "owned").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "owned").exists()  # so the file was armed


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # torch's own, before it refuses
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_in_a_plain_pickle_does_not_run(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(Code(tmp_path / "owned"), protocol))
    with pytest.raises(InputError, match=r"a\.pkl"):
        read_state(path)
    assert not (tmp_path / "owned").exists()


def test_a_whole_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is refused.*torch\.save\(model\.state_dict\(\)"):
        read_state(saved(tmp_path / "a.pt", network()))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (list(STATE.values()), "found a list"),
        (torch.zeros(3), "found a Tensor"),
        ({}, "found nothing"),
        ({"epoch": 3, "lr": 0.1, "best": 4, "seed": 0}, "the keys epoch, lr, best and 1 more"),
        ({"state_dict": {}}, "found nothing"),
        ({0: torch.zeros(3), 1: torch.ones(3)}, "holds no state dict"),
        ({"a": torch.eye(3).to_sparse()}, r"has sparse, quantised or empty tensors \(a\)"),
        ({"a": torch.eye(3, device="meta")}, r"has sparse, quantised or empty tensors \(a\)"),
    ],
)
def test_a_file_without_a_state_dict(tmp_path: Path, content: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_state(saved(tmp_path / "a.pt", content))


def test_a_cascade_is_refused(tmp_path: Path) -> None:
    for content in ([STATE, STATE], {"state_dict": [STATE, STATE]}):
        with pytest.raises(InputError, match=r"holds 2 networks one after the other.*torch\.save\(state_dict\[0\]"):
            read_state(saved(tmp_path / "a.pt", content))


def test_counters_of_batches_may_be_missing_or_too_many() -> None:
    """Files from before torch 0.4.1 have none, and no forward pass in eval mode uses them."""
    old = {key: value for key, value in STATE.items() if not key.endswith("num_batches_tracked")}
    model = network()
    load_state(model, old | {"0.num_batches_tracked": torch.tensor(3)}, "a.pt")
    assert_same(dict(model.state_dict()))
    del old["1.running_var"]
    with pytest.raises(InputError, match=r"missing 1\.running_var$"):
        load_state(model, old, "a.pt")


def test_load_state_fills_the_model() -> None:
    model = network()
    load_state(model, {key: value + 1 for key, value in STATE.items()}, "here")
    assert_same(dict(model.state_dict()), {key: value + 1 for key, value in STATE.items()})


WITHOUT = {key: value for key, value in STATE.items() if key != "3.bias"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (WITHOUT, r"a\.pt does not fit Sequential: missing 3\.bias$"),
        (STATE | {"4.bias": torch.zeros(1)}, r"does not fit Sequential: unexpected 4\.bias$"),
        (STATE | {"3.weight": torch.zeros(10, 8)}, r"3\.weight is 10×8, the model wants 3×8"),
        (STATE | {"3.weight": torch.ones(3, 8).char()}, r"3\.weight is of torch\.int8, the model wants floats"),
        (WITHOUT | {"fc.bias": torch.zeros(3)}, r"missing 3\.bias; unexpected fc\.bias"),
        (
            {"conv.weight": torch.zeros(1)},
            r"missing 0\.weight, 0\.bias, 1\.weight and 6 more; unexpected conv\.weight",
        ),
        (
            STATE | {"0.bias": torch.tensor([0, float("nan")])},
            r"a\.pt holds NaN or infinite weights in 0\.bias",
        ),
        (STATE | {"1.running_var": torch.tensor([1, float("inf")])}, r"infinite weights in 1\.running_var"),
    ],
    ids=["missing", "unexpected", "shape", "integers", "both", "another architecture", "nan", "inf"],
)
def test_weights_that_do_not_fit_are_refused_and_the_model_is_untouched(state: dict[str, Tensor], message: str) -> None:
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError, match=message) as caught:
        load_state(model, state, "a.pt")
    assert "\n" not in str(caught.value)
    assert_same(dict(model.state_dict()), before)


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_numbers_of_one_byte_fill_a_network(kind: str) -> None:
    model, dtype = network(), getattr(torch, f"float8_{kind}")
    load_state(model, {key: value.to(dtype) for key, value in model.state_dict().items()}, "a.pt")
    bad = {key: torch.full(value.shape, float("nan")).to(dtype) for key, value in model.state_dict().items()}
    with pytest.raises(InputError, match="NaN or infinite weights"):
        load_state(model, bad, "a.pt")


def images(channels: int = 1, classes: int = 3) -> Data:
    generator = torch.Generator().manual_seed(0)
    split = Images(torch.rand(4, channels, 4, 4, generator=generator), torch.arange(4) % classes)
    return Data("mine", split, split, classes)


def test_load_model_fills_a_network_of_ones_own_and_returns_it_ready(tmp_path: Path) -> None:
    model = network().train()
    loaded = load_model(saved(tmp_path / "a.pt", {"net": STATE}), images(), architecture=model)
    assert loaded is model
    assert not loaded.training
    assert_same(dict(loaded.state_dict()))


def test_load_model_checks_the_model_on_the_data(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", STATE)
    with pytest.raises(InputError, match="gives 3 classes, the data has 4"):
        load_model(path, images(classes=4), architecture=network())
    with pytest.raises(InputError, match="cannot take images of 3×4×4"):
        load_model(path, images(channels=3), architecture=network())
    with pytest.raises(InputError, match=r"a\.pt does not fit LeNet: missing conv1\.weight"):
        load_model(path, images(), architecture="lenet")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": STATE}, "a model is given by a path, a name or an nn.Module, not by a OrderedDict"),
        ({"data": "mnist-mini"}, "the data must be what pwoa.load_data gives, not 'mnist-mini'"),
        ({"architecture": nn.Flatten}, "give a network or the name of an architecture, not <class"),
        ({"mean": 0.5, "std": 0.5}, "the mean must be numbers, one a channel, not 0.5"),
        ({"mean": ["a"], "std": [1.0]}, r"the mean must be numbers, one a channel, not \['a'\]"),
    ],
)
def test_load_model_says_what_it_cannot_take(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"source": saved(tmp_path / "a.pt", STATE), "data": images(), "architecture": network()}
    with pytest.raises(InputError, match=message):
        load_model(**(usual | given))


def test_the_fingerprint_is_that_of_all_weights_and_buffers() -> None:
    model, same = network(), network()
    same.load_state_dict(model.state_dict())
    assert fingerprint(model) == fingerprint(same)
    same.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert fingerprint(model) == fingerprint(same)
    assert len(fingerprint(model)) == 64
    same.get_buffer("1.running_mean")[0] += 1
    assert fingerprint(model) != fingerprint(same)
