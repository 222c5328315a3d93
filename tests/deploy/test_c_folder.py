"""The folder of C: written as a whole, built by make, loaded from Python, and refused in one line if it is damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pwoa.deploy.c import load_c, write_c
from pwoa.devices import using_threads
from pwoa.errors import InputError
from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.compiled import CModel
from pwoa.models.load import load_model
from tests.deploy.networks import random_network

FILES = ["Makefile", "artefact.json", "check.c", "model.c", "model.h", "vectors.bin", "weights.S", "weights.bin"]
QUICK = "CFLAGS=-O1"
PAGE = Path(__file__).parents[2] / "docs" / "deployment-c.md"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled libraries of the tests' own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWOA_CACHE", str(cache))


@pytest.fixture(scope="session")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, Tensor]:
    """The embedded LeNet as C, that LeNet, and images."""
    folder, model = tmp_path_factory.mktemp("c") / "lenet", load_model("embedded")
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    write_c(model, images[:1], folder, {"rate": 1}, images)
    return folder, model, images


def close(got: Tensor, expected: Tensor) -> bool:
    return float((got - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def settled(name: str) -> nn.Module:
    """Return a narrow network of an architecture with a tenth of its weights and normalisations that do something."""
    torch.manual_seed(0)
    model = build(f"{name}@0.2", 10, ARCHITECTURES[name].channels).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, 0, 0.1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
                nn.init.normal_(module.bias, 0, 0.2)
            elif isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.normal_(module.weight, 0, (20 / module.weight[0].numel()) ** 0.5)
                module.weight.mul_(torch.rand_like(module.weight) < 0.1)
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_the_same_in_c(name: str, tmp_path: Path) -> None:
    model, channels = settled(name), ARCHITECTURES[name].channels
    images = torch.rand(3, channels, *((28, 28) if channels == 1 else (32, 32)))
    write_c(model, images, tmp_path / "c")
    with torch.no_grad():
        expected = model(images)
    assert expected.std() > 0
    assert close(load_c(tmp_path / "c")(images), expected)


def test_the_folder_says_what_it_is(lenet: tuple[Path, nn.Module, Tensor]) -> None:
    folder, _, _ = lenet
    assert sorted(path.name for path in folder.iterdir()) == FILES
    artefact = json.loads((folder / "artefact.json").read_text(encoding="utf-8"))
    dense = 28 * 28 * 25 * 32 + 14 * 14 * 25 * 32 * 64 + 3136 * 1024 + 10240
    assert {key: artefact[key] for key in ("kind", "about", "classes", "shape", "bytes")} == {
        "kind": "c",
        "about": {"rate": 1},
        "classes": 10,
        "shape": [1, 28, 28],
        "bytes": (folder / "weights.bin").stat().st_size,
    }
    assert artefact["multiply_adds"] <= dense


def test_only_weights_that_are_not_zero_are_stored(tmp_path: Path) -> None:
    model = settled("resnet18")
    write_c(model, torch.rand(1, 3, 32, 32), tmp_path / "c")
    kept = sum(int(p.count_nonzero()) for name, p in model.named_parameters() if p.dim() > 1)
    assert (tmp_path / "c" / "weights.bin").stat().st_size < 8 * kept  # a float and the place of each, and the rest


def test_make_builds_and_tests_it(lenet: tuple[Path, nn.Module, Tensor], tmp_path: Path) -> None:
    folder = tmp_path / "lenet"
    shutil.copytree(lenet[0], folder)
    for options in ([], ["THREADS=1"]):
        ended = subprocess.run(
            ["make", "clean", "test", QUICK, *options], cwd=folder, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "model: right, largest difference" in ended.stdout
    ended = subprocess.run(["make", "time", QUICK], cwd=folder, capture_output=True, text=True, check=True)
    assert re.search(r"^\d+\.\d{4} ms an image \(median of 101", ended.stdout, re.MULTILINE)


def test_the_program_on_the_page_runs(lenet: tuple[Path, nn.Module, Tensor], tmp_path: Path) -> None:
    folder = tmp_path / "lenet"
    shutil.copytree(lenet[0], folder)
    page = PAGE.read_text(encoding="utf-8")
    program = "\n".join(line[4:] for line in re.findall(r"^(?:    .*|)$", page, re.MULTILINE) if line)
    (folder / "classify.c").write_text(program, encoding="utf-8")
    subprocess.run(["make", QUICK], cwd=folder, check=True, capture_output=True)
    command = [
        "cc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-o",
        "classify",
        "classify.c",
        "libmodel.a",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    image = lenet[2][0].numpy()
    ended = subprocess.run([folder / "classify"], input=image.tobytes(), capture_output=True, check=True)
    with torch.no_grad():
        assert ended.stdout.decode() == f"class {int(lenet[1](lenet[2][:1]).argmax())}\n"


def test_arrays_and_tensors_give_the_same(lenet: tuple[Path, nn.Module, Tensor]) -> None:
    folder, model, images = lenet
    compiled = load_c(folder)
    logits = compiled(images)
    with torch.no_grad():
        assert close(logits, model(images))
    array = compiled(images.numpy())
    assert isinstance(array, np.ndarray)
    assert np.array_equal(array, logits.numpy())
    turned = images.transpose(2, 3).contiguous().transpose(2, 3)  # not contiguous
    assert torch.equal(compiled(turned), logits)
    assert compiled(images[:0]).shape == (0, 10)
    first = compiled(images[:1])
    assert torch.equal(compiled(turned[1:2]), logits[1:2])  # and what was returned before stays as it is
    assert torch.equal(first, logits[:1])
    assert compiled._weights.ctypes.data % 64 == 0


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_threads_give_the_same_bits(seed: int, tmp_path: Path) -> None:
    model, images = random_network(seed)
    write_c(model, images, tmp_path / "c")
    images = torch.cat([images] * 5)
    one = load_c(tmp_path / "c")(images)
    for threads in (2, 3, 5):
        several = load_c(tmp_path / "c", threads)
        for _ in range(20):
            assert torch.equal(several(images), one)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_images_are_shared_among_the_threads_of_torch(threads: int, lenet: tuple[Path, nn.Module, Tensor]) -> None:
    network, images = CModel(lenet[0]), lenet[2]
    with using_threads(threads):
        assert torch.equal(network(images), load_c(lenet[0])(images))
        assert torch.equal(network(images[:3]), load_c(lenet[0])(images[:3]))
        assert network(images[:0]).shape == (0, 10)


def test_a_model_may_be_called_from_several_threads(lenet: tuple[Path, nn.Module, Tensor]) -> None:
    compiled, images = load_c(lenet[0], 2), lenet[2]
    expected, wrong = compiled(images), list[int]()

    def call() -> None:
        for _ in range(20):
            if not torch.equal(compiled(images), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (np.zeros((1, 1, 28, 27), np.float32), r"not float32 \[1, 1, 28, 27\]"),
        (np.zeros((1, 28, 28), np.float32), r"not float32 \[1, 28, 28\]"),
        (np.zeros((1, 1, 28, 28)), r"not float64 \[1, 1, 28, 28\]"),
        (torch.zeros(1, 3, 28, 28), r"not float32 \[1, 3, 28, 28\]"),
        ([[0.0]], "not a list"),
    ],
)
def test_other_images_are_refused(images: object, found: str, lenet: tuple[Path, nn.Module, Tensor]) -> None:
    with pytest.raises(InputError, match=found):
        load_c(lenet[0])(images)  # type: ignore[type-var]


def test_no_compiler_is_said_in_one_line(
    lenet: tuple[Path, nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="CC is 'no-such-compiler', which is not there; install gcc, or set CC"):
        load_c(lenet[0])
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no C compiler \(cc, gcc or clang\); install gcc"):
        load_c(lenet[0])


def changed(source: Path, folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    shutil.copytree(source, folder)
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    return folder


def test_a_damaged_folder_is_refused(lenet: tuple[Path, nn.Module, Tensor], tmp_path: Path) -> None:
    source = lenet[0]
    short = changed(source, tmp_path / "a", "weights.bin", lambda content: content[:-100])
    with pytest.raises(InputError, match=r"weights\.bin is damaged .*; export the model again"):
        load_c(short)
    with pytest.raises(InputError, match=r"artefact\.json is damaged \(its checksum is wrong\)"):
        load_c(changed(source, tmp_path / "b", "artefact.json", lambda content: content.replace(b"1", b"2", 1)))
    with pytest.raises(InputError, match=r"could not compile .*model\.c: "):
        load_c(changed(source, tmp_path / "c", "model.c", lambda content: content + b"\nint\n"))
    with pytest.raises(InputError, match=r"is no network as C: it has no artefact\.json"):
        load_c(tmp_path)
    with pytest.raises(InputError, match="threads are a whole number from 1 to 256, not 0"):
        load_c(source, 0)


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = random_network(3)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    with pytest.raises(InputError, match="full exists and is not empty; choose another folder"):
        write_c(model, images, full)
    with pytest.raises(InputError, match="cannot be written as C"):
        write_c(nn.Sequential(nn.Flatten(), nn.Softplus()), images, tmp_path / "unknown")
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"cannot write to .*: No space left on device; free it"):
        write_c(model, images, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    model, images = random_network(3)
    with pytest.raises(InputError, match=r"the images are .*, the sample is "):
        write_c(model, images, tmp_path / "c", images=torch.zeros(1, 1, 1, 1))
    assert not any(tmp_path.iterdir())


def test_a_model_in_half_precision_is_written_in_single(tmp_path: Path) -> None:
    model, images = random_network(3)
    write_c(model.half(), images, tmp_path / "c")
    with torch.no_grad():
        assert close(load_c(tmp_path / "c")(images), model.float()(images))


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write_c(*random_network(3), tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == FILES


def test_two_processes_may_compile_at_the_same_time(lenet: tuple[Path, nn.Module, Tensor], tmp_path: Path) -> None:
    call = f"load_c({str(lenet[0])!r})(np.ones((1, 1, 28, 28), 'f'))"
    code = f"import numpy as np; from pwoa.deploy.c import load_c; print({call})"
    environment = {**os.environ, "PWOA_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate() for process in both]
    assert said[0] == said[1]
    assert said[0][1] == b""
    assert len(list((tmp_path / "compiled").iterdir())) == 1
