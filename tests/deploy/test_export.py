"""The one function and the one verb: what is gathered of a model, where artefacts go, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.data.images import Data
from pwoa.deploy.artefact import ABOUT, Artefact, identity, read_about
from pwoa.deploy.export import WRITERS, export, exports
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import load_model
from pwoa.recipe import Recipe
from pwoa.report.inspection import inspect
from pwoa.runs.folder import Result, Run
from pwoa.storage.folder import CHECKSUM, sealed
from tests.conftest import TinyNet


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    settings = {
        "search.epochs": 1,
        "finetune.epochs": 1,
        "data.images": 128,
        "data.validation": 32,
        "evaluation.images": 20,
        "evaluation.attacks": ["natural", "pgd2"],
        "evaluation.checks": False,
        "evaluation.strong": 0,
        "teacher.minimum": 0,
    }
    folder = tmp_path_factory.mktemp("runs") / "mine"
    torch.manual_seed(0)
    teacher = build("lenet@0.125", 10, 1)
    return pwoa.prune(teacher, "mnist-mini", rate=8, settings=settings, folder=folder, force=True, progress=False)


def invoke(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_verb_writes_into_the_run_and_prints_what(run: Result) -> None:
    code, output = invoke(run.folder, "--to", "packed", "--to", "onnx", "--images", "100")
    assert code == 0
    for kind in ("packed", "onnx"):
        path = run.folder / "export" / WRITERS[kind].name
        assert f"{kind}: {path}" in output
        assert identity(path) in output
    dense = (run.folder / "model.safetensors").stat().st_size
    found = re.findall(r"([\d,]+) bytes, ([\d.]+)× (\w+) than dense in float32 \(([\d,]+)\)", output)
    assert [row[2] for row in found] == ["smaller", "larger"]  # a small network is less than what ONNX says of it
    (packed, smaller, _), (whole, larger, _) = numbers = [
        [float(row[column].replace(",", "")) for column in (0, 1, 3)] for row in found
    ]
    assert [row[2] for row in numbers] == [dense, dense]
    assert smaller == pytest.approx(dense / packed, abs=0.01)
    assert larger == pytest.approx(whole / dense, abs=0.01)
    assert smaller > 5
    assert output.count("the same class on 100 of 100 test images") == 2
    assert [path.name for path in (run.folder / "export").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (500, "500 bytes, 2.00× smaller than dense in float32 (1,000)"),
        (991, "991 bytes, as large as dense in float32 (1,000)"),
        (1010, "1,010 bytes, as large as dense in float32 (1,000)"),
        (1020, "1,020 bytes, 1.02× larger than dense in float32 (1,000)"),
    ],
)
def test_an_artefact_says_how_large_it_is_beside_the_dense_network(size: int, words: str) -> None:
    assert words in str(Artefact("onnx", Path("net.onnx"), size, 1000, "0" * 64, {}, None))


def test_an_artefact_says_what_the_run_found(run: Result, tmp_path: Path) -> None:
    for kind in ("packed", "onnx"):
        about = read_about(export(run, kind, tmp_path, images=10).path)
        assert about["architecture"] == "lenet@0.125"
        assert (about["classes"], about["channels"]) == (10, 1)
        assert about["rate"] == pytest.approx(8, rel=0.01)
        assert {"overall_rate", "macs_rate", "versions"} <= about.keys()
        assert about["threat"]["norm"] == "linf"
        assert about["accuracy"] == run.summary["pruned"]
        assert about["accuracy_images"]["all"] == 20
        assert about["run"] == sealed(Run(run.folder).result())[CHECKSUM]
        assert about["model"] == fingerprint(run.model) == run.summary["model"]
        assert about["kind"] == kind


def test_inspect_shows_what_an_artefact_is(run: Result, tmp_path: Path) -> None:
    for kind in ("packed", "onnx"):
        rows = dict(inspect(export(run, kind, tmp_path, images=10).path).rows)
        assert rows["threat"] == "l∞ 0.3"
        assert rows["accuracy in %"] == f"natural {run.summary['pruned']['natural']:.2f}" + (
            f", PGD-2 {run.summary['pruned']['pgd2']:.2f}, worst case {run.summary['pruned']['worst']:.2f} (in torch)"
        )
        parameters = sum(parameter.numel() for parameter in run.model.parameters())
        assert f"of all {parameters:,} parameters are not zero" in rows["overall"]


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing_is_named(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pwoa.deploy.onnx_file", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"need.* {module}.*pip install 'pwoa\[onnx\]'"):
        export("embedded", "onnx", tmp_path, images=4)
    assert list(tmp_path.iterdir()) == []


def test_c_is_written_by_its_route_and_put_in_place_whole(
    tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route itself has its own tests; here something stands in for it that computes what torch does, or not."""
    off = 0.0

    def write_c(model: nn.Module, sample: Tensor, folder: Path, about: Any = None, images: Any = None) -> None:
        assert (len(sample), len(images)) == (2, 8)
        folder.mkdir(parents=True)
        (folder / "model.c").write_text("int x;")
        (folder / ABOUT).write_text(json.dumps(sealed({"kind": "c", "about": about})))

    route = SimpleNamespace(write_c=write_c, load_c=lambda folder: lambda x: tiny_teacher(x) + off)
    monkeypatch.setitem(sys.modules, "pwoa.deploy.c", route)
    monkeypatch.delitem(sys.modules, "pwoa.deploy.c_folder", raising=False)
    for _ in range(2):
        made = export(tiny_teacher, "c", tmp_path, data=tiny_data)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert made.sha256 == identity(tmp_path / "c")
    assert read_about(made.path)["model"] == fingerprint(tiny_teacher)
    with pytest.raises(InputError, match="holds another export"):
        export(TinyNet(), "c", tmp_path, data=tiny_data)
    off = 1.0
    with pytest.raises(InputError, match="c does not compute what the model does"):
        export(tiny_teacher, "c", tmp_path / "off", data=tiny_data)
    assert not (tmp_path / "off").exists()
    monkeypatch.delitem(sys.modules, "pwoa.deploy.c_folder")


def test_other_weights_than_the_run_measured_have_no_measurements(run: Result, tmp_path: Path) -> None:
    changed = Result(load_model(run.folder), run.folder, run.summary, run.metrics)
    with torch.no_grad():
        next(changed.model.parameters()).mul_(1.5)
    about = read_about(export(changed, "packed", tmp_path, images=10).path)
    assert about.keys().isdisjoint({"accuracy", "run", "method"})
    assert about["model"] == fingerprint(changed.model)


def test_only_the_same_export_is_written_again(run: Result, tmp_path: Path) -> None:
    first = export(run.folder, "packed", tmp_path, images=10)
    assert export(run, "packed", tmp_path, images=10).sha256 == first.sha256
    before = first.path.read_bytes()
    for source, values in (("embedded", None), (run, "float16")):
        with pytest.raises(InputError, match="holds another export; choose another folder with --out"):
            export(source, "packed", tmp_path, values=values)
    with pytest.raises(InputError, match="not 'int4'"):  # which no folder would help
        export(run, "packed", tmp_path, values="int4")
    other = tmp_path / "model.onnx"
    other.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists and is no export"):
        export(run, "onnx", tmp_path)
    assert (first.path.read_bytes(), other.read_bytes()) == (before, b"mine")
    other.unlink()
    other.symlink_to(first.path)
    with pytest.raises(InputError, match="exists and is no export"):
        export(run, "onnx", tmp_path)


def test_the_model_that_is_given_is_not_changed(tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path) -> None:
    tiny_teacher.train()
    before = fingerprint(tiny_teacher)
    made = export(tiny_teacher, "onnx", tmp_path, data=tiny_data)
    assert fingerprint(tiny_teacher) == before
    assert tiny_teacher.training
    assert all(parameter.requires_grad for parameter in tiny_teacher.parameters())
    assert made.about["input"]["shape"] == [1, 6, 6]


def test_without_images_packed_is_written_and_says_so(tiny_teacher: TinyNet, tmp_path: Path) -> None:
    made = export(tiny_teacher, "packed", tmp_path)
    assert made.check is None
    assert "not compared with torch on images: give the data that the model is for" in str(made)
    for kind in ("onnx", "int8"):
        with pytest.raises(InputError, match=f"{kind} is made and compared on images: give the data"):
            export(tiny_teacher, kind, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.packed.safetensors"]


def test_a_run_of_data_given_in_python_wants_them_again(
    tiny_teacher: TinyNet, tiny_data: Data, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    result = pwoa.prune(tiny_teacher, tiny_data, rate=2, recipe=quick(), folder=tmp_path / "run", progress=False)
    with pytest.raises(InputError, match="made from data given in Python; give them again"):
        export(result, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert export(result, "onnx", data=tiny_data).path == tmp_path / "run" / "export" / "model.onnx"
    packed = export(tmp_path / "run", "packed", architecture=TinyNet(), data=tiny_data).path
    loaded = load_model(packed, tiny_data, architecture=TinyNet())
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), result.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["embedded", "--to", "onxx"], r"cannot export to 'onxx' \(did you mean 'onnx'\?\)"),
        (["embedded", "--to", "onnx", "--values", "int8"], "goes with packed files"),
        (["embedded", "--to", "packed", "--values", "int4"], r"kept as float32, float16, int8, not 'int4' \(did you"),
        (["embedded", "--to", "packed", "--images", "0"], "on 1 image or more, not on 0"),
        (["nowhere.pt", "--to", "packed"], "nowhere.pt does not exist"),
        (["embedded"], "--to"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = invoke(*words)
    assert code == 2
    assert re.search(message, output)
    assert len(output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_onnx_cannot_be_exported_again(tmp_path: Path) -> None:
    made = export("embedded", "onnx", tmp_path, images=4)
    with pytest.raises(InputError, match="cannot be exported again"):
        export(made.path, "packed", tmp_path)
    with pytest.raises(InputError, match="cannot be exported again"):
        export(load_model(made.path), "packed", tmp_path)


def test_where_artefacts_go_if_nobody_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export("embedded", "packed", images=4).path == Path("export/embedded/model.packed.safetensors")
    torch.save(load_model("embedded").state_dict(), "mine.pt")
    assert export("mine.pt", "packed").path == Path("export/mine/model.packed.safetensors")
    assert export(TinyNet(), "packed").path == Path("export/tinynet/model.packed.safetensors")


def test_a_disk_that_is_full_leaves_nothing(
    tiny_teacher: TinyNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        export(tiny_teacher, "packed", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_identity_is_of_the_content_alone(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"weights")
    assert identity(file) == hashlib.sha256(b"weights").hexdigest()
    for name in ("one", "two"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "model.c").write_text("int x;")
        (tmp_path / name / "inner" / "w.bin").write_bytes(b"\0")
    assert identity(tmp_path / "one") == identity(tmp_path / "two")
    (tmp_path / "two" / ".cache").write_text("built here")
    assert identity(tmp_path / "one") == identity(tmp_path / "two")
    (tmp_path / "two" / "model.c").rename(tmp_path / "two" / "model.h")
    assert identity(tmp_path / "one") != identity(tmp_path / "two")


def test_what_is_no_artefact_says_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / ABOUT).write_text("{}")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / ABOUT):
        with pytest.raises(InputError):
            read_about(path)


def test_several_kinds_are_checked_before_any_is_written(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"mine")
    with pytest.raises(InputError, match="exists and is no export"):
        list(exports("embedded", ["packed", "onnx"], tmp_path, images=4))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    with pytest.raises(InputError, match="say what to export to: packed, onnx, int8, c"):
        exports("embedded", [], tmp_path)


def test_nan_in_a_network_is_refused_by_name(tiny_data: Data, tmp_path: Path) -> None:
    model: nn.Module = TinyNet()
    with torch.no_grad():
        model.get_parameter("hidden.weight")[0, 0] = float("nan")
    for kind in ("packed", "onnx", "int8"):
        with pytest.raises(InputError, match=r"NaN or infinite weights in hidden\.weight"):
            export(model, kind, tmp_path, data=tiny_data)
    assert list(tmp_path.iterdir()) == []
