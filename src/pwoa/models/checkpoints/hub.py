"""The Hugging Face hub: models fetched from and pushed to it. Only here is huggingface_hub needed."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pwoa import __version__
from pwoa.errors import InputError, first_line

PREFIX = "hf:"
"""What stands before the name of a model on the hub where a file or a folder could be meant."""

_US = {"library_name": "pwoa", "library_version": __version__}
_WORD = r"(?!\.)(?:[\w-]|\.(?!\.|$|/|@)){1,96}"
"""Letters, digits, _, - and single dots inside, as in names and in each part of a revision: none is a folder above."""
_NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(@(?P<revision>.*))?", re.ASCII)
_REVISION = re.compile(rf"{_WORD}(/{_WORD})*", re.ASCII)


def fetch(name: str, revision: str | None, files: list[str]) -> Path:
    """Fetch these files, as far as there are, of `hf:owner/name` or `hf:owner/name@revision`; return their folder."""
    parts = _NAME.fullmatch(name.removeprefix(PREFIX))
    if parts is None:
        raise InputError(f"{name} is no model on the hub, which is named {PREFIX}owner/name")
    if revision and parts["revision"]:
        raise InputError(f"{name} says its revision; leave out revision={revision!r}")
    wanted = parts["revision"] if revision is None else revision
    _check_revision(wanted, name)
    with _connected(f"{name} is fetched from the hub", f"{name} cannot be fetched from the hub") as hub:
        return Path(hub.snapshot_download(parts["repo"], revision=wanted, allow_patterns=files, **_US))


def push(
    files: Mapping[str, Path | bytes],
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str,
) -> str:
    """Put files into a model repository in one commit, and return its address. A new repository is made."""
    if "@" in repo or not _NAME.fullmatch(repo):
        raise InputError(f"{repo} is no name on the hub; give owner/name")
    _check_revision(revision, repo)
    with _connected(f"{repo} is on the hub", f"{repo} cannot be pushed to") as hub:
        api = hub.HfApi(token=token, **_US)
        address = str(api.create_repo(repo, private=private, exist_ok=True))
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        changes = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()]
        api.create_commit(repo, changes, commit_message=message, revision=revision)
    return address


def _check_revision(revision: str | None, name: str) -> None:
    """Refuse what is no branch, tag or commit: the library would take it for a path in its cache."""
    if revision is not None and not _REVISION.fullmatch(revision):
        raise InputError(f"{name}: {revision!r} is no branch, tag or commit on the hub")


@contextmanager
def _connected(why: str, failure: str) -> Iterator[ModuleType]:
    """Give the library; what the hub or the way to it refuses becomes one line."""
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(f"{why}, which needs huggingface_hub: pip install 'pwoa[hub]'") from None
    try:
        yield huggingface_hub
    except Exception as error:  # the library passes on what its HTTP client raises
        raise InputError(f"{failure}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 404 or type(error).__name__ in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return "there is no such model or revision, or it is private and you are not logged in"
    if status in (401, 403):
        return f"not allowed (HTTP {status}); log in with `hf auth login`, or set HF_TOKEN"
    if status is None and _is_about_the_way(error):
        return "the hub cannot be reached; check the network, and HF_ENDPOINT and HF_HUB_OFFLINE if they are set"
    return f"{type(error).__name__}: {first_line(error)}"


def _is_about_the_way(error: BaseException) -> bool:
    """Tell whether there was no answer at all; by names, as the library's HTTP client changes with its version."""
    names = {kind.__name__ for kind in type(error).__mro__}
    known = {"RequestError", "ConnectionError", "Timeout"}  # of httpx; of requests and of Python; of requests
    return bool(names & known) or (error.__cause__ is not None and _is_about_the_way(error.__cause__))
