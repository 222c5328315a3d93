"""The run folder: atomic, refuses what is not its own, gives the model back."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch
from torch import nn

from pwoa import load_model
from pwoa.errors import InputError, Terminated
from pwoa.methods import find_method
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.folder import describe_model
from pwoa.recipe import flat
from pwoa.recipe.sections import INCIDENTAL, Recipe
from pwoa.runs.folder import Run
from pwoa.storage.folder import replacing

Make = Callable[..., Recipe]
OURS = {"teacher": "abc", "data": "123"}


@pytest.fixture
def run(tmp_path: Path, quick: Make) -> Run:
    run = Run(tmp_path / "run")
    run.begin(quick(), OURS)
    return run


def test_the_same_run_is_let_in_and_another_is_not(run: Run, quick: Make) -> None:
    assert Run.choose(run.path, quick(), OURS).started
    with pytest.raises(InputError) as caught:
        Run.choose(run.path, quick(sparsity__rate=8.0, training__optimizer="adam"), OURS)
    assert str(caught.value) == (
        f"{run.path} holds another run "
        '(sparsity.rate: there 4.0, now 8.0; training.optimizer: there "sgd", now "adam"); '
        "choose another folder, or give the same again to resume it"
    )
    with pytest.raises(InputError, match=r'holds another run \(teacher: there "abc", now "def"\); '):
        Run.choose(run.path, quick(), OURS | {"teacher": "def"})
    with pytest.raises(InputError, match=r'holds another run \(data: there "123", now "0123456789ab"\); '):
        Run.choose(run.path, quick(), OURS | {"data": "0123456789abcdef"})


@pytest.mark.parametrize("teacher", [3, None, ["abc"], {"a": 1}])
def test_a_teacher_that_is_no_fingerprint_is_another_one(run: Run, quick: Make, teacher: Any) -> None:
    run.write_json("teacher.json", OURS | {"teacher": teacher})
    with pytest.raises(InputError, match=r'holds another run \(teacher: there ".+", now "abc"\); '):
        Run.choose(run.path, quick(), OURS)


def test_of_many_settings_that_differ_a_handful_is_named(run: Run, quick: Make) -> None:
    other = Recipe().with_settings({"training.seed": 7, "evaluation.attacks": ["cw"], "sparsity.rate": 8})
    with pytest.raises(InputError) as caught:
        Run.choose(run.path, other, OURS)
    assert str(caught.value).count(": there ") == 5
    assert f"; and {len(quick().differences(other)) - 5} more); " in str(caught.value)


def test_a_run_killed_while_it_began_can_begin_again(tmp_path: Path, quick: Make) -> None:
    (tmp_path / "teacher.json").write_text("{}")
    (tmp_path / ".recipe.toml.part").write_text("met")
    run = Run.choose(tmp_path, quick(), OURS)
    with run.held():
        run.begin(quick(), OURS)
    assert sorted(os.listdir(tmp_path)) == ["recipe.toml", "teacher.json"]


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path, quick: Make) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="exists and holds no run; choose another folder"):
        Run.choose(tmp_path, quick(), OURS)
    with pytest.raises(InputError, match="exists and holds no run; choose another folder"):
        Run.choose(tmp_path / "thesis.txt", quick(), OURS)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_made(
    tmp_path: Path, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match="cannot write to"):
        Run.choose(tmp_path / "new" / "run", quick(), OURS)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_of_the_folder_is_one_line(tmp_path: Path, quick: Make) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write to .*Not a directory"):
        Run(tmp_path / "file" / "run").begin(quick(), {})


def test_a_full_disk_leaves_the_old_file_and_no_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_json("result.json", {"old": 1})
    before = sorted(os.listdir(run.path))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        run.write_json("result.json", {"new": 2})
    assert run.read_json("result.json") == {"old": 1}
    assert sorted(os.listdir(run.path)) == before


def test_an_interrupted_write_leaves_nothing(run: Run) -> None:
    def interrupted() -> None:
        with replacing(run.path / "model.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(os.listdir(run.path)) == ["recipe.toml", "teacher.json"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond 100,000 bytes: what a full disk does, made by the kernel."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_disk")
def test_a_checkpoint_that_does_not_fit_is_one_line_and_the_old_one_stays(run: Run) -> None:
    run.save_checkpoint({"stage": 1, "weights": torch.zeros(10)})
    with pytest.raises(InputError, match=r"cannot write to .*File too large"):
        run.save_checkpoint({"stage": 2, "weights": torch.zeros(1_000_000)})
    state = run.load_checkpoint()
    assert state is not None
    assert state["stage"] == 1
    assert os.listdir(run.path / "checkpoint") == ["state.pt"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_ctrl_c_inside_a_checkpoint_is_ctrl_c(run: Run, stop: type[BaseException]) -> None:
    class Interrupted:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 2

        def write(self, content: Any) -> int:
            self.left -= 1
            if not self.left:
                raise stop
            return int(self.file.write(content))

        def flush(self) -> None:
            self.file.flush()

    with pytest.raises(stop), replacing(run.path / "state.pt") as file:
        torch.save({"weights": torch.zeros(100_000)}, cast(IO[bytes], Interrupted(file)))
    assert sorted(os.listdir(run.path)) == ["recipe.toml", "teacher.json"]


def test_metrics_are_cut_back_to_the_lines_that_are_known(run: Run) -> None:
    lines = [{"epoch": epoch, "loss": 0.1} for epoch in range(3)]
    for line in lines:
        run.log(line)
    assert run.keep_metrics(lines[:2])
    assert run.metrics() == lines[:2]
    assert run.keep_metrics([])
    assert run.metrics() == []


@pytest.mark.parametrize(
    "content", [None, b"", b'{"epoch": 0}\n', b"\xff\x00", b'{"epoch": 0, "loss": 0.2}\n{"epoch": 1']
)
def test_metrics_that_were_lost_or_changed_are_written_anew(run: Run, content: bytes | None) -> None:
    lines = [{"epoch": epoch, "loss": 0.1} for epoch in range(2)]
    if content is not None:
        (run.path / "metrics.jsonl").write_bytes(content)
    assert not run.keep_metrics(lines)
    assert run.metrics() == lines


def test_a_finished_run_never_lacks_lines_in_silence(run: Run) -> None:
    run.keep_metrics([{"epoch": 0}, {"epoch": 1}])
    run.finish({"trained_epochs": 2})
    assert len(run.metrics()) == 2
    (run.path / "metrics.jsonl").write_text('{"epoch": 0}\n')
    with pytest.raises(
        InputError, match=r"metrics.jsonl has 1 lines, and its run 2 epochs; put it back, or run it anew"
    ):
        run.metrics()
    run.write_json("result.json", {"trained_epochs": "\n"})
    with pytest.raises(InputError, match=r"metrics.jsonl has 1 lines, and its run '\\n' epochs"):
        run.metrics()
    run.write_json("result.json", {"trained_epochs": 2})
    (run.path / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"metrics.jsonl has 0 lines, and its run 2 epochs"):
        run.metrics()


def test_it_is_said_when_nothing_can_be_resumed(run: Run) -> None:
    assert run.resuming() == "resuming from the start: nothing was saved yet"
    run.save_checkpoint({"stage": 0})
    assert run.resuming() == "resuming"


def test_a_checkpoint_comes_back(run: Run) -> None:
    assert run.load_checkpoint() is None
    run.save_checkpoint({"stage": 1, "model": {"weight": torch.arange(3)}})
    state = run.load_checkpoint()
    assert state is not None
    assert state["stage"] == 1
    assert torch.equal(state["model"]["weight"], torch.arange(3))


def test_every_flipped_bit_of_a_checkpoint_is_seen(run: Run) -> None:
    run.save_checkpoint({"stage": 1, "model": {"weight": torch.arange(3)}})
    file = run.path / "checkpoint" / "state.pt"
    content = file.read_bytes()
    for place in [*range(90), *range(90, len(content), 7), len(content) - 1]:
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(InputError, match=r"state.pt .*delete it, and the run begins anew") as caught:
            run.load_checkpoint()
        assert "\n" not in str(caught.value)
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"state.pt is damaged \(its checksum is another\); delete it"):
        run.load_checkpoint()


@pytest.mark.parametrize(
    ("settings", "teacher"),
    [({"sparsity__rate": 16.0}, "abc"), ({"training__seed": 9}, "abc"), ({}, "def"), ({"method": "hydra"}, "abc")],
)
def test_the_checkpoint_of_another_run_is_refused(
    run: Run, tmp_path: Path, quick: Make, settings: dict[str, Any], teacher: str
) -> None:
    other = Run(tmp_path / "other")
    other.begin(quick(**settings), {**OURS, "teacher": teacher})
    other.save_checkpoint({"stage": 0})
    run.save_checkpoint({"stage": 0})
    (run.path / "checkpoint" / "state.pt").write_bytes((other.path / "checkpoint" / "state.pt").read_bytes())
    with pytest.raises(
        InputError, match=r"state.pt is of a run with another recipe, teacher or data; put back its own"
    ):
        run.load_checkpoint()


def test_where_a_run_is_computed_does_not_make_it_another(run: Run, tmp_path: Path, quick: Make) -> None:
    other = Run(tmp_path / "other")
    other.begin(quick(training__device="cuda", training__checkpoint_seconds=3.0, data__folder="elsewhere"), OURS)
    other.save_checkpoint({"stage": 0})
    run.save_checkpoint({"stage": 5})
    (run.path / "checkpoint" / "state.pt").write_bytes((other.path / "checkpoint" / "state.pt").read_bytes())
    assert run.load_checkpoint() == {"stage": 0}


def test_settings_that_a_later_version_has_do_not_make_a_run_another(tmp_path: Path, quick: Make) -> None:
    """As left by a version without `search.full_rate`, and without settings of LBGAT's own."""
    run, recipe = Run(tmp_path / "run"), quick(method="lbgat")
    run.begin(recipe, OURS)
    file = run.path / "recipe.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("# sha256", "full_rate"))]
    file.write_text("\n".join(lines) + "\n")
    assert "full_rate" not in file.read_text()
    run.save_checkpoint({"stage": 3})
    then = {key: value for key, value in flat(recipe).items() if key not in (*INCIDENTAL, "search.full_rate")}
    whose = hashlib.sha256(json.dumps(then).encode() + (run.path / "teacher.json").read_bytes()).digest()
    assert whose in (run.path / "checkpoint" / "state.pt").read_bytes()[:80]
    assert run.load_checkpoint() == {"stage": 3}
    now = find_method("lbgat").complete(recipe)
    assert now.own
    assert Run.choose(run.path, now, OURS | {"pretrain.start": "hash"}).started
    with pytest.raises(InputError, match=r"lbgat\.guide: there \"\", now \"net\.pt\""):
        Run.choose(run.path, recipe.with_settings({"lbgat.guide": "net.pt"}), OURS)


@pytest.mark.parametrize("rate", [8.0, 32.0])
def test_a_run_that_recorded_the_rate_its_epochs_are_for_goes_on(tmp_path: Path, quick: Make, rate: float) -> None:
    """As left by a version that wrote `search.full_rate` down where the rate was not below it."""
    run, asked = Run(tmp_path / "run"), quick(sparsity__rate=rate, search__full_rate=8.0)
    run.begin(asked, OURS)
    run.save_checkpoint({"stage": 3})
    now = find_method("pwoa").complete(asked)
    assert now != asked
    assert Run.choose(run.path, now, OURS).load_checkpoint() == {"stage": 3}
    with pytest.raises(InputError, match=r"holds another run \(search\.epochs: there 3, now 4\); "):
        Run.choose(run.path, now.with_settings({"search.epochs": 4}), OURS)


def test_a_checkpoint_with_code_in_it_is_not_run(run: Run) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(run.path / "boom"),))

    run.save_checkpoint({"bomb": Bomb()})
    with pytest.raises(InputError, match=r"state.pt is damaged \(it is refused: .*posix.mkdir.*\); delete it"):
        run.load_checkpoint()
    assert not (run.path / "boom").exists()


def test_a_checkpoint_is_walked_before_torch_loads_it(run: Run) -> None:
    run.save_checkpoint({"large": torch.zeros(1).expand(1 << 40)})  # 4 TB out of a few bytes
    with pytest.raises(InputError, match=r"state.pt is damaged \(.*larger than what the file holds.*\); delete it"):
        run.load_checkpoint()


def test_a_checkpoint_of_an_earlier_version_is_refused_in_one_line(run: Run) -> None:
    run.save_checkpoint({"stage": 0})
    torch.save({"lines": 0}, run.path / "checkpoint" / "state.pt")
    with pytest.raises(InputError, match=r"state.pt was written by an earlier version; delete it, and the run begins"):
        run.load_checkpoint()


def test_a_discarded_run_leaves_its_folder_to_another(run: Run, quick: Make) -> None:
    run.log({"epoch": 0})
    run.save_checkpoint({"stage": 0})
    run.discard()
    assert os.listdir(run.path) == []
    assert not Run.choose(run.path, quick(sparsity__rate=8.0), OURS).started


def test_finishing_drops_the_checkpoint(run: Run) -> None:
    run.save_checkpoint({"stage": 0})
    (run.path / "checkpoint" / ".state.pt.part").write_text("left by a kill")
    run.finish({"rate": 4})
    assert run.finished
    assert not (run.path / "checkpoint").exists()


def test_a_registered_model_comes_back(run: Run) -> None:
    model = build("lenet", 10, 1)
    run.save_model(model, describe_model(model, 10, 1))
    loaded = load_model(run.path)
    assert not loaded.training
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_users_own_model_comes_back_into_a_fresh_one(run: Run, tiny_teacher: nn.Module) -> None:
    run.save_model(tiny_teacher, describe_model(tiny_teacher, 3, 1))
    about = json.loads((run.path / "model.json").read_text())
    assert about["architecture"].endswith(":TinyNet")
    with pytest.raises(
        InputError, match=r"TinyNet, which only your own code can build, .* --arch tests\.conftest:TinyNet"
    ):
        load_model(run.path)
    loaded = load_model(run.path, architecture=type(tiny_teacher)())
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in tiny_teacher.state_dict().items())


def test_what_is_no_finished_run_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has not finished yet"):
        load_model(run.path)
    with pytest.raises(InputError, match="does not exist; give a run folder, "):
        load_model(tmp_path / "nowhere")


def test_a_folder_without_a_teacher_is_no_run(run: Run, quick: Make) -> None:
    (run.path / "teacher.json").unlink()
    with pytest.raises(InputError, match="exists and holds no run; choose another folder"):
        Run.choose(run.path, quick(), OURS)


@pytest.mark.parametrize("content", [b" \n", b"{", b"[1,", b"\xff\xfe", b"{}", b"[]", b"3", b"null"])
def test_damaged_files_are_named_in_one_line(run: Run, quick: Make, content: bytes) -> None:
    for name in ("teacher.json", "metrics.jsonl"):
        (run.path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"teacher.json is damaged \(.*\); choose another folder for the run"):
        assert Run.choose(run.path, quick(), OURS).started
    with pytest.raises(InputError, match=r"metrics.jsonl is damaged \("):
        run.metrics()


@pytest.mark.parametrize("content", [b"", b"pwoa state 1\n", b"nothing of ours"])
def test_a_damaged_checkpoint_is_named_in_one_line(run: Run, content: bytes) -> None:
    run.save_checkpoint({"stage": 0})
    (run.path / "checkpoint" / "state.pt").write_bytes(content)
    with pytest.raises(
        InputError, match=r"state.pt is damaged \(it is no state.*\); delete it, and the run begins"
    ) as caught:
        run.load_checkpoint()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("known", ["pruned", "accuracy"])
def test_a_result_that_lacks_something_is_named_in_one_line(run: Run, known: str) -> None:
    run.write_json("result.json", {known: {"natural": 1.0}, "method": "pwoa"})
    with pytest.raises(InputError, match=r"result.json is damaged: it has no \w+; run it anew elsewhere"):
        run.result()


@pytest.mark.parametrize("lines", [0, 4])
def test_a_recipe_that_was_cut_off_is_not_filled_with_defaults(run: Run, quick: Make, lines: int) -> None:
    text = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text("\n".join(text.splitlines()[:lines]))
    with pytest.raises(InputError, match=r"recipe.toml is damaged: it has no section"):
        Run.choose(run.path, quick(), OURS)


# Files that were changed, or that are another run's


SUMMARY: dict[str, Any] = {
    "method": "pwoa",
    "example_free": True,
    "images": 20,
    "seed": 0,
    "device": "CPU",
    "training_seconds": 1.5,
    "rate": 4.0,
    "sparsity": [{"layer": "all", "total": 8, "kept": 2, "rate": 4.0}],
    "teacher": {"natural": 95.0, "pgd20": 90.0},
    "pruned": {"natural": 90.0, "pgd20": 80.0, "autoattack": 75.0},
    "warnings": [{"check": "radius", "message": "it grows"}],
}
SIZES = {"overall_rate": 3.9, "parameters": 8, "nonzero": 2, "macs_rate": 4.0, "macs": 1, "macs_dense": 4}
WHOLE = SUMMARY | SIZES | {"left_out": {"token": "token"}, "fewer": {"strong": 8}, "trained_epochs": 3}


@pytest.fixture
def ended(run: Run) -> Run:
    model = build("lenet@0.1", 10, 1)
    run.finish({**SUMMARY, "model": run.save_model(model, describe_model(model, 10, 1))})
    return run


@pytest.mark.parametrize("content", ['{"epoch": 0, "loss": 0.3}\n', '{"epoch": 0, "loss": 0.25}\n\n'])
def test_metrics_of_a_finished_run_that_were_changed_are_refused(run: Run, content: str) -> None:
    run.log({"epoch": 0, "loss": 0.25})
    run.finish({"trained_epochs": 1})
    assert run.metrics() == [{"epoch": 0, "loss": 0.25}]
    (run.path / "metrics.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"metrics\.jsonl (is not as its run wrote it|is damaged|has 2 lines)"):
        run.metrics()


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "result.json", "recipe.toml", "teacher.json"])
def test_a_flipped_bit_in_any_file_of_a_run_is_found(ended: Run, quick: Make, name: str) -> None:
    def read() -> None:
        load_model(ended.path)
        ended.result()
        ended.differences(quick(), OURS)

    read()
    content = (ended.path / name).read_bytes()
    for place in (len(content) // 3, len(content) // 2, len(content) - 40):
        changed = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        (ended.path / name).write_bytes(changed)
        with pytest.raises(InputError) as caught:
            read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["recipe.toml", "teacher.json"])
def test_a_finished_run_with_the_recipe_or_the_teacher_of_another_is_refused(
    ended: Run, tmp_path: Path, quick: Make, name: str
) -> None:
    other = Run(tmp_path / "other")
    other.begin(quick(sparsity__rate=16.0), {**OURS, "teacher": "other"})
    (ended.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(InputError, match=r"result.json is of another recipe, teacher or data; put back its own files"):
        ended.result()


def test_weights_and_results_of_another_run_are_refused(ended: Run, tmp_path: Path, quick: Make) -> None:
    other = Run(tmp_path / "other")
    other.begin(quick(training__seed=9), OURS)
    model = build("lenet@0.1", 10, 1)
    other.finish({**SUMMARY, "model": other.save_model(model, describe_model(model, 10, 1))})
    kept = (ended.path / "model.safetensors").read_bytes()
    (ended.path / "model.safetensors").write_bytes((other.path / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"model.safetensors is not the one that model.json was written for"):
        load_model(ended.path)
    (ended.path / "model.safetensors").write_bytes(kept)
    (ended.path / "result.json").write_bytes((other.path / "result.json").read_bytes())
    with pytest.raises(InputError, match=r"result.json is of another model than model.json"):
        ended.result()


def test_a_run_without_hashes_still_loads(ended: Run) -> None:
    for name in ("model.json", "result.json"):
        about = json.loads((ended.path / name).read_text())
        for key in {"checksum", "fingerprint", "model", "identity", "metrics_checksum"} & about.keys():
            del about[key]
        (ended.path / name).write_text(json.dumps(about))
    load_model(ended.path)
    assert ended.result() == SUMMARY


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", 3),
        ("example_free", "yes"),
        ("images", 0),
        ("images", True),
        ("seed", "one"),
        ("training_seconds", None),
        ("rate", "4"),
        ("sparsity", []),
        ("sparsity", [{"layer": "a", "total": "8", "kept": 2}]),
        ("teacher", [1]),
        ("pruned", {}),
        ("pruned", {"natural": "90"}),
        ("pruned", {"natural": 101.0}),
        ("pruned", {"natural": 50.0, "pgd20": 60.0}),
        ("pruned", {"natural": 50.0, "autoattack": 60.0}),
        ("pruned", {"natural": 10**400}),
        ("warnings", ["a"]),
        ("warnings", [{"check": "a", "message": "b", "model": 3}]),
        ("overall_rate", "3.9"),
        ("overall_rate", 10**400),
        ("nonzero", None),
        ("macs", -1),
        ("macs_dense", 1.5),
        ("macs_rate", []),
        ("left_out", {"token": 3}),
        ("fewer", {"strong": "128"}),
        ("fewer", 128),
        ("trained_epochs", "3"),
    ],
)
def test_values_that_cannot_be_in_a_result_are_refused(run: Run, key: str, value: Any) -> None:
    run.write_json("result.json", WHOLE)
    assert run.result() == WHOLE
    run.write_json("result.json", WHOLE | {key: value})
    with pytest.raises(InputError, match=rf"result.json is damaged: its {key} cannot be; run it anew elsewhere"):
        run.result()


@pytest.mark.parametrize(
    ("rate", "lost"), [("overall_rate", "nonzero"), ("overall_rate", "parameters"), ("macs_rate", "macs_dense")]
)
def test_a_rate_without_what_it_is_of_is_refused(run: Run, rate: str, lost: str) -> None:
    run.write_json("result.json", WHOLE)
    assert run.result()[rate] == WHOLE[rate]
    run.write_json("result.json", {key: value for key, value in WHOLE.items() if key != lost})
    with pytest.raises(InputError, match=f"result.json is damaged: it has no {lost}; run it anew elsewhere"):
        run.result()


def test_a_kill_after_the_end_leaves_nothing_for_good(ended: Run) -> None:
    ended.save_checkpoint({"lines": 0})
    (ended.path / ".lock").touch()
    (ended.path / ".0123456789abcdef.part").touch()
    for left in (".lock", "progress.safetensors", "result.json"):
        (ended.path / "evaluation" / "model").mkdir(parents=True, exist_ok=True)
        (ended.path / "evaluation" / "model" / left).touch()
    ended.tidy_finished()
    assert os.listdir(ended.path / "evaluation" / "model") == ["result.json"]
    assert sorted(os.listdir(ended.path)) == [
        "evaluation",
        "model.json",
        "model.safetensors",
        "recipe.toml",
        "result.json",
        "teacher.json",
    ]
