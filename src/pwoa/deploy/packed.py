"""A model in one packed file: bit masks and kept values, which `load_model` reads. See docs/packed-format.md."""

import copy
from pathlib import Path
from typing import Any

from pwoa.deploy.export import Draft
from pwoa.deploy.original import Original
from pwoa.errors import InputError
from pwoa.models.border import as_logits
from pwoa.models.checkpoints.packed import pack, to_packed, unpack
from pwoa.sparsity import prunable
from pwoa.storage.folder import replacing


def draft(original: Original, values: str = "float32") -> Draft:
    """Pack a model; only weights that can be pruned are rounded, if `values` are not float32."""
    model = original.model
    try:
        weights = set(prunable(model))
    except InputError:  # it has none
        weights = set()
    parts, table = pack(model.state_dict(), weights, values)
    twin = copy.deepcopy(model)
    twin.load_state_dict(unpack(parts, table, "the packed model"))

    def save(path: Path, about: dict[str, Any]) -> None:
        with replacing(path) as file:
            file.write(to_packed(parts, table, about))

    return Draft(as_logits(twin, original.about["classes"]), save, exact=values == "float32")
