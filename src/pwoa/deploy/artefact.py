"""An artefact: what `export` wrote, what is known of it, and the one hash that tells it from all others."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, counted
from pwoa.models.checkpoints.packed import described_in
from pwoa.storage.folder import unsealed
from pwoa.storage.identity import files_in
from pwoa.storage.identity import identity as identity
from pwoa.storage.reading import read_json

ABOUT = "artefact.json"
"""Where an artefact that is a folder says what it is, under the key `about`."""
SAME = 0.01
"""Files whose sizes differ by no more than this part are as large as each other."""


@dataclass(frozen=True)
class Check:
    """How near an artefact is to its model in torch, on the first test images.

    difference: the largest of two logits, relative to the largest logit. same: on how many images both see the same
    class. natural, natural_torch: accuracies in percent.
    """

    images: int
    difference: float
    same: int
    natural: float
    natural_torch: float

    def __str__(self) -> str:
        accuracy = f"natural accuracy {self.natural:.2f} %"
        if self.same != self.images:
            accuracy += f", in torch {self.natural_torch:.2f} %"
        verdicts = f"the same class on {self.same:,} of {counted(self.images, 'test image')}"
        return f"difference to torch {self.difference:.1e} of the largest logit; {verdicts}; {accuracy}"


@dataclass(frozen=True)
class Artefact:
    """What was written: its kind, where, its bytes and those of the dense float32 file, its hash, and what it says.

    check: how it was compared with torch; None where there were no images to do so, for the reason `unchecked`.
    """

    kind: str
    path: Path
    bytes: int
    dense_bytes: int
    sha256: str
    about: dict[str, Any]
    check: Check | None
    unchecked: str = ""

    def __str__(self) -> str:
        size = f"{self.bytes:,} bytes, {_beside(self.bytes, self.dense_bytes)} dense in float32 ({self.dense_bytes:,})"
        found = str(self.check) if self.check else f"not compared with torch on images: {self.unchecked}"
        return f"{self.kind}: {self.path}\n  {size}\n  {found}\n  sha256 {self.sha256}"


def _beside(bytes: int, dense: int) -> str:
    """Say how large a file is beside the dense one, in the words before "dense"."""
    if abs(bytes - dense) <= SAME * dense:
        return "as large as"
    return f"{dense / bytes:.2f}× smaller than" if bytes < dense else f"{bytes / dense:.2f}× larger than"


def checked(about: Mapping[str, Any], check: Check | None) -> dict[str, Any]:
    """Return what is known of a model together with how its artefact was compared."""
    return {**about, "checked": None if check is None else asdict(check)}


def size(path: Path) -> int:
    """Return the bytes of an artefact."""
    return sum((path / file).stat().st_size for file in files_in(path)) if path.is_dir() else path.stat().st_size


def read_about(path: str | Path) -> dict[str, Any]:
    """Return what an artefact says of itself: its model, rates, threat, measured robustness and how it was checked.

    Example: `read_about("runs/mine/export/model.onnx")["rate"]`.
    """
    path = Path(path)
    if (path / ABOUT).is_file():
        whole = unsealed(read_json(path / ABOUT), str(path / ABOUT))
        return {**about, "kind": whole.get("kind")} if isinstance(about := whole.get("about"), dict) else {}
    about = described_in(path)
    if about is None:
        raise InputError(f"{path} is not an artefact that pwoa exported")
    return about
