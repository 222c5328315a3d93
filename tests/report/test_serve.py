"""The server answers for the folder that it was given, to this machine, and stays alive."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from pwoa.cli import app
from pwoa.errors import InputError
from pwoa.report.serve import Server, serve


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    with serve(runs.parent) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_address[1]}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content, dict(answer.headers)


def test_the_list_leads_to_a_page_of_each(server: Server) -> None:
    status, index, headers = ask(server, "/")
    assert status == 200
    for name in ("runs", "runs/naive", "runs/pwoa", "runs/scratch"):
        assert f'href="/page/{name}"' in index
        status, page, _ = ask(server, f"/page/{name}")
        assert status == 200
        assert 'href="/"' in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/page/../../etc/passwd",
        "/page/..%2f..%2fetc%2fpasswd",
        "/page/%2e%2e/%2e%2e",
        "/page//etc",
        "/page/runs/pwoa/recipe.toml",
        "/page/runs/pwoa/../pwoa",
        "/page/runs/./pwoa",
        "/page/runs\\pwoa",
        "/page/runs/pwoa%00",
        "/page/",
        "/whole",
        "/page/out",
        "/page/runs/out",
        "/runs/pwoa/model.safetensors",
        "//127.0.0.1/etc",
        "http://127.0.0.1/etc/passwd",
    ],
)
def test_nothing_else_is_answered(path: str, server: Server, runs: Path, made: Path) -> None:
    for place in (runs.parent / "out", runs / "out"):
        place.symlink_to(made / "runs" / "pwoa")
    status, answer, _ = ask(server, path)
    assert status == 404
    assert "root:" not in answer
    assert "recipe" not in answer


def test_no_file_is_read_through_a_link_that_leads_out(
    server: Server, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    for name in ("recipe.toml", "evaluation"):
        shutil.move(runs / "pwoa" / name, outside / name)
        (runs / "pwoa" / name).symlink_to(outside / name)
        status, page, _ = ask(server, "/page/runs/pwoa")
        assert status == 200
        assert "leads out of the folder" in page
        assert "Settings" not in page
        assert "Robustness" not in page


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil:1", "[::2]"]
)
def test_a_request_by_another_name_is_refused(host: str, server: Server) -> None:
    status, answer, _ = ask(server, "/", host=host)
    assert status == 421
    assert "pwoa" not in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80", "[::1]"])
def test_this_machine_may_be_called_as_usual(host: str, server: Server) -> None:
    assert ask(server, "/", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading(method: str, server: Server) -> None:
    assert ask(server, "/", method)[0] == 501
    assert ask(server, "/", "HEAD")[:2] == (200, "")


def test_a_run_under_way_is_shown_as_it_goes_on(server: Server, runs: Path) -> None:
    run = runs / "pwoa"
    for name in ("result.json", "model.safetensors", "model.json"):
        (run / name).unlink()
    shutil.rmtree(run / "evaluation")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for done in range(1, len(lines)):
        (run / "metrics.jsonl").write_text("\n".join(lines[:done]) + "\n")
        page = ask(server, "/page/runs/pwoa")[1]
        assert f"Done: {done} of 4 epochs." in page
        assert "This page renews itself." in page
    assert "This page renews itself." not in ask(server, "/page/runs/naive")[1]
    assert ">training<" in ask(server, "/")[1]


def test_a_thousand_requests_at_once_leave_it_alive(server: Server) -> None:
    async def one(number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.server_address[1])
        path = ("/", "/page/runs/pwoa", "/page/runs", "/nothing")[number % 4]
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.split(b"\r\n", 1)[0]

    async def all_at_once() -> list[bytes]:
        return await asyncio.gather(*map(one, range(1000)))

    answers = asyncio.run(all_at_once())
    assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"200", b"404"] * 250
    silent = [socket.create_connection(("127.0.0.1", server.server_address[1])) for _ in range(50)]
    assert ask(server, "/")[0] == 200
    for connection in silent:
        connection.close()


def test_broken_folders_are_served_too(server: Server, runs: Path) -> None:
    (runs / "pwoa" / "result.json").write_text("{")
    (runs / "naive" / "recipe.toml").write_bytes(b"\xff")
    (runs / "one.failure.json").write_text(json.dumps({"error": "no memory"}))
    for path in ("/", "/page/runs", "/page/runs/pwoa", "/page/runs/naive"):
        assert ask(server, path)[0] == 200


def test_what_cannot_be_served_is_told_in_a_line(tmp_path: Path, server: Server) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        serve(tmp_path / "nowhere")
    with pytest.raises(InputError, match="choose another with --port"):
        serve(tmp_path, server.server_address[1])
    answer = CliRunner().invoke(app, ["report", "--serve", str(tmp_path), str(tmp_path)])
    assert (answer.exit_code, answer.stderr) == (2, "error: --serve takes one folder that has the runs in it, not 2\n")


@pytest.mark.parametrize("inside", [".", "pwoa"])
def test_the_folder_itself_has_a_page(inside: str, runs: Path) -> None:
    with serve(runs / inside) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        assert 'href="/whole"' in ask(server, "/")[1]
        status, page, _ = ask(server, "/whole")
        assert (status, "Robustness" in page) == (200, True)
        server.shutdown()


def test_a_folder_without_runs_has_a_list(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        assert "There are no runs here yet." in ask(server, "/")[1]
        server.shutdown()
