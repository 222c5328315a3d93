"""Attack a pruned network as it is shipped: is each artefact as robust as the network in torch it was made from?

    python -m benchmarks.artefacts --model runs/mine --data mnist --data-folder MNIST --folder runs/artefacts \
        --out results/artefacts.json

A row for each artefact, all in percent of the same test images:

- `natural`, and `transfer`: what is left when the AutoAttack examples (APGD-CE, APGD-T) of the network in torch, its
  twin, are tried on the artefact, all that the search ended with, also where the twin was not fooled;
- `robust`: the worst case image by image, after Square on those that are left (it breaks `square_broke` of them). It
  searches on the C code, the fastest route, and what it found is tried on each artefact; where C was fooled and the
  artefact was not, Square searches on the artefact itself. For int8 it always does, and the attack `strong` on a
  fake-quantised twin, with gradients, comes before it (`replica` is what that leaves alone). What fools C by a hair
  seldom fools int8: it needs as many queries of its own, or it would seem more robust than it is;
- `same_verdicts` and `max_difference`: the share of `checked` test images with torch's class, and the largest
  difference of logits relative to the largest one; `same_robust`: the share of `images` that are robust in both or in
  neither.

All that is found is kept in --folder, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pwoa
from benchmarks.rows import Row, keep_rows, load_rows, markdown, one_line, option_parser
from pwoa.attacks.autoattack import State, autoattack
from pwoa.attacks.problem import is_broken
from pwoa.attacks.registry import STRONG, Attack, lookup, register
from pwoa.attacks.square import QUERIES, square, square_rounds
from pwoa.data.images import Data
from pwoa.deploy.artefact import Artefact
from pwoa.deploy.bench import processor
from pwoa.deploy.export import exports
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import LogitModel, as_logits
from pwoa.models.inference import attack_copy
from pwoa.models.replica import replica_of
from pwoa.recipe import recipe_for
from pwoa.storage.folder import replacing
from pwoa.threat import Threat

BATCH = 250
EXPORTED = ("packed", "onnx", "c", "int8")
LABELS = {"torch": "torch", "packed": "packed", "onnx": "ONNX", "c": "C", "int8": "ONNX, int8"}


@dataclass(frozen=True)
class Found:
    """What an attack found of some images: which of them stay right, and what the attack ended with, round by round."""

    robust: Tensor
    tries: list[Tensor]
    seconds: float


@dataclass(frozen=True)
class Stand:
    """A network in torch and the images it is attacked on; what is found of it and its artefacts lies in a folder."""

    twin: nn.Module
    data: Data
    threat: Threat
    folder: Path
    x: Tensor
    labels: Tensor
    queries: int
    transfer: str

    @classmethod
    def of(cls, twin: nn.Module, data: Data, given: argparse.Namespace) -> Stand:
        test = data.test.first(given.images)
        x, labels = test.batch(torch.arange(len(test)))
        threat = recipe_for(data.name).threat
        threat = threat.at_radius(given.radius) if given.radius else threat
        given.folder.mkdir(parents=True, exist_ok=True)
        return cls(twin.eval(), data, threat, given.folder, x, labels, given.queries, given.transfer)

    def logits(self, network: nn.Module) -> LogitModel:
        return as_logits(network.eval(), self.data.classes)

    def right(self, model: LogitModel, x: Tensor, which: Tensor | None = None) -> Tensor:
        """Tell which images a model gets right as `x`."""
        labels = self.labels if which is None else self.labels[which]
        parts = zip(x.split(BATCH), labels.split(BATCH), strict=True)
        return torch.cat([~is_broken(model, *part) for part in parts]) if len(x) else torch.zeros(0, dtype=torch.bool)

    def attack(
        self,
        name: str,
        model: LogitModel,
        attacks: str,
        which: Tensor,
        search: LogitModel | None = None,
        *,
        transfer: bool = False,
    ) -> Found:
        """Attack the images of these numbers, going on from where it was stopped."""
        path = self.folder / f"{name}.pt"
        began, kept = time.perf_counter(), torch.load(path) if path.exists() else {}
        asked = {"attacks": attacks, "which": which.tolist(), "labels": self.labels.tolist()}
        if kept.get("asked") != asked:
            kept = {
                "asked": asked,
                "state": None,
                "tries": [],
                "robust": torch.zeros(0, dtype=torch.bool),
                "seconds": 0.0,
            }
        before, tries = kept["seconds"], kept["tries"]

        def save(state: State) -> None:
            if state.done == len(state.left):  # the round is over
                if (part := lookup(attacks)) is not None and part.continues:
                    tries.clear()
                tries.append(state.best.clone())
            _save(path, kept | {"state": vars(state), "seconds": before + time.perf_counter() - began})

        if len(kept["robust"]) < len(which):
            verdicts = autoattack(
                model,
                self.x[which],
                self.labels[which],
                self.threat,
                attacks=attacks,
                batch=BATCH,
                search_model=search,
                transfer=transfer,
                state=kept["state"] and State(**kept["state"]),
                save=save,
            )
            kept |= {"state": None, "robust": verdicts.robust, "seconds": before + time.perf_counter() - began}
            _save(path, kept)
        return Found(kept["robust"], tries, kept["seconds"])

    def try_examples(self, model: LogitModel) -> tuple[Tensor, Tensor, float]:
        """Tell which images a model gets right, and which under all examples of the twin; and how long they took."""
        search = attack_copy(self.twin, self.x[:BATCH], self.data.classes, BATCH) or self.logits(self.twin)
        every = torch.arange(len(self.x))
        examples = self.attack("twin", self.logits(self.twin), self.transfer, every, search)
        natural = self.right(model, self.x)
        transfer = natural.clone()
        for tried in examples.tries:
            transfer &= self.right(model, tried)
        return natural, transfer, examples.seconds

    def try_square(self, kind: str, model: LogitModel, c: LogitModel, left: Tensor) -> tuple[Tensor, float]:
        """Tell which images Square leaves right, of those that are left; and how long it searched."""
        where = self.try_examples(c)[1].nonzero().flatten()
        found = self.attack("square-c", c, _square(self.queries), where)
        robust, searched = left.clone(), torch.zeros_like(left)
        if len(where):
            robust[where] &= self.right(model, found.tries[-1], where)
        if kind != "int8":
            searched[where[found.robust]] = True
        again = (robust & ~searched).nonzero().flatten()  # what fools C does not fool it, or was never tried on C
        more = self.attack(f"square-on-{kind}", model, _square(self.queries), again)
        robust[again] = more.robust
        return robust, more.seconds + (found.seconds if kind == "c" else 0.0)

    def verdicts(self, kind: str, network: nn.Module, c: nn.Module) -> dict[str, Any]:
        """Attack the network or an artefact; tell which images are right after what, and how long it searched."""
        model = self.logits(network)
        natural, transfer, of_twin = self.try_examples(model)
        robust, seconds = transfer.clone(), of_twin if kind == "torch" else 0.0
        found: dict[str, Any] = {"natural": natural, "transfer": transfer}
        if kind == "int8":
            replica = replica_of(network)
            assert replica is not None
            found["replica"] = natural.clone()
            where = natural.nonzero().flatten()
            attacked = self.attack("replica", model, STRONG, where, self.logits(replica), transfer=True)
            found["replica"][where] = attacked.robust
            robust &= found["replica"]
            seconds += attacked.seconds
        found["robust"], searched = self.try_square(kind, model, self.logits(c), robust)
        found["square_broke"] = int((robust & ~found["robust"]).sum())
        return found | {"seconds": seconds + searched}


def _square(queries: int) -> str:
    """Return the name of Square with so many queries; with fewer than AutoAttack's it has the paper's schedule."""
    if queries == QUERIES:
        return "square"
    name = f"square-{queries}"
    if lookup(name) is None:
        run, rounds = partial(square, queries=queries, paper=True), partial(square_rounds, queries=queries, paper=True)
        register(Attack(name, "Square", run=run, rounds=rounds, needs_gradients=False, continues=True, calls=queries))
    return name


def _save(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        torch.save(content, file)


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Export a network and attack all that came of it; yield the rows that the file does not have."""
    data = pwoa.load_data(given.data, data_folder=given.data_folder)
    twin = pwoa.load_model(given.model, data)
    stand = Stand.of(twin, data, given)
    made = {
        one.kind: one
        for one in exports(given.model, EXPORTED, given.folder / "export", data=data, images=given.checked)
    }
    networks = {
        kind: pwoa.load_model(one.path, data, architecture=twin if kind == "packed" else None)
        for kind, one in made.items()
    }
    about = {
        "network": architecture_name(twin),
        "data": data.name,
        "rate": round(made["packed"].about["rate"], 2),
    }
    present = [tuple(row[key] for key in (*about, "artefact")) for row in (load_rows(given.out) if given.out else ())]
    verdicts = {"torch": stand.verdicts("torch", twin, networks["c"])}
    for kind in ("torch", *EXPORTED):
        if (*about.values(), kind) in present:
            continue
        if kind not in verdicts:
            verdicts[kind] = stand.verdicts(kind, networks[kind], networks["c"])
        yield about | {"artefact": kind} | _figures(verdicts[kind], verdicts["torch"], made.get(kind), given)


def _figures(found: dict[str, Any], twin: dict[str, Any], made: Artefact | None, given: argparse.Namespace) -> Row:
    """Return the accuracies as a row has them."""
    right = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    check = None if made is None else made.check
    return {
        "images": len(found["robust"]),
        **{name: _percent(value) for name, value in right.items()},
        "robust_twin": _percent(twin["robust"]),
        "square_broke": found["square_broke"],
        "same_robust": round(float((found["robust"] == twin["robust"]).double().mean()), 5),
        "same_verdicts": 1.0 if check is None else check.same / check.images,
        "max_difference": 0.0 if check is None else check.difference,
        "checked": None if check is None else check.images,
        "queries": given.queries,
        "examples": given.transfer,
        "seconds": round(found["seconds"], 1),
        "device": processor(),
    }


def _percent(right: Tensor) -> float:
    return round(100 * float(right.double().mean()), 2)


def artefacts_table(path: Path) -> str:
    """Return what is right after each attack, a line for each artefact, and how far that is from torch."""
    rows = load_rows(path)
    if not rows:
        return "Nothing is measured yet: `python -m benchmarks.artefacts` does it."
    head = ["network", "rate", "artefact", "images", "natural", "examples of torch", "robust", "against torch"]
    head += ["same class", "largest difference"]
    lines = [
        [
            row["network"],
            f"{row['rate']:g}",
            LABELS[row["artefact"]],
            f"{row['images']:,}",
            *(f"{row[key]:.1f}" for key in ("natural", "transfer", "robust")),
            "" if row["artefact"] == "torch" else f"{row['robust'] - row['robust_twin']:+.1f}",
            "" if row["checked"] is None else f"{100 * row['same_verdicts']:.2f} % of {row['checked']:,}",
            "" if row["checked"] is None else f"{row['max_difference']:.0e}",
        ]
        for row in rows
    ]
    how = dict.fromkeys(f"{row['examples']} and {row['queries']:,} queries for {row['network']}" for row in rows)
    return (
        "Accuracy in percent of test images. Under the examples that were found for the network in torch; and robust, "
        "the worst case image by image of these, of Square, and for int8 of an attack on a fake-quantised twin:\n\n"
        + markdown(head, lines)
        + f"\n\nExamples are by, and Square has: {'; '.join(how)}. Classes and logits are compared with torch's on "
        "natural images; the difference is relative to the largest logit."
    )


@one_line()
def main() -> None:
    """Attack a network and what is exported of it."""
    parser = option_parser(__doc__)
    parser.add_argument("--model", required=True, help="the pruned network, as pwoa.load_model takes it")
    parser.add_argument("--data", required=True, help="its data set, as mnist")
    parser.add_argument("--data-folder", help="the official files")
    parser.add_argument("--folder", type=Path, required=True, help="where artefacts and what is found of them are kept")
    parser.add_argument("--images", type=int, default=1000, help="test images that are attacked")
    parser.add_argument("--radius", type=float, help="of the attacker; that of the data's preset by default")
    parser.add_argument("--checked", type=int, default=10_000, help="test images whose class is compared with torch's")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of Square")
    parser.add_argument("--transfer", default="apgd-ce,apgd-t", help="the attacks on the twin; strong is shorter")
    given = parser.parse_args()
    keep_rows(rows(given), given.out)


if __name__ == "__main__":
    main()
