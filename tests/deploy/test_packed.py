"""Packed files: nothing is lost that should not be, every size is checked, and the page's own reader reads them."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_parts
from safetensors.torch import save
from torch import Tensor, nn

from pwoa.data.load import load_data
from pwoa.deploy.export import export
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.checkpoints.packed import KEY, pack, read_packed, to_packed, unpack
from pwoa.models.load import kind_of, load_model, trained_threat
from pwoa.recipe import load_recipe
from pwoa.report.inspection import inspect
from pwoa.runs.teacher import load_teacher
from pwoa.storage.folder import sealed
from tests.conftest import TinyNet
from tests.torture.mutations import mutate, mutate_json

PAGE = Path(__file__).parents[2] / "docs" / "packed-format.md"


def prune(model: nn.Module, rate: float) -> nn.Module:
    """Zero the smallest weights of every matrix, one over the rate of them stays."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                kept = max(1, int(parameter.numel() / rate))
                least = parameter.abs().flatten().topk(kept).values[-1]
                parameter[parameter.abs() < least] = 0
    return model.eval()


def lenet(rate: float = 10) -> nn.Module:
    torch.manual_seed(0)
    return prune(build("lenet@0.25", 10, 1), rate)


def equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


SPECIAL = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1.17549435e-38, 65504.0, -1.0])


@st.composite
def pruned(draw: st.DrawFn) -> Tensor:
    """A tensor of some shape with some part of it kept, and numbers that are hard to store among those."""
    shape = draw(st.lists(st.integers(1, 13), min_size=1, max_size=4))
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    value = torch.randn(shape, generator=chance) * float(10 ** draw(st.integers(-6, 3)))
    kept = torch.rand(shape, generator=chance) < draw(st.sampled_from([0.0, 0.05, 0.5, 0.9, 1.0]))
    value = value.mul_(kept)  # which leaves zeros of either sign
    flat = value.view(-1)[: len(SPECIAL)]
    flat.copy_(SPECIAL[: len(flat)])
    return value


@settings(max_examples=150, deadline=None)
@given(pruned())
def test_float32_comes_back_to_the_bit_and_is_never_larger(value: Tensor) -> None:
    parts, table = pack({"w": value}, {"w"})
    back = unpack(parts, table, "it")["w"]
    assert back.shape == value.shape
    positive = torch.where(value == 0, 0.0, value) if table["shapes"] else value  # a zero that was packed has no sign
    assert torch.equal(back.view(torch.int32), positive.view(torch.int32))
    assert sum(part.nbytes for part in parts.values()) <= value.nbytes


@settings(max_examples=150, deadline=None)
@given(pruned())
def test_rounded_values_are_near_and_zeros_stay_zeros(value: Tensor) -> None:
    for precision in ("float16", "int8"):
        parts, table = pack({"w": value}, {"w"}, precision)
        back = unpack(parts, table, "it")["w"]
        assert bool((back[value == 0] == 0).all())
        if precision == "int8":
            rows, near = value.view(len(value), -1), back.view(len(value), -1)
            step = rows.abs().amax(1, keepdim=True) / 127
            assert bool(((rows - near).abs() <= step * 0.5001 + 1e-40).all())
        else:
            assert torch.equal(back, value.half().float())


def test_what_is_no_weight_is_not_rounded() -> None:
    torch.manual_seed(0)
    model = Normalised(TinyNet(), [0.1307], [0.3081])
    parts, table = pack(model.state_dict(), {"model.conv.weight"}, "int8")
    assert set(table["shapes"]) == {"model.conv.weight"}
    back = unpack(parts, table, "it")
    for name, value in model.state_dict().items():
        assert torch.equal(back[name], value) or name == "model.conv.weight"
        assert back[name].dtype == value.dtype


def test_the_file_of_a_pruned_network_is_as_small_as_the_format_says(tmp_path: Path) -> None:
    model = lenet(10)
    made = export(model, "packed", tmp_path)
    weights = [value for value in model.state_dict().values() if value.dim() > 1]
    others = sum(value.nbytes for value in model.state_dict().values() if value.dim() == 1)
    kept, total = sum(int(value.count_nonzero()) for value in weights), sum(value.numel() for value in weights)
    header = made.bytes - 4 * kept - -(-total // 8) - others
    assert 0 < header < 6000
    assert made.path.stat().st_size == made.bytes


@pytest.mark.parametrize("values", ["float32", "float16", "int8"])
def test_load_model_reads_it_like_any_other(tmp_path: Path, values: str) -> None:
    model = lenet()
    made = export(model, "packed", tmp_path, values=values)
    loaded = load_model(made.path)
    assert kind_of(made.path) == "packed"
    assert equal(loaded, model) == (values == "float32")
    x = torch.rand(20, 1, 28, 28)
    assert torch.allclose(loaded(x), model(x), atol=0.02)
    renamed = made.path.rename(tmp_path / "net.safetensors")
    assert equal(load_model(renamed), loaded)
    assert dict(inspect(renamed).rows)["architecture"] == "lenet@0.25"


def test_it_knows_its_normalisation_and_threat(tmp_path: Path) -> None:
    model = Normalised(lenet(), [0.1307], [0.3081]).eval()
    made = export(model, "packed", tmp_path)
    assert equal(load_model(made.path), model)
    with pytest.raises(InputError, match="knows its normalisation"):
        load_model(made.path, mean=[0.5], std=[0.5])
    with pytest.raises(InputError, match="knows its architecture"):
        load_model(made.path, architecture="lenet")
    assert trained_threat(made.path) is None
    packed = export("embedded", "packed", tmp_path / "embedded", images=4)
    assert str(trained_threat(packed.path)) == str(trained_threat("embedded"))


def test_it_can_be_a_teacher_by_a_recipe_that_names_another_architecture(tmp_path: Path) -> None:
    path = export(lenet(), "packed", tmp_path).path
    recipe = load_recipe("mnist").with_settings({"teacher.checkpoint": str(path), "teacher.architecture": "lenet"})
    teacher, architecture = load_teacher(recipe, load_data("mnist-mini"))
    assert equal(teacher, lenet())
    assert architecture == "lenet@0.25"


class Tied(nn.Module):
    """A network whose two layers are one, as is a matrix beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = self.first
        self.out = nn.Linear(12, 12)
        self.out.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.second(self.first(x.flatten(1)[:, :12]).relu()).relu())
        return logits


def test_shared_weights_are_written_once_and_stay_shared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = prune(Tied(), 8)
    made = export(model, "packed", tmp_path)
    about = read_packed(made.path).about
    assert about["packed"]["same"] == {
        "second.weight": "first.weight",
        "second.bias": "first.bias",
        "out.weight": "first.weight",
    }
    loaded = load_model(made.path, architecture=Tied())
    assert equal(loaded, model)
    assert loaded.get_parameter("out.weight") is loaded.get_parameter("first.weight")
    with pytest.raises(
        InputError, match=r"which only your own code can build, .* --arch tests\.deploy\.test_packed:Tied"
    ):
        load_model(made.path)


def test_bad_weights_are_refused(tmp_path: Path) -> None:
    model = lenet()
    with torch.no_grad():
        next(model.parameters())[0] = float("nan")
    with pytest.raises(InputError, match=r"NaN or infinite weights in conv1\.weight"):
        export(model, "packed", tmp_path)
    with torch.no_grad():
        next(model.parameters())[0] = 1e6
    with pytest.raises(InputError, match="too large for float16"):
        export(model, "packed", tmp_path, values="float16")
    with pytest.raises(InputError, match="did you mean 'float32'"):
        export(model, "packed", tmp_path, values="float")
    assert list(tmp_path.iterdir()) == []


def small() -> tuple[dict[str, Tensor], dict[str, Any]]:
    state = {"w": torch.tensor([[0.0] * 14 + [1.0, 2.0]] * 2).repeat(1, 10), "b": torch.ones(2)}
    return pack(state, {"w"}, "int8")


def wrong(change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> str:
    parts, table = small()
    change(parts, table)
    with pytest.raises(InputError) as caught:
        unpack(parts, table, "it")
    return str(caught.value)


def test_parts_that_do_not_fit_are_refused() -> None:
    def shape(sizes: Any) -> str:
        return wrong(lambda parts, table: table["shapes"].update(w=sizes))

    def part(end: str, value: Tensor) -> str:
        return wrong(lambda parts, table: parts.update({f"w:{end}": value}))

    fits = "the parts of 'w' do not fit its shape"
    assert fits in shape([2, 161])
    assert fits in shape([1 << 30, 1 << 20])  # nothing of that size is made
    assert fits in shape([4, 80])  # as many numbers, and the scales of other rows
    assert "shapes of its tensors are none" in shape([-2, -16])
    assert "shapes of its tensors are none" in shape([1 << 31])
    assert "shapes of its tensors are none" in shape("2x16")
    assert fits in part("mask", torch.full((40,), 255, dtype=torch.uint8))
    assert fits in part("mask", torch.zeros(41, dtype=torch.uint8))
    assert fits in part("values", torch.zeros(3, dtype=torch.int8))
    assert "have a scale" in part("values", torch.zeros(4))
    assert "has no values of 'w'" in part("values", torch.zeros(4, dtype=torch.int16))
    assert fits in part("scale", torch.ones(3))
    assert "twice" in wrong(lambda parts, table: parts.update(w=torch.ones(2, 160)))
    assert "cannot be" in wrong(lambda parts, table: table["same"].update(v="nothing"))
    assert "cannot be" in wrong(lambda parts, table: table["same"].update(b="w"))
    assert "more often than any" in wrong(lambda parts, table: table["same"].update({str(i): "w" for i in range(9999)}))
    assert "later version" in wrong(lambda parts, table: table.update(format=2))
    assert "no table" in wrong(lambda parts, table: table.clear())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = prune(build("smallcnn@0.05", 10, 1), 8)
    return export(model, "packed", tmp_path_factory.mktemp("packed")).path


def header(content: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", content[:8])
    read: dict[str, Any] = json.loads(content[8 : 8 + length])
    return read


def test_a_truncated_file_is_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    content, cut = file.read_bytes(), tmp_path / "cut.packed.safetensors"
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(InputError) as caught:
            load_model(cut)
        assert "\n" not in str(caught.value)


def test_weights_of_another_file_are_refused(file: Path, tmp_path: Path) -> None:
    """Every part may be sound, and still not the one that was described."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    other = tmp_path / "other.safetensors"
    other.write_bytes(content)
    with pytest.raises(InputError, match=r"fingerprint|do not fit"):
        load_model(other)
    changed = file.read_bytes().replace(b'\\"channels\\": 1', b'\\"channels\\": 3')
    assert changed != file.read_bytes()
    other.write_bytes(changed)
    with pytest.raises(InputError, match="checksum is wrong"):
        load_model(other)


def test_a_description_of_a_larger_network_allocates_nothing(file: Path, tmp_path: Path) -> None:
    about, _ = read_packed(file)
    parts = {name: torch.from_numpy(part) for name, part in load_parts(file.read_bytes()).items()}
    path = tmp_path / "large.safetensors"
    path.write_bytes(to_packed(parts, about["packed"], about | {"architecture": "wrn-34-10", "channels": 3}))
    with pytest.raises(InputError, match="describes a network of 46,160,474 numbers"):
        load_model(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_mutated_file_is_the_same_model_or_refused(file: Path, tmp_path: Path, seed: int) -> None:
    chance, content = random.Random(seed), file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    if chance.random() < 0.5:
        head = mutate_json(content[8 : 8 + length], chance)
        damaged = struct.pack("<Q", len(head)) + head + content[8 + length :]
    else:
        damaged = mutate(content, chance)
    path = tmp_path / "a.packed.safetensors"
    path.write_bytes(damaged)
    with suppress(InputError):
        assert fingerprint(load_model(path)) == fingerprint(load_model(file))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["w", "b", "shapes"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=json_values, shapes=json_values, same=json_values)
def test_whatever_the_table_says_it_is_refused_or_fits(tmp_path: Path, table: Any, shapes: Any, same: Any) -> None:
    parts, sound = small()
    for made_up in (table, sound | {"shapes": shapes}, sound | {"same": same}):
        path = tmp_path / "a.safetensors"
        path.write_bytes(save(parts, {KEY: json.dumps(sealed({"architecture": "lenet", "packed": made_up}))}))
        with pytest.raises(InputError) as caught:
            load_model(path)
        assert len(str(caught.value).splitlines()) == 1


def page_reader() -> Callable[[Any], dict[str, np.ndarray]]:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(block.splitlines()) < 40
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", block, re.MULTILINE))
    assert imported <= {"json", "numpy", "math"}
    names: dict[str, Any] = {}
    exec(block, names)
    reader: Callable[[Any], dict[str, np.ndarray]] = names["read_packed"]
    return reader


@pytest.mark.parametrize("values", ["float32", "float16", "int8"])
def test_the_reader_on_the_page_gives_the_same_weights(tmp_path: Path, values: str) -> None:
    read = page_reader()
    torch.manual_seed(0)
    for number, model in enumerate((Normalised(lenet(), [0.1], [0.3]), prune(build("smallcnn@0.1", 10, 1), 20))):
        made = export(model, "packed", tmp_path / str(number), values=values)
        arrays, wanted = read(made.path), load_model(made.path).state_dict()
        assert arrays.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(arrays[name], value.numpy(), strict=True)
    made = export(prune(Tied(), 8), "packed", tmp_path / "tied", values=values)
    arrays = read(made.path)
    assert np.array_equal(arrays["out.weight"], arrays["first.weight"])
