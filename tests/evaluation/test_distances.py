"""Distances of the nearest broken images: kept, resumed, and good for the accuracy at every radius."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pwoa
from pwoa.attacks.fmn import minimal
from pwoa.attacks.registry import ATTACKS
from pwoa.data.images import Data
from pwoa.evaluation.scores import Scores
from pwoa.threat import Threat

THREAT = Threat("linf", 0.1, 0.02)


def evaluated(model: nn.Module, data: Data, folder: Path | None = None, **options: object) -> Scores:
    given = {"attacks": "natural,pgd2,fmn", "threat": THREAT, "checks": False, "batch": 20, **options}
    return pwoa.evaluate(model, data, folder=folder, **given)  # type: ignore[arg-type]


def test_distances_are_kept_and_tell_the_accuracy_at_the_radius(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data
) -> None:
    scores = evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    x, labels = tiny_data.test.batch(torch.arange(48))
    far = minimal(tiny_teacher, x, labels, "linf")[1]
    assert torch.allclose(scores.distances["fmn"], far, atol=1e-4)
    assert torch.equal(scores.right["fmn"], scores.distances["fmn"] > 0.1)
    assert not scores.right["fmn"][~scores.right["natural"]].any()
    again = evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    assert torch.equal(again.distances["fmn"], scores.distances["fmn"])
    result = json.loads((tmp_path / "e" / "result.json").read_text())
    assert result["distances"]["fmn"] == {"median": round(float(far.median()), 6), "unbroken": 0}


def test_a_security_curve_needs_no_attack_at_other_radii(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def counted(*args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        found.append(1)
        return minimal(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setitem(ATTACKS, "fmn", dataclasses.replace(ATTACKS["fmn"], nearest=counted))
    scores = evaluated(tiny_teacher, tiny_data, tmp_path / "e", radii=(0.0, 0.05, 0.2))
    assert len(found) == 3  # batches of 20, 20 and 8
    assert [point.threat.radius for point in scores.curve] == [0.0, 0.05, 0.1, 0.2]
    assert [list(point) for point in scores.curve] == [["natural", "pgd2", "fmn"]] * 4
    for point in scores.curve[1:]:
        assert torch.equal(point.right["fmn"], scores.at_radius("fmn", point.threat.radius))
    again = evaluated(tiny_teacher, tiny_data, tmp_path / "e", radii=(0.0, 0.05, 0.2))
    assert [dict(point) for point in again.curve] == [dict(point) for point in scores.curve]
    with pytest.raises(pwoa.InputError, match="pgd2 keeps no distances"):
        scores.at_radius("pgd2", 0.1)


def test_an_evaluation_with_distances_is_resumed_and_other_distances_are_refused(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwoa.evaluation.folder.SAVE_SECONDS", 0.0)
    whole = evaluated(tiny_teacher, tiny_data)
    calls = iter([False, True])

    def stopped(*args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        if next(calls, False):
            raise KeyboardInterrupt
        return minimal(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setitem(ATTACKS, "fmn", dataclasses.replace(ATTACKS["fmn"], nearest=stopped))
        with pytest.raises(KeyboardInterrupt):
            evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    assert (tmp_path / "e" / "progress.safetensors").is_file()
    resumed = evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    assert torch.equal(resumed.distances["fmn"], whole.distances["fmn"])

    file, result = tmp_path / "e" / "distances.safetensors", tmp_path / "e" / "result.json"
    save_file({"fmn": resumed.distances["fmn"] * 1.001}, file)
    with pytest.raises(pwoa.InputError, match=r"^\S+distances.safetensors is not the one that the evaluation wrote; "):
        evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    before = json.loads(result.read_text())
    result.write_text(json.dumps({key: before[key] for key in before if key not in ("checksum", "checksums")}))
    save_file({"fmn": torch.zeros(48)}, file)
    with pytest.raises(pwoa.InputError, match=r"damaged \(the distances of fmn are not those of its verdicts\)"):
        evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    file.write_bytes(b"no tensors")
    with pytest.raises(pwoa.InputError, match=r"distances.safetensors is not a safetensors file"):
        evaluated(tiny_teacher, tiny_data, tmp_path / "e")
    file.unlink()
    with pytest.raises(pwoa.InputError, match=r"distances.safetensors is missing; choose another folder"):
        evaluated(tiny_teacher, tiny_data, tmp_path / "e")
