"""Tiny data sets in the official formats, and a web server that can misbehave."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pwoa.data.catalog import CIFAR10_BINARY, CIFAR10_PYTHON, Dataset, idx_layout
from pwoa.data.formats import Split
from pwoa.data.store import digest


def random_split(shape: tuple[int, int, int], count: int, seed: int) -> Split:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (count, *shape), dtype=np.uint8)
    return Split(pixels, draw.integers(0, 10, count))


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def cifar_bytes(split: Split) -> bytes:
    rows = split.pixels.reshape(len(split.labels), -1)
    return np.concatenate([split.labels[:, None].astype(np.uint8), rows], axis=1).tobytes()


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, as the published CIFAR batches have them."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)
    write: Any
    memoize: Any

    def save_string(self, value: str | bytes) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def tar_bytes(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@dataclass(frozen=True)
class Tiny:
    """A synthetic data set: what is in it, its specification, and what its official address offers."""

    spec: Dataset
    train: Split
    test: Split
    offered: dict[str, bytes]

    def at(self, url: str) -> Dataset:
        return replace(self.spec, url=url)


@pytest.fixture
def tiny_idx() -> Tiny:
    train, test = random_split((1, 5, 4), 12, seed=0), random_split((1, 5, 4), 6, seed=1)
    layout = idx_layout("MNIST/raw")
    contents = [
        content for split in (train, test) for content in (idx_bytes(split.pixels[:, 0]), idx_bytes(split.labels))
    ]
    offered = {f"{name}.gz": gzip.compress(content) for name, content in zip(layout.files, contents, strict=True)}
    spec = Dataset(
        name="tiny-idx",
        shape=(1, 5, 4),
        sizes=(12, 6),
        classes=10,
        layouts=(layout,),
        digests=(digest(train), digest(test)),
        url="http://127.0.0.1:9/",
        remotes={name: md5(content) for name, content in offered.items()},
        contents={name: md5(content) for name, content in zip(layout.files, contents, strict=True)},
    )
    return Tiny(spec, train, test, offered)


def cifar_files(train: Split, test: Split) -> dict[str, Split]:
    parts = {
        f"data_batch_{i + 1}": Split(train.pixels[2 * i : 2 * i + 2], train.labels[2 * i : 2 * i + 2]) for i in range(5)
    }
    return parts | {"test_batch": test}


def cifar_binary_files(train: Split, test: Split) -> dict[str, bytes]:
    return {f"{name}.bin": cifar_bytes(split) for name, split in cifar_files(train, test).items()}


def cifar_python_files(train: Split, test: Split) -> dict[str, bytes]:
    return {
        name: python2_pickle({"data": split.pixels.reshape(2, -1), "labels": split.labels.tolist()})
        for name, split in cifar_files(train, test).items()
    }


@pytest.fixture
def tiny_cifar() -> Tiny:
    train, test = random_split((3, 32, 32), 10, seed=2), random_split((3, 32, 32), 2, seed=3)
    archive = tar_bytes({f"{CIFAR10_BINARY.folder}/{k}": v for k, v in cifar_binary_files(train, test).items()})
    spec = Dataset(
        name="tiny-cifar",
        shape=(3, 32, 32),
        sizes=(10, 2),
        classes=10,
        layouts=(CIFAR10_BINARY, CIFAR10_PYTHON),
        digests=(digest(train), digest(test)),
        url="http://127.0.0.1:9/",
        remotes={"cifar-10-binary.tar.gz": md5(archive)},
    )
    return Tiny(spec, train, test, {"cifar-10-binary.tar.gz": archive})


@pytest.fixture
def write_files() -> Callable[[Path, Mapping[str, bytes]], Path]:
    def write(folder: Path, files: Mapping[str, bytes]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return write


@dataclass
class Server:
    """What the server offers, how it misbehaves, and the (path, range) of each request it got."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)  # for each of the next requests: bytes that come
    supports_range: bool = True
    length: str | None = None  # what is said in the place of the true length
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, span = self.path.lstrip("/"), self.headers.get("Range")
            state.requests.append((name, span))
            content = state.files.get(name)
            start = int(span.removeprefix("bytes=").removesuffix("-")) if span and state.supports_range else 0
            if content is None:
                return self.send_error(404)
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if state.length != "":
                self.send_header("Content-Length", state.length or str(len(content) - start))
            self.end_headers()
            end = state.break_after.pop(0) if state.break_after else len(content)
            self.wfile.write(content[start : start + end])
            return None

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, so that no test sees or touches the user's."""
    monkeypatch.setenv("PWOA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cifar() -> Callable[[str, Tiny], tuple[dict[str, bytes], str, tuple[str, bytes]]]:
    """The files of a tiny CIFAR in one of its forms, their official folder, and their official archive."""

    def make(form: str, tiny: Tiny) -> tuple[dict[str, bytes], str, tuple[str, bytes]]:
        layout = {"binary": CIFAR10_BINARY, "python": CIFAR10_PYTHON}[form]
        make_files = {"binary": cifar_binary_files, "python": cifar_python_files}[form]
        files = make_files(tiny.train, tiny.test)
        content = tar_bytes({f"{layout.folder}/{name}": data for name, data in files.items()})
        return files, layout.folder, (str(layout.archive), content)

    return make
