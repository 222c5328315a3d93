"""What the files of a sweep say of the runs beside them: which are of an older grid, and why others failed."""

from collections.abc import Iterable
from pathlib import Path

from pwoa.errors import InputError
from pwoa.recipe import records_recipe
from pwoa.report.story import entries, words
from pwoa.storage.folder import RESULT, unsealed
from pwoa.storage.reading import read_json
from pwoa.sweep import ROWS

MOST = 200
"""How many failures are read."""


def of_older_grids(folder: Path, places: Iterable[Path]) -> list[Path]:
    """Return the places in a folder that are finished runs, and that the sweep's rows lack: its grid had them before.

    None is, where there are no rows. A run that ended after they were written is of a sweep that goes on, or was
    stopped, and the sweep has no row of a damaged one either.
    """
    rows = folder / ROWS
    names = _names(rows)
    if not names:
        return []
    written = rows.stat().st_mtime_ns
    return [place for place in places if place.name not in names and _ended_before(place, written)]


def failures(folder: Path) -> dict[str, str]:
    """Return why runs of a sweep failed, by their names, as the files beside them say."""
    found = {}
    for path in sorted(folder.glob("*.failure.json"))[:MOST]:
        try:
            said = read_json(path)
        except InputError as error:
            said = {"error": str(error)}
        reason = said.get("error") if isinstance(said, dict) else None
        found[path.name.removesuffix(".failure.json")] = words(reason) or "no reason is known"
    return found


def _names(rows: Path) -> set[str]:
    """Return the runs that the rows name; none where they are damaged, or a link, which can lead anywhere."""
    if rows.is_symlink() or not rows.is_file():
        return set()
    try:
        return {words(row.get("name")) for row in entries(read_json(rows))}
    except InputError:
        return set()


def _ended_before(place: Path, when: int) -> bool:
    result = place / RESULT
    try:
        if place.is_symlink() or result.is_symlink() or not records_recipe(place):
            return False
        if result.stat().st_mtime_ns > when:
            return False
        return bool(unsealed(read_json(result), RESULT))
    except (InputError, OSError):
        return False
