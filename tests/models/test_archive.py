"""Files of torch.save: whatever torch loads without code passes the walk, and what would do damage does not."""

from __future__ import annotations

import io
import os
import random
import resource
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pwoa.errors import InputError
from pwoa.models.checkpoints.archive import check_torch_file
from pwoa.models.checkpoints.files import open_checkpoint

WEIGHT = torch.arange(24.0).view(4, 6)


def with_attribute() -> torch.Tensor:
    value = nn.Parameter(WEIGHT.clone())
    value.is_norm = True  # type: ignore[attr-defined]
    return value


def adam_state() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"optimizer": optimizer.state_dict(), "state_dict": model.state_dict()}


DTYPES = (
    *("float64", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"),
    *("uint8", "uint16", "uint64", "int8", "int16", "int32", "int64", "bool"),
)
REAL: dict[str, Any] = {
    **{name: {"a": torch.zeros(3, 2).to(getattr(torch, name)), "b": torch.ones(4)} for name in DTYPES},
    "views": {"a": WEIGHT, "b": WEIGHT[1:3, ::2], "c": WEIGHT.t(), "d": WEIGHT.view(-1)[5:], "e": WEIGHT[2]},
    "expanded": torch.zeros(1).expand(3, 5),
    "empty": [torch.empty(0), torch.empty(3, 0, 2), torch.tensor(4.0)],
    "parameter": nn.Parameter(WEIGHT),
    "attributes": with_attribute(),
    "tensor with an attribute": torch.Tensor._make_subclass(torch.Tensor, WEIGHT),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(10**6, 10**6, device="meta"),
    "channels last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
    "adam": adam_state(),
    "values": {"a": 1.5, "b": 2**100, 3: None, (1, "x"): [True], "size": WEIGHT.shape, "type": torch.float16},
    "others": [Counter("aab"), {1, 2}, 1j, b"bytes", bytearray(b"array"), torch.device("cpu"), torch.strided],
    "random states": [torch.get_rng_state(), random.getstate()],
    "history": {"losses": [float(i) for i in range(50_000)], "names": [f"image {i}" for i in range(3000)]},
    "ordered": OrderedDict(a=OrderedDict(b=WEIGHT), c={}),
    "storage": WEIGHT.untyped_storage(),
}


ONLY_ZIPPED = ("float8_e4m3fn", "uint16", "uint64", "storage")  # torch does not load the older form of them itself


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "zipped"),
    [(name, zipped) for name in REAL for zipped in (True, False) if zipped or name not in ONLY_ZIPPED],
)
def test_what_torch_loads_passes(tmp_path: Path, name: str, zipped: bool) -> None:
    path = tmp_path / "modèle.pt"
    torch.save(REAL[name], path, _use_new_zipfile_serialization=zipped)
    torch.load(path, weights_only=True)
    with path.open("rb") as file:
        check_torch_file(file, "model.pt")
        assert file.tell() == 0


def test_what_a_user_lets_torch_load_passes(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"state_dict": {"a": WEIGHT}, "kind": Path}, path)
    with pytest.raises(InputError, match=r"a pickle with code in it, pathlib\.Path"):
        open_checkpoint(path)
    with torch.serialization.safe_globals([Path]):
        assert torch.equal(open_checkpoint(path).tensors["a"], WEIGHT)


def archive(pickle: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a file of torch with this pickle, as anyone can write it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, content in {"data.pkl": pickle, "version": b"3\n", **(storages or {"data/0": bytes(4)})}.items():
            target.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def tensor(sizes: str, strides: str, claimed: int = 1, offset: int = 0, kind: str = "FloatStorage") -> bytes:
    """Return the pickle of {"a": a tensor}; sizes and strides as opcodes."""
    storage = f"(X\x07\0\0\0storagectorch\n{kind}\nX\x01\0\0\0{0}X\x03\0\0\0cpuJ".encode() + struct.pack("<i", claimed)
    start = b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n("
    end = b"\x89ccollections\nOrderedDict\n)RtRs."
    return (
        start + storage + b"tQJ" + struct.pack("<i", offset) + sizes.encode("latin1") + strides.encode("latin1") + end
    )


def test_the_archive_of_these_tests_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(archive(tensor("K\x01\x85", "K\x01\x85")))
    assert open_checkpoint(tmp_path / "a.pt").tensors["a"].tolist() == [0.0]


def twice(depth: int) -> bytes:
    """Return a dict with another one under two names, and so on: as many ways to the last as 2 to that power."""
    if not depth:
        return b"}"
    return b"}(X\x05\0\0\0model" + twice(depth - 1) + b"q%cX\x03\0\0\0neth%cu" % (depth, depth)


MILLIARD = "J\0\xca\x9a\x3b"
HOSTILE = {
    "stride 0": archive(tensor(f"{MILLIARD}\x85", "K\0\x85")),
    "beyond its storage": archive(tensor(f"{MILLIARD}\x85", "K\x01\x85")),
    "an offset beyond": archive(tensor("K\x01\x85", "K\x01\x85", offset=7)),
    "a negative size": archive(tensor("J\xff\xff\xff\xff\x85", "K\x01\x85")),
    "a claim": archive(tensor(f"{MILLIARD}\x85", "K\x01\x85", claimed=10**9)),
    "wider numbers": archive(tensor("K\x01\x85", "K\x01\x85", kind="DoubleStorage")),
    "no such storage": archive(tensor("K\x01\x85", "K\x01\x85"), {"data/1": bytes(4)}),
    "dimensions": archive(tensor("(" + "K\x01" * 100_000 + "t", "(" + "K\x01" * 100_000 + "t")),
    "an overflow": archive(tensor("(K\0" + "\x8a\x08\0\0\0\0\0\0\0\x40" * 2 + "t", "(K\x01K\x01K\x01t")),
    "deflated": archive(tensor("K\x01\x85", "K\x01\x85"), {"data/0": bytes(4)}, zipfile.ZIP_DEFLATED),
    "nested keys": archive(b"\x80\x02}(" + b")" + b"\x85" * 200_000 + b"K\x01u."),
    "exponential keys": archive(b"\x80\x02}()" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(200)) + b"K\x01u."),
    "nested lists": archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
    "a dict in itself": archive(b"\x80\x02}q\0X\x05\0\0\0modelh\0s."),
    "a dict in itself by two ways": archive(b"\x80\x02}q\0X\x05\0\0\0model}X\x05\0\0\0modelh\0ss."),
    "many ways": archive(b"\x80\x02" + twice(40) + b"."),
    "a tensor of a size": archive(b"\x80\x02ctorch\nFloatTensor\n" + MILLIARD.encode("latin1") + b"\x85R."),
    "a storage of a size": archive(b"\x80\x02ctorch\nFloatStorage\n" + MILLIARD.encode("latin1") + b"\x85R."),
    "an array of a size": archive(b"\x80\x02cbuiltins\nbytearray\n" + MILLIARD.encode("latin1") + b"\x85R."),
    "a method replaced": archive(b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\0\0\0itemsK\x01sb."),
    "beside the result": archive(b"\x80\x02ctorch\nFloatTensor\n" + MILLIARD.encode("latin1") + b"\x85R}."),
    "a huge directory": b"PK\x03\x04" + bytes(100) + b"PK\x05\x06" + bytes(4) + b"\xff" * 12 + bytes(2),
    "colliding keys": archive(
        b"\x80\x02}("
        + b"".join(b"\x8a\x20%sN" % (i * (2**61 - 1)).to_bytes(32, "little") for i in range(50_000))
        + b"u."
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_line_and_takes_no_memory(tmp_path: Path, name: str) -> None:
    path, before = tmp_path / "a.pt", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError, match=r"^[^\n]*a\.pt[^\n]{1,300}$"):
        open_checkpoint(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_records_that_lie_on_one_another_are_refused(tmp_path: Path) -> None:
    """Many records of one place are an archive that is larger inside than outside."""
    content = archive(tensor("K\x01\x85", "K\x01\x85"), {f"data/{i}": bytes(1000) for i in range(9)})
    end = content.rindex(b"PK\x05\x06")
    first = content.index(b"PK\x01\x02")
    places = [at for at in range(first, end) if content[at : at + 4] == b"PK\x01\x02"]
    damaged = bytearray(content)
    for at in places[2:]:
        damaged[at + 20 : at + 28] = struct.pack("<II", 9000, 9000)
        damaged[at + 42 : at + 46] = content[places[2] + 42 : places[2] + 46]
    (tmp_path / "a.pt").write_bytes(damaged)
    with pytest.raises(InputError, match="overlap"):
        open_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("claimed", [7, 10**9])
def test_a_legacy_file_that_claims_more_than_it_holds_is_refused(tmp_path: Path, claimed: int) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=False)
    content = buffer.getvalue().replace(b"cpuq\x06K\x03N", b"cpuq\x06J" + struct.pack("<i", claimed) + b"N")
    assert content != buffer.getvalue()
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pt"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_storage_of_a_legacy_file_that_is_not_filled_is_refused(tmp_path: Path) -> None:
    """Its tensor would show what was in memory before."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=False)
    content = buffer.getvalue()
    start = content.rindex(b"\x80\x02]q")
    (tmp_path / "a.pt").write_bytes(content[:start] + b"\x80\x02]." + bytes(100))
    with pytest.raises(InputError, match="storages are not those"):
        open_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("names", [1, 500, 9_000], ids=["short", "some", "many"])
def test_a_legacy_file_is_walked_however_long_its_pickle_is(tmp_path: Path, names: int) -> None:
    path = tmp_path / "a.pt"
    whole = torch.arange(float(names))
    torch.save({f"layer{i}.weight": whole[i] for i in range(names)}, path, _use_new_zipfile_serialization=False)
    assert path.stat().st_size > names * 90
    assert open_checkpoint(path).tensors[f"layer{names - 1}.weight"] == names - 1
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="ends too early"):
        open_checkpoint(path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(InputError, match="is not a file"):
        open_checkpoint(tmp_path / "a.pt")


def test_torchscript_is_named(tmp_path: Path) -> None:
    content = archive(b"", {"constants.pkl": b"\x80\x02)."})
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(InputError, match="TorchScript"):
        open_checkpoint(tmp_path / "a.pt")
