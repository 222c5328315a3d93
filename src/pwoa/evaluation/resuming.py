"""How far an evaluation has come, as tensors and back; and what no evaluation comes to."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pwoa.attacks.autoattack import ROBUST, State
from pwoa.attacks.registry import AUTOATTACK, NATURAL, find_attack
from pwoa.evaluation.examples import Attempts
from pwoa.evaluation.robustness import Measurement


def pack(measurements: Sequence[Measurement]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return all tensors of measurements, by name, and the rest of each as a JSON object."""
    tensors: dict[str, Tensor] = {}
    about = []
    for number, measured in enumerate(measurements):
        for kind, verdicts in (("right", measured.right), ("after", measured.after)):
            tensors |= {f"{number}/{kind}/{name}": right.clone() for name, right in verdicts.items()}
        tensors |= {f"{number}/distance/{name}": far.clone() for name, far in measured.distances.items()}
        entry: dict[str, Any] = {"seconds": measured.seconds, "done": measured.done, "ensemble": None}
        if (state := measured.ensemble) is not None:
            parts = {"broken_by": state.broken_by, "best": state.best, "left": state.left}
            tensors |= {f"{number}/state/{name}": value.cpu().contiguous() for name, value in parts.items()}
            entry["ensemble"] = {name: getattr(state, name) for name in ("attack", "round", "done", "seconds")}
        if (attempts := measured.attempts) is not None:
            parts = {"places": attempts.places, "images": attempts.images}
            tensors |= {f"{number}/attempts/{name}": value.cpu().contiguous() for name, value in parts.items()}
            entry["attempts"] = {"attacks": attempts.attacks, "broken": attempts.broken}
        about.append(entry)
    return tensors, about


def unpack(
    tensors: Mapping[str, Tensor], about: Sequence[Mapping[str, Any]], device: torch.device
) -> list[Measurement]:
    """Return the measurements that `pack` was given, with what the attacks go on from on the device."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    found = []
    for number, entry in enumerate(about):
        state = None
        if entry["ensemble"] is not None:
            parts = {name: value.to(device) for name, value in under(f"{number}/state/").items()}
            state = State(parts["broken_by"], parts["best"], parts["left"], **entry["ensemble"])
        attempts = None
        if entry.get("attempts") is not None:
            parts = {name: value.to(device) for name, value in under(f"{number}/attempts/").items()}
            attempts = Attempts(parts["places"], parts["images"], **entry["attempts"])
        right, after = under(f"{number}/right/"), under(f"{number}/after/")
        distances = under(f"{number}/distance/")
        found.append(Measurement(right, after, dict(entry["seconds"]), entry["done"], state, distances, attempts))
    return found


def check_possible(measured: Measurement, asked: Mapping[str, Any], counts: Mapping[str, int], classes: int) -> None:
    """Raise ValueError for what no evaluation by these attacks comes to: it would be taken for verdicts.

    counts: on how many images each attack is run.
    """
    images, batch = asked["images"], asked["batch"]
    if not _is_reached(measured.done, images, batch):
        raise ValueError(f"{measured.done} of {images} images are done")
    attacks = {name: find_attack(name) for name in counts}
    expected = dict.fromkeys(measured.after, counts.get(AUTOATTACK, images)) | dict(counts)
    for name, right in (*measured.right.items(), *measured.after.items()):
        if right.dtype != torch.bool or right.shape != (expected.get(name, images),):
            raise ValueError(f"the verdicts of {name} are not those of {expected.get(name, images)} images")
    near = {name for name, attack in attacks.items() if attack.nearest and name in measured.right}
    if measured.distances.keys() != near or any(
        far.shape != (images,) or far.dtype != torch.float32 or bool((far < 0).any() or far.isnan().any())
        for far in measured.distances.values()
    ):
        raise ValueError("its distances are not those of its attacks")
    short = {name for name, attack in attacks.items() if attack.short}
    if not measured.right.keys() <= attacks.keys() or (measured.done and not short <= measured.right.keys()):
        raise ValueError(f"its verdicts are of {', '.join(measured.right)}")
    natural = measured.right.get(NATURAL, torch.zeros(images, dtype=torch.bool))
    for name, right in measured.right.items():
        if name in short and bool((right & ~natural).any() or right[measured.done :].any()):
            raise ValueError(f"images are right under {name} that are not right naturally, or were not tried")
    if not all(math.isfinite(value) and value >= 0 for value in measured.seconds.values()):
        raise ValueError("its seconds are no times")
    if measured.attempts is not None:
        _check_attempts(measured.attempts, attacks, images)
    left = [name for name, attack in attacks.items() if not attack.short and name not in measured.right]
    if measured.ensemble is not None:
        if measured.done < images or not left:
            raise ValueError("an attack is in progress whose turn it is not")
        _check_state(measured.ensemble, (NATURAL, *find_attack(left[0]).parts), counts[left[0]], batch, classes)


def _check_state(state: State, names: Sequence[str], images: int, batch: int, classes: int) -> None:
    """Raise ValueError for a state that AutoAttack with these attacks does not come to."""
    broken, left = state.broken_by, state.left
    if broken.shape != (images,) or len(state.best) != images or {broken.dtype, left.dtype} != {torch.int64}:
        raise ValueError(f"its tensors are not those of {images} images")
    if not (0 <= state.attack < len(names) and _is_reached(state.done, len(left), batch)):
        raise ValueError("it counts beyond what there is")
    if not 0 <= state.round < len(find_attack(names[state.attack]).rounds_for(classes)):
        raise ValueError(f"it is in round {state.round} of {names[state.attack]}")
    if bool((broken < ROBUST).any() or (broken > state.attack).any()):
        raise ValueError("images are broken by attacks that have not run")
    whole = torch.arange(images, device=left.device)
    if not torch.equal(left, whole[torch.isin(whole, left)]):
        raise ValueError("images are left that are none")
    unbroken = whole[broken == ROBUST]
    if not bool(torch.isin(unbroken, left).all() and (broken[left[state.done :]] == ROBUST).all()):
        raise ValueError("images are unbroken that were not tried")
    if not _are_images(state.best):
        raise ValueError("its images are none")


def _check_attempts(attempts: Attempts, attacks: Collection[str], images: int) -> None:
    """Raise ValueError for attempts that these attacks do not make on so many images."""
    places, n = attempts.places, len(attempts.attacks)
    if places.shape != (n,) or places.dtype != torch.int64 or not set(places.tolist()) <= set(range(images)):
        raise ValueError("images are shown that are none")
    if len(attempts.images) != n or not _are_images(attempts.images) or len(attempts.broken) != n:
        raise ValueError("what is shown of its attacks are no images")
    if not set(attempts.attacks) <= {"", *attacks}:
        raise ValueError(f"images are shown that were attacked by {', '.join(attempts.attacks)}")


def _are_images(x: Tensor) -> bool:
    return x.dtype == torch.float32 and bool(((x >= 0) & (x <= 1)).all())


def _is_reached(done: Any, total: int, batch: int) -> bool:
    """Tell whether so many images can be done of all, batch by batch."""
    return type(done) is int and 0 <= done <= total and (done % batch == 0 or done == total)
