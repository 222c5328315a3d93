"""A model as a folder of C code, put in place whole."""

import os
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from pwoa.deploy.artefact import ABOUT
from pwoa.deploy.export import Draft
from pwoa.deploy.original import Original
from pwoa.storage.folder import naming, sealed, to_json, unsealed
from pwoa.storage.reading import read_json


def draft(original: Original) -> Draft:
    """Write a model as C code, and compile it to see what it computes."""
    route = import_module("pwoa.deploy.c")

    def write(folder: Path) -> None:
        route.write_c(original.model, original.sample, folder, images=original.sample)

    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary) / "c")
        compiled = route.load_c(Path(temporary) / "c")

    def save(path: Path, about: dict[str, Any]) -> None:
        aside = path.with_name(f".{os.urandom(8).hex()}.part")
        try:
            with naming(path.parent):
                write(aside)
                own = unsealed(read_json(aside / ABOUT), ABOUT)
                (aside / ABOUT).write_text(to_json(sealed({**own, **about})), encoding="utf-8")
                shutil.rmtree(path, ignore_errors=True)  # the same export, as was checked
                os.replace(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    return Draft(compiled, save, exact=True)
