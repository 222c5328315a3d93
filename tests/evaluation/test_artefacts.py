"""Exported models, attacked as they are shipped: by Square, by transfer from their twin, and int8 by its replica."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import pwoa
from pwoa.attacks.apgd import apgd_ce, apgd_t_rounds, strong_rounds
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import square_rounds
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.deploy.artefact import identity
from pwoa.errors import InputError
from pwoa.evaluation.agreement import Agreement, agreement
from pwoa.evaluation.subject import Subject
from pwoa.models.compiled import CModel
from pwoa.models.onnx import OnnxModel
from pwoa.models.replica import Replica, replica_of
from pwoa.models.twins import twin_of
from pwoa.recipe import Recipe, to_toml
from pwoa.report.inspection import inspect
from pwoa.threat import Threat
from tests.conftest import TinyNet

CPU = torch.device("cpu")
THREAT = Threat(radius=0.1, step=0.025)


@pytest.fixture(autouse=True)
def short_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    short: dict[str, dict[str, Any]] = {
        "apgd-ce": {"run": partial(apgd_ce, steps=5)},
        "apgd-t": {"rounds": partial(apgd_t_rounds, targets=1, steps=5)},
        "strong": {"rounds": partial(strong_rounds, ce_steps=5, steps=5)},
        "square": {"rounds": partial(square_rounds, queries=20)},
    }
    for name, change in short.items():
        monkeypatch.setitem(ATTACKS, name, dataclasses.replace(ATTACKS[name], **change))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with its model exported as every kind."""
    from tests.conftest import _images

    data = load_data((_images(96, 0), _images(48, 1)))
    torch.manual_seed(0)
    teacher = TinyNet()
    optimizer = torch.optim.Adam(teacher.parameters(), 0.02)
    x, y = data.train.batch(torch.arange(96))
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    settings = {
        "data.validation": 24,
        "threat.radius": 0.05,
        "threat.step": 0.0125,
        "search.epochs": 1,
        "finetune.epochs": 1,
        "training.batch": 16,
        "teacher.minimum": 0,
        "evaluation.attacks": "natural",
        "evaluation.checks": False,
        "evaluation.strong": 0,
    }
    folder = tmp_path_factory.mktemp("made") / "run"
    result = pwoa.prune(teacher.eval(), data, recipe=Recipe().with_settings(settings), folder=folder)
    for kind in ("packed", "onnx", "int8", "c"):
        pwoa.export(result, kind, data=data)
    return folder


def rounding(scale: float, zero: int, path: Path) -> OnnxModel:
    """Write a graph that only rounds, to unsigned bytes, of three numbers."""
    constants = [
        numpy_helper.from_array(torch.tensor(scale).numpy(), "scale"),
        numpy_helper.from_array(torch.tensor(zero, dtype=torch.uint8).numpy(), "zero"),
    ]
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("QuantizeLinear", ["flat", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rounding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return OnnxModel(path, 3)


class TestReplica:
    def test_rounding_is_that_of_onnxruntime_and_passes_gradients_straight_through(self, tmp_path: Path) -> None:
        model = rounding(0.1, 3, tmp_path / "net.onnx")
        replica = replica_of(model)
        assert replica is not None
        x = torch.tensor([[-1.0, 0.04, 0.05], [0.15, 0.26, 30.0]]).view(2, 1, 1, 3)
        assert torch.allclose(replica(x), model(x), atol=1e-6)
        at = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(replica(at).sum(), at)
        assert torch.allclose(gradient.flatten(), torch.tensor([0.0, 1, 1, 1, 1, 0]))  # nothing where it is cut off

    def test_it_computes_what_the_file_does(self, made: Path, tiny_data: Data) -> None:
        model = OnnxModel(made / "export" / "model.int8.onnx", 3)
        replica = replica_of(model)
        assert replica is not None
        x, _ = tiny_data.test.batch(torch.arange(48))
        found, wanted = replica(x), model(x)
        assert float((found - wanted).abs().max() / wanted.abs().max()) < 0.02
        assert int((found.argmax(1) == wanted.argmax(1)).sum()) >= 47

    def test_there_is_none_of_a_float32_file_nor_of_operators_it_does_not_know(
        self, made: Path, tmp_path: Path
    ) -> None:
        assert replica_of(OnnxModel(made / "export" / "model.onnx", 3)) is None
        assert replica_of(nn.Flatten()) is None
        model = rounding(0.1, 3, tmp_path / "net.onnx")
        graph = onnx.load(tmp_path / "net.onnx")
        graph.graph.node[0].op_type = "Erf"
        onnx.save(graph, tmp_path / "net.onnx")
        assert replica_of(model) is None
        with pytest.raises(InputError, match="has the operator Erf in a form that is not computed in torch here"):
            Replica(tmp_path / "net.onnx")


class Constant(nn.Module):
    """Always the same class."""

    logits: Tensor

    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.eye(3)[number])

    def forward(self, x: Tensor) -> Tensor:
        return (0 * x.flatten(1)[:, :3]) + self.logits


def test_the_agreement_of_two_constants_is_counted_by_hand(tiny_data: Data) -> None:
    subject = Subject.of(Constant(0), tiny_data, 48, CPU, Constant(1), twin=True)
    labels = tiny_data.test.labels
    first, second = int((labels == 0).sum()), int((labels == 1).sum())
    natural, strong = agreement(subject, THREAT, 10, batch=7, seed=0, advance=lambda images: None)
    assert natural == Agreement("natural", 48, 0, 48 - first - second, first, second)
    assert (strong.attack, strong.images, strong.same_class) == ("strong", 10, 0)


def test_a_model_is_as_itself(tiny_teacher: TinyNet, tiny_data: Data) -> None:
    subject = Subject.of(tiny_teacher, tiny_data, 48, CPU, tiny_teacher, twin=True)
    for found in agreement(subject, Threat(radius=0.4, step=0.1), 20, batch=16, seed=0, advance=lambda images: None):
        assert found.same_class == found.same_verdict == found.images
        assert found.right == found.right_of_twin
    assert found.attack == "strong"
    assert found.right < 20  # some examples break it


@pytest.mark.parametrize(
    ("kind", "attacks"),
    [
        ("model.onnx", ["natural", "square", "transfer"]),
        ("model.int8.onnx", ["natural", "square", "replica", "transfer"]),
        ("c", ["natural", "square", "transfer"]),
        ("model.packed.safetensors", ["natural", "strong"]),
    ],
)
def test_an_artefact_is_attacked_as_shipped_with_its_twin(
    kind: str, attacks: list[str], made: Path, tiny_data: Data, tmp_path: Path
) -> None:
    artefact = made / "export" / kind
    settings = {"evaluation.strong": 16}
    scores = pwoa.evaluate(
        artefact,
        tiny_data,
        settings=settings,
        architecture=TinyNet() if "packed" in kind else None,
        threat=THREAT,
        checks=False,
        device="cpu",
        folder=tmp_path / "e",
        twin=pwoa.load_model(made, architecture=TinyNet()),
    )
    assert list(scores) == attacks
    assert [found.attack for found in scores.agreement] == ["natural", "strong"]
    assert [found.images for found in scores.agreement] == [48, 16]
    exact = "int8" not in kind
    assert all(found.same_class >= found.images - (0 if exact else 2) for found in scores.agreement)
    kept = json.loads((tmp_path / "e" / "result.json").read_text())
    assert kept["artefact"] == identity(artefact)
    assert kept["agreement"] == [dataclasses.asdict(found) for found in scores.agreement]
    again = pwoa.evaluate(
        artefact,
        tiny_data,
        settings=settings,
        architecture=TinyNet() if "packed" in kind else None,
        threat=THREAT,
        checks=False,
        device="cpu",
        folder=tmp_path / "e",
        twin=pwoa.load_model(made, architecture=TinyNet()),
    )
    assert again.agreement == scores.agreement


class TestTwin:
    def test_it_is_the_run_that_the_artefact_lies_in(self, made: Path, tmp_path: Path) -> None:
        for name in ("model.onnx", "model.int8.onnx", "c", "model.packed.safetensors"):
            assert twin_of(made / "export" / name) == made.resolve()
        (tmp_path / "model.onnx").write_bytes((made / "export" / "model.onnx").read_bytes())
        assert twin_of(tmp_path / "model.onnx") is None
        assert twin_of(made) is None

    @pytest.mark.parametrize("kind", ["model.onnx", "model.int8.onnx", "c", "model.packed.safetensors"])
    def test_of_a_network_of_ones_own_its_code_is_given_once(self, kind: str, made: Path, tiny_data: Data) -> None:
        options: Any = {"attacks": "natural", "checks": False, "device": "cpu"}
        with pytest.raises(InputError, match=r"holds a .*TinyNet, .* --arch tests\.conftest:TinyNet"):
            pwoa.evaluate(made / "export" / kind, tiny_data, **options)
        code: Any
        for code in ("tests.conftest:TinyNet", TinyNet()):
            scores = pwoa.evaluate(made / "export" / kind, tiny_data, architecture=code, **options)
            (found,) = scores.agreement
            assert found.same_class >= found.images - (2 if "int8" in kind else 0)

    def test_a_file_without_a_twin_has_no_architecture(self, made: Path, tiny_data: Data, tmp_path: Path) -> None:
        away = Path(shutil.copy(made / "export" / "model.onnx", tmp_path))
        with pytest.raises(InputError, match=r"model\.onnx knows its architecture; leave out --arch"):
            pwoa.evaluate(away, tiny_data, architecture=TinyNet(), attacks="natural", threat=THREAT)

    def test_another_model_is_none(self, made: Path, tmp_path: Path) -> None:
        model = rounding(0.1, 3, tmp_path / "net.onnx")
        (made / "export" / "other.onnx").write_bytes(model.path.read_bytes())
        assert twin_of(made / "export" / "other.onnx") is None

    def test_a_twin_and_a_surrogate_are_not_both_given(self, tiny_teacher: TinyNet, tiny_data: Data) -> None:
        with pytest.raises(InputError, match="a twin is a surrogate too; give one of them, --twin or --surrogate"):
            pwoa.evaluate(tiny_teacher, tiny_data, twin=tiny_teacher, surrogate=tiny_teacher)
        with pytest.raises(InputError, match=r"the twin must be an nn\.Module or the name of a model, not a int"):
            pwoa.evaluate(tiny_teacher, tiny_data, twin=3)  # type: ignore[arg-type]


class TestCode:
    def test_a_folder_of_c_is_a_model_without_gradients(self, made: Path, tiny_data: Data) -> None:
        model = pwoa.load_model(made / "export" / "c", tiny_data)
        assert isinstance(model, CModel)
        x, _ = tiny_data.test.batch(torch.arange(5))
        wanted = pwoa.load_model(made, architecture=TinyNet())(x)
        assert torch.allclose(model(x), wanted, atol=1e-4)
        with pytest.raises(InputError, match="is C code, which has no gradients"):
            model(x.requires_grad_())
        with pytest.raises(InputError, match="knows its normalisation"):
            pwoa.load_model(made / "export" / "c", mean=[0.5], std=[1])

    @pytest.mark.parametrize("name", ["model.c", "model.h"])
    def test_code_that_is_not_ours_is_neither_compiled_nor_run(
        self, made: Path, tiny_data: Data, tmp_path: Path, name: str
    ) -> None:
        folder = Path(shutil.copytree(made / "export" / "c", tmp_path / "c"))
        assert isinstance(pwoa.load_model(folder), CModel)
        mark = tmp_path / "mark"
        code = f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fopen("{mark}", "w"); }}\n'
        (folder / name).write_text((folder / name).read_text() + code)
        with pytest.raises(
            InputError, match=rf"{name} is not the code that this version of pwoa writes, and is not run"
        ):
            pwoa.evaluate(folder, tiny_data, attacks="natural")
        assert not mark.exists()

    @pytest.mark.parametrize("verb", [pwoa.prune, pwoa.pretrain])
    def test_a_recipe_cannot_ask_to_run_it(
        self, verb: Callable[..., Any], made: Path, tiny_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pwoa.models.compiled.load_c", pytest.fail)
        recipe = tmp_path / "recipe.toml"
        settings = {"teacher.checkpoint": str(made / "export" / "c"), "method": "pgd-at"}
        settings = settings if verb is pwoa.pretrain else {key: settings[key] for key in ("teacher.checkpoint",)}
        recipe.write_text(to_toml(Recipe().with_settings(settings)))
        with pytest.raises(InputError, match="is C code, which cannot be trained or pruned; give the run"):
            verb(data=tiny_data, recipe=recipe, folder=tmp_path / "run")

    def test_it_is_inspected_without_being_run(self, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pwoa.models.compiled.load_c", pytest.fail)
        rows = dict(inspect(made / "export" / "c").rows)
        assert (rows["classes"], rows["input"]) == ("3", "[1, 6, 6]")
        assert rows["kind"].startswith("C: it can be measured")

    def test_the_attack_replica_is_for_int8(self, tiny_teacher: TinyNet, tiny_data: Data) -> None:
        with pytest.raises(InputError, match=r"the attack replica is for an int8 \.onnx file"):
            pwoa.evaluate(tiny_teacher, tiny_data, attacks="replica", threat=THREAT)
