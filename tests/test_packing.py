"""A run in pieces: it goes on elsewhere to the same bits, and a wrong piece is one clear line."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from pwoa.cli import app
from pwoa.data import Data
from pwoa.errors import InputError
from pwoa.packing import LIST, bytes_in, pack, unpack
from pwoa.pipeline import prune
from pwoa.pretraining import pretrain
from pwoa.progress import Progress
from pwoa.recipe import Recipe
from pwoa.run import Run

Make = Callable[..., Recipe]


class Listening(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def run(tmp_path: Path, quick: Make) -> Path:
    """A run that was killed in training, with files of known content."""
    made = Run(tmp_path / "run")
    made.begin(quick(), {"teacher": "abc"})
    made.log({"epoch": 1})
    (made.path / "checkpoint").mkdir()
    (made.path / "checkpoint" / "state.pt").write_bytes(bytes(range(256)) * 200)
    return made.path


@pytest.fixture
def pieces(tmp_path: Path, run: Path) -> Path:
    pack(run, tmp_path / "pieces", 10_000)
    return tmp_path / "pieces"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_comes_back_whole(tmp_path: Path, run: Path, pieces: Path) -> None:
    written = json.loads((pieces / LIST).read_text())
    names = [piece["name"] for piece in written["pieces"]]
    assert names == ["piece-0001", "piece-0002", "piece-0003", "piece-0004", "piece-0005", "piece-0006", "piece-0007"]
    assert sorted(path.name for path in pieces.iterdir()) == [*names, LIST]
    assert all((pieces / name).stat().st_size == 10_000 for name in names[:-1])
    whole = hashlib.sha256(b"".join((pieces / name).read_bytes() for name in names)).hexdigest()
    assert written["sha256"] == whole
    assert content(unpack(pieces, tmp_path / "deep" / "again")) == content(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "pieces", "run"]


@pytest.mark.parametrize("size", [7, 512, 10**9])
def test_any_size_will_do(tmp_path: Path, quick: Make, size: int) -> None:
    Run(tmp_path / "run").begin(quick(), {})
    pack(tmp_path / "run", tmp_path / "pieces", size)
    assert content(unpack(tmp_path / "pieces", tmp_path / "again")) == content(tmp_path / "run")


def test_the_same_run_gives_the_same_pieces(tmp_path: Path, run: Path, pieces: Path) -> None:
    os.utime(run / "recipe.toml", (0, 0))
    pack(run, tmp_path / "twice", 10_000)
    assert content(tmp_path / "twice") == content(pieces)


def test_what_a_kill_left_half_written_is_left_out(tmp_path: Path, run: Path) -> None:
    (run / "checkpoint" / ".state.pt.part").write_text("half")
    pack(run, tmp_path / "pieces")
    again = unpack(tmp_path / "pieces", tmp_path / "again")
    assert "checkpoint/.state.pt.part" not in content(again)


def test_pruning_goes_on_elsewhere_to_the_same_bits(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    whole = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "whole")
    for at in (7, 22, 25):  # 4 steps an epoch, 3 + 3 epochs, then the evaluation
        here = tmp_path / f"here-{at}"
        with pytest.raises(KeyboardInterrupt):
            prune(tiny_teacher, tiny_data, recipe=quick(), folder=here, progress=killed(at))
        pack(here, tmp_path / f"pieces-{at}", "2kB")
        shutil.rmtree(here)
        there, progress = unpack(tmp_path / f"pieces-{at}", tmp_path / f"there-{at}"), Listening()
        resumed = prune(tiny_teacher, tiny_data, recipe=quick(), folder=there, progress=progress)
        assert "resuming" in progress.said
        assert (there / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
        assert [line["train"] for line in resumed.metrics] == [line["train"] for line in whole.metrics]
        assert resumed.summary["pruned"] == whole.summary["pruned"]


def test_robust_training_goes_on_elsewhere_to_the_same_bits(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    plan = quick(method="pgd-at", pretrain__epochs=3, pretrain__steps=2, pretrain__learning_rate=0.05)
    whole = pretrain(tiny_teacher, tiny_data, recipe=plan, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        pretrain(tiny_teacher, tiny_data, recipe=plan, folder=tmp_path / "here", progress=killed(7))
    pack(tmp_path / "here", tmp_path / "pieces")
    there = unpack(tmp_path / "pieces", tmp_path / "there")
    pretrain(tiny_teacher, tiny_data, recipe=plan, folder=there)
    assert (there / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_a_missing_piece_is_named(tmp_path: Path, pieces: Path) -> None:
    (pieces / "piece-0003").unlink()
    said = refused(lambda: unpack(pieces, tmp_path / "again"))
    assert said == f"{pieces} lacks piece-0003 of its 7 pieces; carry them over"
    (pieces / "piece-0005").unlink()
    assert "lacks piece-0003 and 1 more of its 7 pieces" in refused(lambda: unpack(pieces, tmp_path / "again"))
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("how", ["changed", "cut", "empty"])
def test_a_damaged_piece_is_named(tmp_path: Path, pieces: Path, how: str) -> None:
    whole = (pieces / "piece-0002").read_bytes()
    damaged = {"changed": whole[:-1] + bytes([whole[-1] ^ 1]), "cut": whole[:-1], "empty": b""}[how]
    (pieces / "piece-0002").write_bytes(damaged)
    said = refused(lambda: unpack(pieces, tmp_path / "again"))
    assert said == f"{pieces / 'piece-0002'} is damaged, or a piece of something else; carry it over again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pieces", "run"]


def test_pieces_that_were_mixed_up_are_named(tmp_path: Path, pieces: Path) -> None:
    first, second = pieces / "piece-0001", pieces / "piece-0002"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    said = refused(lambda: unpack(pieces, tmp_path / "again"))
    assert said == f"{first} is piece-0002 by another name; carry it over again"


def test_pieces_of_two_runs_are_told_apart(tmp_path: Path, run: Path, pieces: Path) -> None:
    Run(run).log({"epoch": 2})
    pack(run, tmp_path / "later", 10_000)
    shutil.copy(tmp_path / "later" / "piece-0006", pieces / "piece-0006")
    assert "piece-0006 is damaged, or a piece of something else" in refused(lambda: unpack(pieces, tmp_path / "again"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no packed run: it has no pieces.json"),
        ("{", "pieces.json is damaged"),
        ("[]", "pieces.json is damaged"),
        ('{"sha256": "0", "pieces": [{"name": "../run/recipe.toml", "sha256": "0"}]}', "pieces.json is damaged"),
        ('{"sha256": "0", "pieces": [{"name": "piece-0001"}]}', "pieces.json is damaged"),
        ('{"sha256": "0", "pieces": []}', "pieces.json does not go with the pieces beside it"),
    ],
)
def test_a_list_that_is_wrong_is_one_line(tmp_path: Path, pieces: Path, text: str | None, message: str) -> None:
    (pieces / LIST).unlink()
    if text is not None:
        (pieces / LIST).write_text(text)
    assert message in refused(lambda: unpack(pieces, tmp_path / "again"))


@pytest.mark.parametrize(
    ("name", "kind"), [("../outside", tarfile.REGTYPE), ("/outside", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]
)
def test_pieces_made_to_write_elsewhere_are_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, "/etc/passwd", 0
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(entry)
    _pretend(tmp_path / "pieces", packed.getvalue())
    assert "which is no file of a run" in refused(lambda: unpack(tmp_path / "pieces", tmp_path / "again"))
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"]


def test_pieces_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    _pretend(tmp_path / "pieces", b"no tar file at all" * 100)
    assert "hold no run" in refused(lambda: unpack(tmp_path / "pieces", tmp_path / "again"))


def test_files_that_are_no_run_become_none(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("holiday.txt"))
    _pretend(tmp_path / "pieces", packed.getvalue())
    said = refused(lambda: unpack(tmp_path / "pieces", tmp_path / "again"))
    assert said == f"the pieces in {tmp_path / 'pieces'} hold no run: there is no recipe.toml"
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"]


@pytest.mark.parametrize(("name", "times"), [("piece-0002", 0), ("piece-0002", 1), ("piece-0001", 1), (LIST, 0)])
def test_what_cannot_be_read_is_named(
    tmp_path: Path, pieces: Path, monkeypatch: pytest.MonkeyPatch, name: str, times: int
) -> None:
    unreadable(monkeypatch, pieces / name, after=times)  # root may read anything
    said = refused(lambda: unpack(pieces, tmp_path / "again"))
    assert said == f"cannot read {pieces / name}: Permission denied"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pieces", "run"]


def test_a_file_of_the_run_that_cannot_be_read_is_named(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable(monkeypatch, run / "metrics.jsonl")
    said = refused(lambda: pack(run, tmp_path / "pieces"))
    assert said == f"cannot read {run / 'metrics.jsonl'}: Permission denied"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, pieces: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(lambda: unpack(pieces, tmp_path / "file" / "again"))
    assert said.startswith(f"cannot write to {tmp_path / 'file'}: ")


def test_a_piece_that_changes_while_it_is_put_together_is_named(
    tmp_path: Path, pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = Path.read_bytes, list[Path]()

    def changing(path: Path) -> bytes:
        reads.append(path)
        content = read(path)
        return content[:-1] + b"?" if path.name == "piece-0005" and reads.count(path) == 2 else content

    monkeypatch.setattr(Path, "read_bytes", changing)
    said = refused(lambda: unpack(pieces, tmp_path / "again"))
    assert said == f"{pieces / 'piece-0005'} is damaged, or a piece of something else; carry it over again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pieces", "run"]


def unreadable(monkeypatch: pytest.MonkeyPatch, forbidden: Path, after: int = 0) -> None:
    """From now on, or after it was read that often."""
    opened, seen = Path.open, list[Path]()

    def open_(path: Path, *args: Any, **rest: Any) -> Any:
        seen.append(path)
        if path == forbidden and seen.count(path) > after:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **rest)

    monkeypatch.setattr(Path, "open", open_)


def _pretend(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "piece-0001").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (folder / LIST).write_text(json.dumps({"sha256": digest, "pieces": [{"name": "piece-0001", "sha256": digest}]}))


def test_nothing_is_written_over(tmp_path: Path, run: Path, pieces: Path) -> None:
    before = content(run)
    assert "exists and is not empty; choose another folder" in refused(lambda: unpack(pieces, run))
    assert content(run) == before
    assert "exists and is not empty" in refused(lambda: pack(run, pieces))
    assert "is inside of the run" in refused(lambda: pack(run, run / "pieces"))
    assert "is not a run folder" in refused(lambda: pack(tmp_path, tmp_path / "more"))
    (tmp_path / "empty").mkdir()
    assert content(unpack(pieces, tmp_path / "empty")) == before


def test_a_pack_that_is_stopped_leaves_nothing(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pwoa.packing._Pieces.finished", stop)
    with pytest.raises(KeyboardInterrupt):
        pack(run, tmp_path / "pieces")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("16MB", 16_000_000), ("16 MiB", 16 * 2**20), ("500kB", 500_000), ("1gb", 10**9), ("12", 12), (12, 12)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["", "MB", "0MB", "-1", "1.5MB", "16 apples", "16MBB"])
def test_what_is_no_size(text: str) -> None:
    assert "is not a size; write for example 16MB" in refused(lambda: bytes_in(text))


def test_on_the_command_line(tmp_path: Path, run: Path) -> None:
    def call(*arguments: str | Path) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = call("pack", run, "--size", "20kB", "--out", tmp_path / "pieces")
    assert code == 0
    assert f"4 pieces and pieces.json in {tmp_path / 'pieces'}" in out
    assert call("unpack", tmp_path / "pieces", "--out", tmp_path / "again")[0] == 0
    assert content(tmp_path / "again") == content(run)
    (tmp_path / "pieces" / "piece-0001").unlink()
    code, _, err = call("unpack", tmp_path / "pieces", "--out", tmp_path / "more")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: ")
