"""A model as a folder of C code, which says what it is in its artefact.json."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pwoa.deploy.c import load_c, write_c
from pwoa.deploy.export import Draft
from pwoa.deploy.original import Original
from pwoa.storage.folder import naming


def draft(original: Original) -> Draft:
    """Write a model as C code, and compile it to see what it computes."""

    def write(folder: Path, about: dict[str, Any]) -> None:
        write_c(original.model, original.sample, folder, about=about, images=original.images_to_test)

    def save(path: Path, about: dict[str, Any]) -> None:
        aside, before = (path.with_name(f".{os.urandom(8).hex()}.part") for _ in range(2))
        try:
            write(aside, about)
            with naming(path.parent):
                if path.exists():  # the same export, as was checked
                    os.rename(path, before)
                os.rename(aside, path)
        finally:
            for leftover in (aside, before):
                shutil.rmtree(leftover, ignore_errors=True)

    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary) / "c", {})
        return Draft(load_c(Path(temporary) / "c"), save, exact=True)
