"""Reading known files out of a tar archive; nothing is ever unpacked to a path the archive chose."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from pwoa.data.formats import Blob, check_not_web_page
from pwoa.errors import InputError


def read_members(archive: Path, folder: str, names: Iterable[str]) -> dict[str, Blob]:
    """The files `folder/name` of the archive, by name, read in one pass."""
    wanted = {f"{folder}/{name}": name for name in names}
    found: dict[str, Blob] = {}
    with archive.open("rb") as file:
        check_not_web_page(Blob(str(archive), file.read(256)), "an archive")
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = wanted.get(member.name)
                content = tar.extractfile(member) if name and member.isfile() else None
                if name and content:
                    found[name] = Blob(f"{archive}:{member.name}", content.read())
                if len(found) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        size = archive.stat().st_size
        raise InputError(f"{archive} is truncated or damaged: {size} bytes found ({error}); fetch it again") from None
    missing = sorted(wanted.keys() - {f"{folder}/{name}" for name in found})
    if missing:
        raise InputError(f"{archive} does not hold {', '.join(missing)}")
    return found
