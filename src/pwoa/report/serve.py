"""Pages over HTTP, on this machine's own address alone: a folder of runs, with those under way as they go on.

Only reading. A page is found by its name in the list of what is there, so no path of a request is ever opened; no
symbolic link out of the folder is followed; and a request must be for this machine by name, so that a page elsewhere
cannot reach it by a name of its own.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import quote, unquote, urlsplit

from pwoa.errors import InputError, counted, explain
from pwoa.report.gather import children, gather, kind_of, left_out, tell
from pwoa.report.html import Markup, element, table
from pwoa.report.page import policy, render, shell
from pwoa.report.story import Story, words

LOOPBACK = "127.0.0.1"
_HOSTS = {LOOPBACK, "localhost", "[::1]"}
_DEPTH, _MOST = 4, 500
"""How deep below the folder runs are looked for, and how many are listed."""
_WHOLE = "/whole"
"""Where the page of the folder itself is, if it is a run or has runs right inside it."""
_KEPT = 64
"""How many pages are kept, to be sent again as long as their files are the same."""
_WAITING = 1024
"""How many connections may wait to be accepted."""
_SECONDS = 10
"""After so long without a word, a connection is closed."""


class Site:
    """The pages of a folder of runs, each made anew when its files have changed."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise InputError(f"{root} is not a folder; give the folder that has the runs in it")
        self._made: dict[str | None, tuple[str, bytes]] = {}
        self._lock = Lock()

    def names(self) -> dict[str, Path]:
        """Return every run, evaluation and folder of several that there is, by its name below the root.

        The root itself, where it is one, has no name.
        """
        found: dict[str, Path] = {}
        for folder in self._folders(self.root, _DEPTH):
            if len(found) < _MOST:
                found[folder.relative_to(self.root).as_posix() if folder != self.root else ""] = folder
        return found

    def _folders(self, folder: Path, depth: int) -> Iterator[Path]:
        if kind_of(folder):
            yield folder
            return
        inside = [place for place in _sorted(folder) if place.is_dir() and not place.is_symlink()]
        if any(kind_of(place) for place in inside):
            yield folder
        if depth:
            for place in inside:
                if not place.name.startswith("."):
                    yield from self._folders(place, depth - 1)

    def page(self, name: str | None) -> bytes | None:
        """Return the page of a name, or the list of all for None; None where there is nothing of that name."""
        with self._lock:  # a thousand readers need one page
            folder = None if name is None else self.names().get(name)
            if name is not None and folder is None:
                return None
            stamp = _stamp(folder or self.root)
            known = self._made.get(name)
            if known is None or known[0] != stamp:
                text = self._index() if folder is None else self._render(folder)
                if len(self._made) >= _KEPT:
                    self._made.clear()
                known = self._made[name] = (stamp, text.encode("utf-8", "replace"))
            return known[1]

    def _render(self, folder: Path) -> str:
        if kind_of(folder):
            stories = [tell(folder, self.root)]
        else:
            stories = gather([place for place in children(folder) if not place.is_symlink()], self.root)
        live = any(story.state != "finished" for story in stories)
        note = left_out(folder, stories)
        return render(stories, folder.name, notes=[note] if note else [], live=live, up="/")

    def _index(self) -> str:
        rows = [_row(name, folder, self.root) for name, folder in self.names().items()]
        told = (
            table(
                ["folder", "what", "state", "epochs", "natural", "worst case"], rows, "Accuracy in %", class_="sortable"
            )
            if rows
            else element("p", "There are no runs here yet.")
        )
        heading = counted(len(rows), "folder")
        return shell(f"Runs: {heading}", str(self.root), Markup(""), [], told, live=True)


def _row(name: str, folder: Path, root: Path) -> list[object]:
    link = element("a", name or root.name, href=f"/page/{quote(name)}" if name else _WHOLE)
    if not kind_of(folder):
        return [link, "several together", "", "", "", ""]
    story: Story = tell(folder, root)
    natural = story.model.under("natural") if story.model else None
    hardest = story.model.hardest if story.model else None
    accuracies = [f"{row.value:.2f}" if row else "" for row in (natural, hardest)]
    name = words(story.model.about.get("name")) if story.model and not story.method else ""
    way = story.way or (f"{story.kind} of {name}" if name else story.kind)
    what = ", ".join(filter(None, (way, f"{story.rate:.4g}×" if story.rate else "")))
    return [link, what, story.state, str(len(story.epochs) or ""), *accuracies]


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _stamp(folder: Path) -> str:
    """Return what changes with the files of a folder, as far as a page tells of them."""
    digest = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(folders)[:_MOST] if len(Path(place).relative_to(folder).parts) < _DEPTH + 3 else []
        for name in sorted(files)[:_MOST]:
            try:
                state = os.lstat(os.path.join(place, name))
            except OSError:  # just removed
                continue
            digest.update(f"{place}\0{name}\0{state.st_mtime_ns}\0{state.st_size}\0".encode("utf-8", "replace"))
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server_version, sys_version, timeout = "pwoa", "", _SECONDS

    def __init__(self, site: Site, *given: object) -> None:
        self._site = site
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with what goes before a page."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        host = self.headers.get("Host", "")
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if (name if colon and port.isdigit() else host).lower() not in _HOSTS:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this server answers only for this machine\n", with_body)
            return
        path = urlsplit(self.path).path
        try:
            if path == "/":
                page = self._site.page(None)
            elif path == _WHOLE:
                page = self._site.page("")
            elif name := unquote(path.removeprefix("/page/"), errors="replace").removesuffix("/"):
                page = self._site.page(name) if path.startswith("/page/") else None
            else:
                page = None
        except Exception as error:  # one page that cannot be made is no reason to leave a browser without an answer
            told = explain(error) or "this page cannot be made"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{told}\n".encode("utf-8", "replace"), with_body)
            return
        if page is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is no such page; the list of all is at /\n", with_body)
        else:
            self._send(HTTPStatus.OK, page, with_body, "text/html")

    def _send(self, status: HTTPStatus, body: bytes, with_body: bool, kind: str = "text/plain") -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy(live=True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Serves a site on the loopback address; port 0 takes a free one."""

    daemon_threads, request_queue_size = True, _WAITING

    def __init__(self, root: str | Path, port: int = 0) -> None:
        site = Site(root)
        try:
            super().__init__((LOOPBACK, port), partial(_Handler, site))
        except OSError as error:
            raise InputError(f"cannot serve on port {port}: {error.strerror}; choose another with --port") from None

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that broke off."""


def serve(root: str | Path, port: int = 0) -> Server:
    """Return a server of a folder of runs, to be started with `serve_forever`. Example: `serve("runs").address`."""
    return Server(root, port)
