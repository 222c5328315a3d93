"""Where the teachers of the plans are: embedded, in a folder by name, or trained when asked."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.methods import find_method
from pwoa.models.checkpoints.folder import WEIGHTS, fingerprint
from pwoa.models.load import kind_of, load_model
from pwoa.paper.cells import find_teacher, known_teachers
from pwoa.paper.rows import SHORT
from pwoa.recipe import Recipe, load_recipe, numbers, parse_setting
from pwoa.storage.folder import RESULT
from pwoa.storage.identity import identity
from pwoa.sweep.grid import Point

_ENDINGS = ("", ".safetensors", ".pt", ".pth")


class Teachers:
    """The teachers in a folder of the user's, and those that were trained in the folder of the runs.

    A teacher NAME is the file NAME.safetensors, NAME.pt or NAME.pth, or the run or model folder NAME.

    settings: those for all runs, which may say by what the images are normalised.
    """

    def __init__(
        self, given: Path | None, trained: Path, known: Iterable[Mapping[str, Any]] = (), settings: Sequence[str] = ()
    ) -> None:
        if given is not None and not given.is_dir():
            raise InputError(f"--teachers {given} is no folder; give the one that holds the teachers' files, by name")
        changed = Recipe().with_settings([setting for setting in settings if setting.startswith("teacher.")])
        for key in ("teacher.checkpoint", "teacher.architecture"):
            if key in changed.given:
                raise InputError(
                    f"{key} is what the plans say; give --teachers, a folder with the teachers' files by name"
                )
        self._given, self.trained, self._recipe = given, trained, changed.teacher
        self._fingerprints: dict[str, str | None] = {}
        self._hashes = {str(row["name"]): str(row["sha256"]) for row in known if row.get("sha256")}

    def find(self, name: str) -> Path | None:
        """Return the checkpoint of a teacher; None if there is none."""
        if find_teacher(name).checkpoint:
            return Path(find_teacher(name).checkpoint)
        for folder in filter(None, (self._given, self.trained)):
            for ending in _ENDINGS:
                path = folder / f"{name}{ending}"
                if path.is_file() or (path / WEIGHTS).is_file():
                    return path if folder == self._given or (path / RESULT).is_file() else None
        return None

    def where(self, name: str) -> str:
        """Return the checkpoint of a teacher, or where it would be."""
        return str(self.find(name) or self.trained / name)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return those of the teachers that are not there."""
        return [name for name in dict.fromkeys(names) if self.find(name) is None]

    def fingerprint(self, name: str) -> str | None:
        """Return the fingerprint of a teacher that is at hand, as rows have it; None for one that is not."""
        if name not in self._fingerprints:
            path = self.find(name) if name in known_teachers() else None
            self._fingerprints[name] = None if path is None else self._fingerprint(name, path)
        return self._fingerprints[name]

    def _fingerprint(self, name: str, path: Path) -> str:
        mean, std = (numbers(getattr(self._recipe, key), f"teacher.{key}") for key in ("mean", "std"))
        architecture = find_teacher(name).architecture if kind_of(path) == "file" else None
        return fingerprint(load_model(path, architecture=architecture, mean=mean, std=std))[:SHORT]

    def notes(self, names: Iterable[str]) -> list[str]:
        """Tell which of the teachers are not the ones whose hash is known from earlier results."""
        found = []
        for name in dict.fromkeys(names):
            path, expected = self.find(name), self._hashes.get(name)
            if path is None or expected is None or find_teacher(name).checkpoint:
                continue
            if (own := identity(path / WEIGHTS if path.is_dir() else path)) != expected:
                found.append(
                    f"{path} is another teacher than the one of the results "
                    f"(sha256 {own[:12]}…, there {expected[:12]}…); its numbers belong to it alone"
                )
        return found


def training_points(names: Sequence[str], settings: Sequence[str]) -> list[Point]:
    """Return the trainings of teachers, as points of a sweep, with the settings that their methods use."""
    points = []
    for name in names:
        recipe = load_recipe(find_teacher(name).recipe)
        used = [text for text in settings if find_method(recipe.method).uses_setting(parse_setting(text)[0])]
        points.append(Point(name, name, recipe.with_settings(used)))
    return points
