"""One function that writes a model for where it runs: loaded by the one door, compared with torch, put in place."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from pwoa.deploy.artefact import Artefact, Check, checked, identity, read_about, size
from pwoa.deploy.original import Original, Source
from pwoa.errors import InputError, did_you_mean
from pwoa.models.border import LogitModel
from pwoa.models.checkpoints.packed import check_precision
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import records_recipe
from pwoa.runs.folder import Result
from pwoa.storage.folder import naming

FOLDER = "export"
"""Where artefacts go if nobody says: in the run, or under the name of the model."""


TOLERANCE = 1e-4
"""How far the logits of an artefact in float32 may be from torch's, relative to the largest."""
ODD_IMAGES = 10_000
"""Of so many images at most one may be seen as another class there: two logits can be equal up to rounding."""


@dataclass(frozen=True)
class Draft:
    """An artefact that is not written yet: its logits, and how it is saved as a path with what is known of it.

    exact: it computes in float32, and is refused if it computes something else than the model.
    """

    logits: LogitModel
    save: Callable[[Path, dict[str, Any]], None]
    exact: bool


@dataclass(frozen=True)
class Writer:
    """A kind of artefact: the name of its file or folder, and the module whose `draft(original, …)` makes it.

    needs_images: it cannot be made without any.
    """

    name: str
    home: str
    needs_images: bool = True


WRITERS = {
    "packed": Writer("model.packed.safetensors", "pwoa.deploy.packed", needs_images=False),
    "onnx": Writer("model.onnx", "pwoa.deploy.onnx_file"),
    "int8": Writer("model.int8.onnx", "pwoa.deploy.int8"),
    "c": Writer("c", "pwoa.deploy.c_folder"),
}
"""The kinds of artefacts. A new one is a module and a line here."""


def export(
    source: Source,
    to: str,
    out: str | Path | None = None,
    *,
    data: Any = None,
    data_folder: str | Path | None = None,
    architecture: str | nn.Module | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    values: str | None = None,
    images: int = 1000,
    progress: Progress | bool | None = None,
) -> Artefact:
    """Write a model as one kind of artefact. Example: `export(result, "onnx").path`.

    source: what `prune` and `pretrain` return, a network, or whatever `load_model` takes; nothing of it is changed.
    to: packed (one small safetensors file that `load_model` reads), onnx, int8 (ONNX with weights and activations of 8
        bits), or c (a folder of C code).
    out: the folder to write into; None is `export` in the run folder, or `export/NAME`. What is there is refused, but
        for the same export.
    data: the images the model is for, as `load_data` takes them; None takes the run's. int8 is calibrated on training
        images.
    data_folder: as for `load_data`.
    images: on how many test images the artefact is compared with torch before it is put in place.
    architecture, mean, std: as for `load_model`.
    values: how a packed file keeps its weights: float32 (the same to the bit, the default), float16, or int8.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    """
    (made,) = exports(
        source,
        [to],
        out,
        data=data,
        data_folder=data_folder,
        architecture=architecture,
        mean=mean,
        std=std,
        values=values,
        images=images,
        progress=progress,
    )
    return made


def exports(
    source: Source,
    kinds: Sequence[str],
    out: str | Path | None = None,
    *,
    values: str | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Iterator[Artefact]:
    """Write a model as several kinds of artefacts, one after the other; as `export`, whose options these are."""
    if not kinds:
        raise InputError(f"say what to export to: {', '.join(WRITERS)}")
    if odd := [kind for kind in kinds if kind not in WRITERS]:
        raise InputError(f"cannot export to {odd[0]!r} ({did_you_mean(odd[0], WRITERS)})")
    if values is not None and "packed" not in kinds:
        raise InputError(f"values={values!r} goes with packed files; leave it out")
    if values is not None:
        check_precision(values)
    original = Original.of(source, progress=choose_progress(progress), **options)
    folder = Path(out) if out is not None else _usual_folder(source)
    for kind in dict.fromkeys(kinds):
        own = {"kind": kind, **({"values": values or "float32"} if kind == "packed" else {})}
        _check_place(folder / WRITERS[kind].name, original, own)
    return (write(original, kind, folder, values) for kind in dict.fromkeys(kinds))


def write(original: Original, kind: str, folder: Path, values: str | None = None) -> Artefact:
    """Write a model that was loaded before as one kind of artefact into a folder."""
    writer = WRITERS[kind]
    if writer.needs_images and original.data is None:
        raise InputError(f"{kind} is made and compared on images: {original.missing}")
    try:
        module = import_module(writer.home)
    except ModuleNotFoundError as error:
        raise InputError(f"{kind} needs {error.name}, which is not installed: pip install 'pwoa[onnx]'") from None
    draft: Draft = module.draft(original, **({"values": values or "float32"} if kind == "packed" else {}))
    check = None if original.data is None else original.compare(draft.logits)
    if draft.exact and check is not None and not _agrees(check):
        raise InputError(f"{kind} does not compute what the model does: {check}; nothing was written")
    about = {**checked(original.about, check), "kind": kind}
    path = folder / writer.name
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    draft.save(path, about)
    return Artefact(kind, path, size(path), original.dense_bytes, identity(path), about, check, original.missing)


def _agrees(check: Check) -> bool:
    """Tell whether an artefact computes what the model does; NaN is not near anything."""
    return check.difference <= TOLERANCE and check.images - check.same <= -(-check.images // ODD_IMAGES)


def _usual_folder(source: Source) -> Path:
    """Return `export` in a run; else `export/NAME` here."""
    if isinstance(source, Result):
        return Path(source.folder) / FOLDER
    if isinstance(source, nn.Module):
        return Path(FOLDER) / type(source).__name__.lower()
    if records_recipe(source):
        return Path(source) / FOLDER
    name = str(source).partition("@")[0].rpartition(":")[2]
    return Path(FOLDER) / (Path(name).stem or "model")


def _check_place(path: Path, original: Original, own: Mapping[str, str]) -> None:
    """Refuse to write over anything but the same export."""
    if not path.exists() and not path.is_symlink():
        return
    try:
        there = {} if path.is_symlink() else read_about(path)
    except InputError:
        there = {}
    table = there.get("packed")
    values = table.get("values") if isinstance(table, dict) else None
    known = {"kind": there.get("kind"), "model": there.get("model"), "values": values}
    wanted = {"values": None, **own, "model": original.about["model"]}
    if known != wanted:
        what = "holds another export" if there else "exists and is no export"
        raise InputError(f"{path} {what}; choose another folder with --out (in Python: out=)")
