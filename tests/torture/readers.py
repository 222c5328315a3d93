"""Readers under fuzzing: whatever a stranger's file is, it loads or is refused in one line, soon and in little memory.

`python -m tests.torture.readers` tries 100,000 damaged files and writes a row a reader into results/torture.json;
`--part NAME --inputs N` tries fewer, `--part NAME --keep SEED FILE` writes the file that a seed makes. Each reader
works in a process of its own, which an input may not keep longer than 5 seconds, nor make larger than by a gigabyte.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import multiprocessing
import os
import pickle
import pickletools
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pwoa.data.cifar import read_cifar10_binary, read_cifar10_python
from pwoa.data.formats import Blob, read_idx, read_members
from pwoa.data.load import load_data
from pwoa.deploy.export import export
from pwoa.errors import InputError
from pwoa.evaluation.scores import load_verdicts, save_verdicts
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.inspection import inspect_checkpoint
from pwoa.models.load import load_model
from pwoa.models.onnx import OnnxModel
from pwoa.recipe import Recipe, load_recipe, to_toml
from pwoa.report.inspection import inspect
from pwoa.share.publish import save_pretrained
from pwoa.storage.folder import save_rows, sealed, unsealed
from pwoa.sweep.grid import expand
from pwoa.threat import parse_radii
from tests.torture.folders import run_parts
from tests.torture.mutations import Part, mutate, mutate_archive, mutate_json, mutate_pickle, mutate_toml

SECONDS, KILOBYTES = 5, 1 << 20
INPUTS = 100_000
RESULTS = Path(__file__).parents[2] / "results" / "torture.json"
SHAPE, PIXELS = (3, 2, 2), np.arange(48, dtype=np.uint8).reshape(4, 12)


class Net(nn.Module):
    """A network whose tensors are of every usual kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)


def _state() -> dict[str, Any]:
    torch.manual_seed(0)
    state = dict(Net().state_dict())
    return {"state_dict": state, "epoch": 3, "acc": 91.5, "optimizer": {"state": {0: {"step": 1}}, "param_groups": []}}


def _pruned(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data[parameter.abs() < parameter.abs().quantile(0.9)] = 0
    return model


def _saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def _damaged_header(content: bytes, chance: random.Random) -> bytes:
    """Damage the header of a safetensors file, and say its length as it then is."""
    length = int.from_bytes(content[:8], "little")
    header = chance.choice((mutate_json, mutate))(content[8 : 8 + length], chance)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _damaged_table(content: bytes, chance: random.Random) -> bytes:
    """Damage the table of a packed file's tensors, or what is beside it, and write its checksum anew."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = unsealed(json.loads(header["__metadata__"]["pwoa"]), "it")
    try:
        if chance.random() < 0.8:
            about["packed"] = json.loads(mutate_json(json.dumps(about["packed"]).encode(), chance))
        else:
            about = json.loads(mutate_json(json.dumps(about).encode(), chance))
        header["__metadata__"]["pwoa"] = json.dumps(sealed(about))
    except (ValueError, TypeError, AttributeError):  # no JSON any more, or no object
        return mutate(content, chance)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content[8 + length :]


def _damaged_inside(pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Any:
    return lambda content, chance: pack(mutate(unpack(content), chance))


def _read_checkpoint(path: Path) -> None:
    inspect_checkpoint(path)
    load_model(path, architecture=Net())


def _read_packed(path: Path) -> None:
    load_model(path)
    inspect(path)


def _read_folder(path: Path) -> None:
    load_model(path.parent)
    inspect(path.parent)


def _read_onnx(path: Path) -> None:
    OnnxModel(path)(torch.zeros(2, 2, 5, 5))


def _blob(path: Path) -> Blob:
    return Blob(path.name, path.read_bytes())


def _onnx() -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    weights = {"w": np.ones((3, 2, 5, 5), np.float32), "b": np.zeros(3, np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["maps"]), helper.make_node("Flatten", ["maps"], ["logits"])]
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 2, 5, 5))
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("n", 3))
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", [images], [logits], tensors)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )


def _image(kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8)).save(buffer, format=kind)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        for name in ("a", "b"):
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = 600
            target.addfile(member, io.BytesIO(bytes(range(100)) * 6))
    return buffer.getvalue()


def parts(folder: Path) -> dict[str, Part]:
    """Return every reader with its valid file; `folder` is where the files beside it are made."""
    images, model = folder / "images", folder / "model"
    for split in ("train", "test"):
        for kind in ("PNG", "JPEG"):
            (images / split / kind).mkdir(parents=True)
            (images / split / kind / f"0.{kind.lower()}").write_bytes(_image(kind))
    save_pretrained(build("smallcnn", 10, 1, 0.05), model)
    packed = export(_pruned(build("smallcnn", 10, 1, 0.05)), "packed", folder / "export", values="int8").path
    save_verdicts(folder / "v", {"natural": torch.rand(50) > 0.5, "pgd20": torch.rand(50) > 0.5}, {"threat": {"a": 1}})
    zipped, legacy = _saved(_state()), _saved(_state(), _use_new_zipfile_serialization=False)
    idx = b"\0\0\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (4, 3, 4)) + PIXELS.tobytes()
    batch = pickle.dumps({"data": PIXELS, "labels": [3, 1, 4, 1], "filenames": ["a", "b"]}, 4)
    binary = b"".join(bytes([label]) + row.tobytes() for label, row in enumerate(PIXELS))
    grid = b"recipe = 'demo'\n[set]\nsearch.epochs = 3\n[grid]\nmethod = ['pwoa', 'hydra']\nsparsity.rate = [4, 8]\n"
    weights = (model / "model.safetensors").read_bytes()
    python = partial(read_cifar10_python, shape=SHAPE, count=4)
    numbers = partial(read_idx, shape=(4, 3, 4))
    return {
        "torch": Part("a.pt", zipped, _read_checkpoint, (mutate, mutate_archive, mutate_archive), 4),
        "torch, the older form": Part("b.pt", legacy, _read_checkpoint, (mutate, _damaged_legacy), 4),
        "safetensors": Part("a.safetensors", weights, inspect_checkpoint, (mutate, _damaged_header), 2),
        "packed": Part(
            "a.packed.safetensors", packed.read_bytes(), _read_packed, (mutate, _damaged_header, _damaged_table), 2
        ),
        "ONNX": Part("a.onnx", _onnx(), _read_onnx, weight=2),
        "a model's description": Part(
            "model/config.json", (model / "config.json").read_bytes(), _read_folder, (mutate, mutate_json), 2
        ),
        "a model's card": Part("model/README.md", (model / "README.md").read_bytes(), _read_folder),
        "CIFAR, pickled": Part("batch", batch, lambda path: python([_blob(path)]), (mutate, mutate_pickle), 3),
        "CIFAR, binary": Part("batch.bin", binary, lambda path: read_cifar10_binary([_blob(path)], SHAPE, 4)),
        "tar": Part("a.tar", _tar(), lambda path: read_members(path, "cifar", ["a", "b"])),
        "tar.gz": Part(
            "a.tar.gz",
            gzip.compress(_tar(), mtime=0),
            lambda path: read_members(path, "cifar", ["a", "b"]),
            (mutate, _damaged_inside(gzip.compress, gzip.decompress)),
        ),
        "idx": Part("idx", idx, lambda path: numbers(_blob(path))),
        "idx, gz": Part(
            "idx.gz",
            gzip.compress(idx, mtime=0),
            lambda path: numbers(_blob(path)),
            (mutate, _damaged_inside(gzip.compress, gzip.decompress)),
        ),
        "idx, xz": Part("idx.xz", lzma.compress(idx), lambda path: numbers(_blob(path))),
        "PNG": Part("images/train/PNG/0.png", _image("PNG"), lambda path: load_data(images), weight=2),
        "JPEG": Part("images/train/JPEG/0.jpeg", _image("JPEG"), lambda path: load_data(images), weight=2),
        "verdicts": Part("verdicts", (folder / "v").read_bytes(), load_verdicts, (mutate, _damaged_header), 2),
        "recipe": Part("recipe.toml", to_toml(Recipe()).encode(), load_recipe, (mutate, mutate_toml), 2),
        "grid": Part("grid.toml", grid, expand, (mutate, mutate_toml)),
        "radii": Part("radii", b"0, 2/255, 0.1, 1e-2", lambda path: parse_radii(path.read_text("latin1"))),
        **run_parts(folder),
    }


def _damaged_legacy(content: bytes, chance: random.Random) -> bytes:
    """Damage one of the five pickles that a file of the older form begins with."""
    file, ends = io.BytesIO(content), [0]
    for _ in range(5):
        list(pickletools.genops(file))
        ends.append(file.tell())
    which = chance.choice((0, 1, 2, 3, 3, 3, 3, 4))
    start, end = ends[which], ends[which + 1]
    return content[:start] + mutate_pickle(content[start:end], chance) + content[end:]


def _attempt(part: Part, path: Path) -> str:
    """Read a damaged file; return what is wrong with how that went, if anything."""
    try:
        part.read(path)
    except InputError as error:
        lines = str(error).replace("\x1b", "").splitlines()
        return "" if len(lines) == 1 else f"{len(lines)} lines: {lines[:2]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def _work(part: Part, folder: Path, seeds: range, at: Any, violations: Any) -> None:
    """Try the inputs of these seeds; an input that takes too long is ended by the system."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    path = folder / part.file
    path.write_bytes(part.valid)
    part.read(path)  # must load; and what is needed once is there
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_DATA, (base * 1024 + (4 << 30),) * 2)
    for seed in seeds:
        at.value = seed
        path.unlink(missing_ok=True)
        path.write_bytes(part.input(seed))
        signal.alarm(SECONDS)
        problem = _attempt(part, path)
        signal.alarm(0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
        if grown > KILOBYTES:
            violations.put((seed, f"{grown / KILOBYTES:.1f} GB"))
            base += grown
        elif problem:
            violations.put((seed, problem))
    at.value = seeds.stop


def torture(part: Part, folder: Path, inputs: int) -> list[tuple[int, str]]:
    """Try so many inputs of a part; return the seeds of those that were answered wrongly, and how."""
    context = multiprocessing.get_context("fork")
    at, violations, problems = context.Value("q", 0), context.SimpleQueue(), []
    start, late = 0, -1
    while start < inputs:
        at.value = start - 1
        worker = context.Process(target=_work, args=(part, folder, range(start, inputs), at, violations))
        worker.start()
        while worker.is_alive() or not violations.empty():
            if violations.empty():
                worker.join(0.05)
            else:
                problems.append(violations.get())
        if at.value < start:
            raise RuntimeError(f"the valid file of {part.file} does not load")
        if at.value < inputs:
            code = -(worker.exitcode or 0)
            if code == signal.SIGALRM and late != at.value:  # a busy machine is late, too: it is tried once more
                late = start = at.value
                continue
            problems.append((at.value, f"ended by signal {code}"))
        start = at.value + 1
    (folder / part.file).write_bytes(part.valid)  # others may need it
    return problems


def run(inputs: int, names: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Share inputs among the parts; return a row of each, and print its violations."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        chosen = {name: part for name, part in parts(folder).items() if not names or name in names}
        total = sum(part.weight for part in chosen.values())
        for name, part in chosen.items():
            start, count = time.perf_counter(), -(-inputs * part.weight // total)
            problems = torture(part, folder, count)
            for seed, problem in problems:
                print(f"{name}, seed {seed}: {problem}", file=sys.stderr)
            seconds = round(time.perf_counter() - start, 1)
            rows.append({"part": f"reader: {name}", "tried": count, "violations": len(problems), "seconds": seconds})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """Torture the readers as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--keep", nargs=2, metavar=("SEED", "FILE"))
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    if options.keep:
        with tempfile.TemporaryDirectory() as temporary:
            Path(options.keep[1]).write_bytes(parts(Path(temporary))[options.part[0]].input(int(options.keep[0])))
        return 0
    rows = run(options.inputs, options.part)
    if not options.dry:
        known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
        made = {row["part"] for row in rows}
        save_rows(RESULTS, [*(row for row in known if row["part"] not in made), *rows])
    return int(any(row["violations"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
