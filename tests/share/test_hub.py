"""Pushing to and fetching from a hub: a server on this machine that speaks as much as is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, constants
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.folder import fingerprint

TOKEN = "hf_stand_in"
SOURCE = Path(pwoa.__file__).parents[1]


class StandIn(ThreadingHTTPServer):
    """A hub that keeps every commit of every repository in memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.branches: dict[str, dict[str, str]] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[repo][branch]]


class Answer(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def say(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/validate-yaml":
            return self.say({"errors": [], "warnings": []})
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.say({"error": "who are you?"}, 401)
        if self.path == "/api/repos/create":
            return self.create(json.loads(body))
        found = re.fullmatch(r"/api/models/(\w+/\w+)/(preupload|commit|branch)/(\w+)", self.path)
        if found is None or found[1] not in self.server.branches:
            return self.say({"error": "not found"}, 404, X_Error_Code="RepoNotFound")
        if found[2] == "preupload":
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            return self.say({"files": [{"path": file["path"], **mode} for file in json.loads(body)["files"]]})
        if found[2] == "branch":
            self.server.branches[found[1]].setdefault(found[3], "0" * 40)
            return self.say({})
        return self.commit(found[1], found[3], [json.loads(line) for line in body.splitlines()])

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.server.branches else 200
        self.server.branches.setdefault(repo, {"main": "0" * 40})
        if asked.get("private") or asked.get("visibility") == "private":
            self.server.private.add(repo)
        self.say({"url": f"{self.server.url}/{repo}", "id": repo}, status)

    def commit(self, repo: str, branch: str, lines: list[dict[str, Any]]) -> None:
        known = self.server.branches[repo]
        files = dict(self.server.commits.get(known[branch], {}))
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        known[branch] = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.server.commits[known[branch]] = files
        self.say({"commitUrl": f"{self.server.url}/{repo}/commit/{known[branch]}", "commitOid": known[branch]})

    def do_GET(self) -> None:
        if found := re.match(r"/api/models/(\w+/\w+)/(revision|tree)/(\w+)", self.path):
            return self.describe(found[1], found[2], found[3])
        found = re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/([\w.]+)", self.path)
        if found is None or found[3] not in self.server.commits.get(found[2], {}):
            return self.say({"error": "not found"}, 404, X_Error_Code="EntryNotFound")
        content = self.server.commits[found[2]][found[3]]
        return self.say(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=found[2])

    do_HEAD = do_GET

    def describe(self, repo: str, what: str, revision: str) -> None:
        if repo not in self.server.branches or (
            repo in self.server.private and self.headers["Authorization"] != f"Bearer {TOKEN}"
        ):
            return self.say({"error": "not found"}, 401, X_Error_Code="RepoNotFound")
        commit = self.server.branches[repo].get(revision, revision)
        if commit not in self.server.commits:
            return self.say({"error": "not found"}, 404, X_Error_Code="RevisionNotFound")
        files = self.server.commits[commit]
        if what == "tree":
            oids = {name: hashlib.sha1(content).hexdigest() for name, content in files.items()}
            return self.say([{"type": "file", "path": n, "oid": oids[n], "size": len(c)} for n, c in files.items()])
        return self.say({"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]})


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def hub(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, where huggingface_hub looks for the hub, with an empty cache and somebody logged in."""
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    template = stand_in.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return stand_in


def network(width: float = 0.02) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(f"lenet@{width}", 10, 1)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_goes_to_the_hub_and_comes_back(hub: StandIn) -> None:
    assert pwoa.push_to_hub(network(), "me/net") == f"{hub.url}/me/net"
    assert sorted(hub.files("me/net")) == ["README.md", "config.json", "model.safetensors"]
    assert b'pwoa.load_model("hf:me/net")' in hub.files("me/net")["README.md"]
    for name in ("hf:me/net", "hf:me/net@main"):
        model = pwoa.load_model(name)
        assert fingerprint(model) == fingerprint(network())
        assert not model.training
    assert not hub.private


def test_a_folder_is_pushed_as_it_is_once_it_is_found_sound(hub: StandIn, tmp_path: Path) -> None:
    folder = pwoa.save_pretrained(network(), tmp_path / "model")
    (folder / "README.md").write_text('mine: pwoa.load_model(".")')
    (folder / "diary.txt").write_text("private")
    pwoa.push_to_hub(folder, "me/net")
    files = hub.files("me/net")
    assert files["README.md"] == b'mine: pwoa.load_model("hf:me/net")'
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    assert (folder / "README.md").read_text() == 'mine: pwoa.load_model(".")'
    (folder / "model.safetensors").write_bytes(b"")
    assert "is not a safetensors file" in refused(lambda: pwoa.push_to_hub(folder, "me/other"))
    assert "me/other" not in hub.branches


def test_revisions_are_kept_apart(hub: StandIn) -> None:
    pwoa.push_to_hub(network(0.02), "me/net")
    first = hub.branches["me/net"]["main"]
    pwoa.push_to_hub(network(0.03), "me/net")
    pwoa.push_to_hub(network(0.04), "me/net", revision="wide")
    widths = {"main": 0.03, "wide": 0.04, first: 0.02}
    assert {revision: pwoa.load_model("hf:me/net", revision=revision).width for revision in widths} == widths
    assert pwoa.load_model("hf:me/net@wide").width == 0.04


def test_what_was_fetched_once_is_there_without_the_hub(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pwoa.push_to_hub(network(), "me/net")
    pwoa.load_model("hf:me/net")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fingerprint(pwoa.load_model("hf:me/net")) == fingerprint(network())
    assert "cannot be fetched from the hub" in refused(lambda: pwoa.load_model("hf:me/other"))


def test_weights_that_were_changed_on_the_hub_are_refused(hub: StandIn) -> None:
    pwoa.push_to_hub(network(), "me/net")
    content = bytearray(hub.files("me/net")["model.safetensors"])
    content[-1] ^= 1
    hub.files("me/net")["model.safetensors"] = bytes(content)
    assert "hf:me/net: model.safetensors is not the one that config.json" in refused(
        lambda: pwoa.load_model("hf:me/net")
    )


def test_what_the_hub_refuses_is_one_line(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pwoa.push_to_hub(network(), "me/net")
    pwoa.push_to_hub(network(), "me/secret", private=True)
    assert hub.private == {"me/secret"}
    none = "there is no such model or revision, or it is private and you are not logged in"
    assert none in refused(lambda: pwoa.load_model("hf:me/nothing"))
    assert none in refused(lambda: pwoa.load_model("hf:me/net", revision="nowhere"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert none in refused(lambda: pwoa.load_model("hf:me/secret"))
    denied = "me/net cannot be pushed to: not allowed (HTTP 401); log in with `hf auth login`, or set HF_TOKEN"
    assert refused(lambda: pwoa.push_to_hub(network(), "me/net")) == denied
    assert pwoa.push_to_hub(network(), "me/net", token=TOKEN) == f"{hub.url}/me/net"


@pytest.mark.parametrize(
    ("name", "value"),
    [("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", True)],
)
def test_a_hub_that_cannot_be_reached_is_one_clear_line(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(constants, name, value)
    why = "the hub cannot be reached; check the network, and HF_ENDPOINT and HF_HUB_OFFLINE if they are set"
    assert refused(lambda: pwoa.push_to_hub(network(), "me/net")) == f"me/net cannot be pushed to: {why}"
    fetched = refused(lambda: pwoa.load_model("hf:me/net"))
    assert fetched == f"hf:me/net cannot be fetched from the hub: {why}"


def test_what_else_the_hub_answers_is_passed_on(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*args: Any, **options: Any) -> None:
        error = ConnectionError("503 Service Unavailable\nand more")
        error.response = SimpleNamespace(status_code=503)  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(HfApi, "create_repo", busy)
    message = refused(lambda: pwoa.push_to_hub(network(), "me/net"))
    assert message == "me/net cannot be pushed to: ConnectionError: 503 Service Unavailable"


def test_another_model_on_the_hub_is_refused(hub: StandIn) -> None:
    hub.branches["me/other"] = {"main": "1" * 40}
    hub.commits["1" * 40] = {"config.json": b'{"architectures": ["ViT"]}', "model.safetensors": b"", "x.py": b"boom"}
    assert "it is not of a model that pwoa saved" in refused(lambda: pwoa.load_model("hf:me/other"))
    hub.branches["me/old"] = {"main": "2" * 40}
    hub.commits["2" * 40] = {"pytorch_model.bin": b""}
    assert "me/old is no model folder: it has no config.json" in refused(lambda: pwoa.load_model("hf:me/old"))


def test_a_model_on_the_hub_is_evaluated_and_pruned(hub: StandIn, tmp_path: Path) -> None:
    pwoa.push_to_hub(network(), "me/teacher")
    asked = [
        "evaluate",
        "hf:me/teacher",
        "--data",
        "mnist-mini",
        "--attacks",
        "natural",
        "--images",
        "50",
        "--no-checks",
    ]
    done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "scores")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "scores" / "result.json").read_text())["architecture"] == "lenet@0.02"
    few = {
        "search.epochs": 1,
        "finetune.epochs": 1,
        "evaluation.images": 20,
        "evaluation.attacks": "natural",
        "evaluation.checks": False,
        "evaluation.strong": 0,
    }
    teacher = {"teacher.checkpoint": "hf:me/teacher", "teacher.architecture": "auto", "data.validation": 20}
    plan = pwoa.load_recipe("demo").with_settings(few | teacher)
    data = pwoa.load_data("mnist-mini")
    small = Data(data.name, data.train.first(100), data.test, 10)
    result = pwoa.prune(data=small, recipe=plan, folder=tmp_path / "run", force=True)
    assert result.summary["rate"] == pytest.approx(4, rel=0.01)
    pwoa.push_to_hub(result, "me/pruned")
    assert b'base_model: "me/teacher"' in hub.files("me/pruned")["README.md"]
    assert fingerprint(pwoa.load_model("hf:me/pruned")) == fingerprint(result.model)
    shown = CliRunner().invoke(app, ["models", "inspect", "hf:me/pruned"]).output
    assert f"natural {result.summary['pruned']['natural']:.2f} (by its card)" in shown


def test_the_command_line_with_the_hub_in_the_environment(stand_in: StandIn, tmp_path: Path) -> None:
    folder = pwoa.save_pretrained(network(), tmp_path / "model")
    environment = os.environ | {
        "HF_ENDPOINT": stand_in.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "PYTHONPATH": str(SOURCE),
    }

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pwoa", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert call("push", str(folder), "--repo", "me/net", "--private") == f"{stand_in.url}/me/net\n"
    assert stand_in.private == {"me/net"}
    shown = call("models", "inspect", "hf:me/net")
    assert "lenet@0.02" in shown
    assert fingerprint(network())[:16] in shown
