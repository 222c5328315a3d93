"""What is in a checkpoint, as rows for a person."""

from __future__ import annotations

from pwoa.models import Inspection


def inspection_rows(found: Inspection) -> list[tuple[str, str]]:
    """A name and a value a row, in the order in which one asks."""
    known = found.architecture is not None
    normalisation = "none in the file; if it was done outside the network, give --mean and --std"
    if found.normalisation is not None:
        normalisation = "none (mean 0, std 1)" if found.normalisation.trivial else str(found.normalisation)
    rows = [
        ("file", found.path),
        ("architecture", found.architecture or "not a registered one"),
        ("classes", str(found.classes) if known else "unknown"),
        ("input channels", str(found.channels) if known else "unknown"),
        ("parameters", f"{found.parameters:,}"),
        ("normalisation", normalisation),
        ("saved as", found.dtype),
        ("container", found.container or "none: a bare state dict"),
        ("prefix taken off", found.prefix or "none"),
    ]
    if found.sparsity:
        rows.append(("exact zeros", f"{100 * found.sparsity:.1f} % of the weights"))
    return rows + [(f"dropped: {name}", why) for name, why in found.dropped.items()]
