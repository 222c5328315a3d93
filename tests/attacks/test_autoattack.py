"""AutoAttack: who is attacked, in which order and batches, and who decides. Most attacks here are made up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pwoa.attacks.apgd import apgd_ce, apgd_t_rounds
from pwoa.attacks.autoattack import ROBUST, State, Verdicts, autoattack
from pwoa.attacks.ball import Ball
from pwoa.attacks.fab import fab_t_rounds
from pwoa.attacks.problem import Problem, Round, is_broken
from pwoa.attacks.registry import ATTACKS, NATURAL, Attack
from pwoa.attacks.square import square_rounds
from pwoa.errors import InputError
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.threat import Threat

THREAT = Threat("linf", 0.2)
Break = Callable[[Tensor], Tensor]


def half(x: Tensor) -> Tensor:
    """A model of two classes: is the first pixel above a half?"""
    pixel = x.flatten(1)[:, 0]
    return torch.stack([0.5 - pixel, pixel - 0.5], 1)


def numbered(n: int) -> tuple[Tensor, Tensor]:
    """n images of class 1 whose second pixel tells which one it is; the first can be moved to class 0."""
    x = torch.full((n, 1, 1, 2), 0.6)
    x[:, 0, 0, 1] = torch.arange(n) / 1000
    return x, torch.ones(n, dtype=torch.int64)


def who(x: Tensor) -> list[int]:
    return (x[:, 0, 0, 1] * 1000).round().int().tolist()


class Fake:
    """An attack that breaks the images it is told to, and notes in which batches it saw which images."""

    def __init__(self, breaks: Sequence[int], to: float = 0.45) -> None:
        self.breaks, self.to = breaks, to
        self.saw: list[list[int]] = []
        self.drew: list[float] = []
        self.searched: list[object] = []

    def __call__(self, model: object, x: Tensor, labels: Tensor, threat: Threat, *, generator: object) -> Tensor:
        assert isinstance(generator, torch.Generator)
        self.saw.append(who(x))
        self.searched.append(model)
        self.drew.append(float(torch.rand(1, generator=generator)))
        found = x.clone()
        for row, number in enumerate(who(x)):
            if number in self.breaks:
                found[row, 0, 0, 0] = self.to
        return found

    def as_round(self, problem: Problem, best: Tensor) -> Tensor:
        return self(problem.model, problem.x, problem.labels, problem.threat, generator=problem.generator)


def same_rounds(rounds: list[Round], classes: int) -> list[Round]:
    return rounds


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def add(**attacks: Fake | list[Round]) -> None:
        for name, attack in attacks.items():
            known = ATTACKS.get(name) or Attack(name, name)
            if isinstance(attack, list):
                known = replace(known, rounds=partial(same_rounds, attack))
            else:
                known = replace(known, run=attack)
            monkeypatch.setitem(ATTACKS, name, known)

    return add


def test_only_survivors_go_on_and_the_order_is_kept(register: Callable[..., None]) -> None:
    first, second, third = Fake([1, 3]), Fake([0, 1, 3]), Fake([5])
    register(first=first, second=second, third=third)
    x, labels = numbered(6)
    labels[2] = 0  # wrong already
    told: list[int] = []
    found = autoattack(half, x, labels, THREAT, attacks=["first", "second", "third"], batch=10, advance=told.append)
    assert (first.saw, second.saw, third.saw) == ([[0, 1, 3, 4, 5]], [[0, 4, 5]], [[4, 5]])
    assert found.attacks == (NATURAL, "first", "second", "third")
    assert found.broken_by.tolist() == [2, 1, 0, 1, ROBUST, 3]
    assert found.robust.tolist() == [False] * 4 + [True, False]
    assert list(found.accuracy) == [NATURAL, "first", "second", "third"]
    assert list(found.accuracy.values()) == pytest.approx([500 / 6, 300 / 6, 200 / 6, 100 / 6])
    assert list(found.seconds) == list(found.accuracy)
    assert found.adversarial[:, 0, 0, 0].tolist() == pytest.approx([0.45, 0.45, 0.6, 0.45, 0.6, 0.45])
    assert told == [1, 2, 1, 1, 1]
    assert sum(told) == len(x)


def test_batches_are_refilled_between_rounds_and_attacks(register: Callable[..., None]) -> None:
    rounds = [Fake([0, 1, 2, 4]), Fake([3]), Fake([])]
    last = Fake([])
    register(many=[fake.as_round for fake in rounds], last=last)
    autoattack(half, *numbered(9), THREAT, attacks=["many", "last"], batch=3)
    assert rounds[0].saw == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert rounds[1].saw == [[3, 5, 6], [7, 8]]
    assert rounds[2].saw == last.saw == [[5, 6, 7], [8]]


def test_a_round_is_given_what_the_round_before_found(register: Callable[..., None]) -> None:
    given: list[list[float]] = []

    def step(problem: Problem, best: Tensor) -> Tensor:
        given.append(best[:, 0, 0, 0].tolist())
        return best - torch.tensor([0.06, 0.0])

    register(steps=[step, step, step])
    found = autoattack(half, *numbered(2), THREAT, attacks=["steps"])
    assert given == [pytest.approx([0.6, 0.6]), pytest.approx([0.54, 0.54])]  # then both are broken
    assert found.broken_by.tolist() == [1, 1]


def test_nothing_is_called_when_nobody_is_left(register: Callable[..., None]) -> None:
    second = Fake([])
    register(first=Fake(range(4)), second=second)
    found = autoattack(half, *numbered(4), THREAT, attacks=["first", "second"])
    assert second.saw == []
    assert found.accuracy == {NATURAL: 100.0, "first": 0.0, "second": 0.0}


@pytest.mark.parametrize("to", [0.35, -0.01, float("nan")])
def test_an_image_outside_the_ball_or_the_box_does_not_count(register: Callable[..., None], to: float) -> None:
    register(cheat=Fake([0], to))
    found = autoattack(half, *numbered(2), THREAT, attacks=["cheat"])
    assert found.broken_by.tolist() == [ROBUST, ROBUST]
    assert torch.equal(found.adversarial, numbered(2)[0])


def test_each_attack_has_its_own_random_numbers(register: Callable[..., None]) -> None:
    def draws(attacks: list[str], seed: int) -> dict[str, list[float]]:
        fakes = {name: Fake([]) for name in ("one", "two")}
        register(**fakes)
        autoattack(half, *numbered(4), THREAT, attacks=attacks, seed=seed, batch=2)
        return {name: fake.drew for name, fake in fakes.items()}

    both = draws(["one", "two"], 0)
    assert both["one"] != both["two"]
    assert both["one"][0] != both["one"][1]
    assert draws(["two"], 0)["two"] == both["two"]
    assert draws(["one", "two"], 1)["one"] != both["one"]


class TestSearchModel:
    def network(self) -> tuple[nn.Sequential, Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(18, 12), nn.Tanh(), nn.Linear(12, 3))
        x = torch.rand(40, 2, 3, 3, generator=torch.Generator().manual_seed(0))
        return model, x, model(x).argmax(1)

    def test_one_that_calls_everything_broken_is_caught(self) -> None:
        model, x, labels = self.network()
        told_wrong = torch.nn.functional.one_hot((labels + 1) % 3, 3).float()

        def liar(v: Tensor) -> Tensor:
            """Every image is broken, and no gradient says how to break it."""
            return told_wrong[: len(v)] + 0 * v.flatten(1).sum(1, keepdim=True)

        plain = autoattack(model, x, labels, Threat("linf", 0.03), attacks=["apgd-ce"])
        found = autoattack(model, x, labels, Threat("linf", 0.03), attacks=["apgd-ce"], search_model=liar)
        assert 0 < plain.accuracy["apgd-ce"] < 100
        self.check(model, x, labels, found)
        assert found.accuracy["apgd-ce"] == plain.accuracy["apgd-ce"]  # the round was done again on the model

    def test_what_it_finds_is_judged_by_the_model(self) -> None:
        model, x, labels = self.network()
        searched = autoattack(
            model, x, labels, Threat("linf", 0.03), attacks=["apgd-ce"], search_model=lambda v: model(v).bfloat16()
        )
        self.check(model, x, labels, searched)

    def test_one_that_calls_everything_robust_breaks_nothing(self) -> None:
        model, x, labels = self.network()

        def blind(v: Tensor) -> Tensor:
            return torch.zeros(len(v), 3).scatter(1, labels[: len(v), None], 1.0) + 0 * v.flatten(1).sum(1)[:, None]

        found = autoattack(model, x, labels, Threat("linf", 1e-4), attacks=["apgd-ce"], search_model=blind)
        self.check(model, x, labels, found, radius=1e-4)
        assert torch.equal(found.robust, ~is_broken(model, x, labels))

    def check(self, model: nn.Module, x: Tensor, labels: Tensor, found: Verdicts, radius: float = 0.03) -> None:
        assert torch.equal(is_broken(model, found.adversarial, labels), ~found.robust)
        assert bool(Ball.around(x, Threat("linf", radius)).contains(found.adversarial).all())


class TestRedone:
    """A search model that takes every image for broken, which the model never does: is the round done again?"""

    def liar(self, x: Tensor) -> Tensor:
        return -half(x)

    def rounds(self, register: Callable[..., None], name: str, transfer: bool = False) -> list[list[bool]]:
        """For each round of an attack, on which models it was run: was it the model itself?"""
        fakes = [Fake([]) for _ in range(3)]
        register(**{name: [fake.as_round for fake in fakes]})
        autoattack(half, *numbered(2), THREAT, attacks=[name], search_model=self.liar, transfer=transfer)
        return [[model is half for model in fake.searched] for fake in fakes]

    def test_in_each_round_of_an_attack_that_begins_anew_there(self, register: Callable[..., None]) -> None:
        assert self.rounds(register, "fab-t") == [[False, True]] * 3

    def test_only_in_the_last_round_of_one_that_goes_on(self, register: Callable[..., None]) -> None:
        for name in ("square", "square-paper"):
            assert self.rounds(register, name) == [[False], [False], [False, True]]

    @pytest.mark.parametrize("name", ["fab-t", "square", "square-paper"])
    def test_never_where_it_is_another_model(self, register: Callable[..., None], name: str) -> None:
        assert self.rounds(register, name, transfer=True) == [[False]] * 3


def test_transfer_judges_by_the_model_and_asks_it_for_no_gradient() -> None:
    model, x, labels = TestSearchModel().network()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.data += 0.5 * torch.randn_like(parameter)

    def opaque(v: Tensor) -> Tensor:
        assert not v.requires_grad
        logits: Tensor = model(v).detach()
        return logits

    threat = Threat("linf", 0.05)
    names = ["apgd-ce", "apgd-t"]
    found = autoattack(opaque, x, labels, threat, attacks=names, search_model=other, transfer=True)
    assert torch.equal(is_broken(model, found.adversarial, labels), ~found.robust)
    assert bool(Ball.around(x, threat).contains(found.adversarial).all())
    seen = autoattack(model, x, labels, threat, attacks=names)
    assert seen.accuracy["apgd-t"] < found.accuracy["apgd-t"] < 100


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack's four with few steps, and all their rounds."""
    for attack in (
        replace(ATTACKS["apgd-ce"], run=partial(apgd_ce, steps=3)),
        replace(ATTACKS["apgd-t"], rounds=partial(apgd_t_rounds, steps=5)),
        replace(ATTACKS["fab-t"], rounds=partial(fab_t_rounds, steps=10)),
        replace(ATTACKS["square"], rounds=partial(square_rounds, queries=150)),
    ):
        monkeypatch.setitem(ATTACKS, attack.name, attack)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("rough", [False, True])
def test_stopped_after_every_batch_it_ends_with_the_same_bits(norm: str, rough: bool, short: None) -> None:
    model, x, labels = TestSearchModel().network()
    labels[:3] = (labels[:3] + 1) % 3
    threat = Threat(norm, {"linf": 0.05, "l2": 0.2}[norm])
    search = (lambda v: model(v).bfloat16().float()) if rough else None
    attack = partial(autoattack, model, x, labels, threat, batch=16, search_model=search)
    whole = attack()
    states: list[State] = []

    def stop(state: State) -> None:
        states.append(copy.deepcopy(state))
        raise Stopped

    def in_pieces() -> tuple[Verdicts, list[int]]:
        for _ in range(100):
            told: list[int] = []
            try:
                return attack(state=copy.deepcopy(states[-1]) if states else None, save=stop, advance=told.append), told
            except Stopped:
                pass
        raise AssertionError("it does not come to an end")

    found, told = in_pieces()
    assert torch.equal(found.broken_by, whole.broken_by)
    assert torch.equal(found.adversarial, whole.adversarial)
    assert found.attacks == whole.attacks
    assert sum(told) == len(x)
    assert {(0, 0), (1, 0), (2, 1), (3, 1), (4, 3)} <= {(state.attack, state.round) for state in states}
    assert len(states) == len({(state.attack, state.round, state.done) for state in states})
    assert [states[-1].seconds[name] for name in found.attacks] == list(found.seconds.values())


def test_what_is_saved_last_is_the_end(short: None) -> None:
    """Given it, nothing is attacked again."""
    model, x, labels = TestSearchModel().network()
    states: list[State] = []
    found = autoattack(model, x, labels, THREAT, attacks=["apgd-ce"], save=states.append)
    again = autoattack(half, x, labels, THREAT, attacks=["apgd-ce"], state=states[-1])
    assert torch.equal(again.broken_by, found.broken_by)
    assert torch.equal(again.adversarial, found.adversarial)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_all_four_on_a_small_network(norm: str, short: None) -> None:
    model, x, labels = TestSearchModel().network()
    labels[:3] = (labels[:3] + 1) % 3
    threat = Threat(norm, {"linf": 0.05, "l2": 0.2}[norm])
    first, second = (autoattack(model, x, labels, threat, batch=16) for _ in range(2))
    assert first.attacks == (NATURAL, "apgd-ce", "apgd-t", "fab-t", "square")
    assert torch.equal(first.adversarial, second.adversarial)
    assert torch.equal(first.broken_by, second.broken_by)
    values = list(first.accuracy.values())
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(92.5)
    assert 0 < values[-1] < values[0]
    assert values[-1] == 100 * float(first.robust.float().mean())
    assert torch.equal(is_broken(model, first.adversarial, labels), ~first.robust)
    assert bool(Ball.around(x, threat).contains(first.adversarial).all())


def test_autoattack_stands_for_its_four_and_each_is_run_once(short: None) -> None:
    model, x, labels = TestSearchModel().network()
    found = autoattack(model, x, labels, THREAT, attacks="apgd-dlr, square,autoattack,natural")
    assert found.attacks == (NATURAL, "apgd-dlr", "square", "apgd-ce", "apgd-t", "fab-t")


@pytest.mark.parametrize("attacks", ["squar", "standard", "pgd"])
def test_unknown_attacks_are_refused(attacks: str) -> None:
    with pytest.raises(InputError, match=f"unknown attack '{attacks}'"):
        autoattack(half, *numbered(2), THREAT, attacks=attacks)


def test_transfer_is_refused_where_it_would_search_on_the_model_itself() -> None:
    with pytest.raises(InputError, match="transfer searches on another model; give it as search_model"):
        autoattack(half, *numbered(2), THREAT, attacks="transfer")


@pytest.mark.parametrize(
    ("x", "labels", "batch", "message"),
    [
        (torch.full((2, 1, 1, 2), 1.5), torch.ones(2).long(), 1, r"float32 in \[0, 1\]; these are float32 from 1.5"),
        (torch.rand(2, 1, 1, 2).double(), torch.ones(2).long(), 1, r"these are float64"),
        (torch.rand(2, 1, 1, 2), torch.ones(3).long(), 1, r"2 images with 3 labels"),
        (torch.rand(0, 1, 1, 2), torch.ones(0).long(), 1, r"at least one"),
        (torch.rand(2, 1, 1, 2), torch.ones(2).long(), 0, r"batch = 0"),
    ],
)
def test_wrong_input_is_refused(x: Tensor, labels: Tensor, batch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        autoattack(half, x, labels, THREAT, batch=batch)


def test_it_refuses_to_run_in_an_example_free_run() -> None:
    with example_free(), pytest.raises(ExampleFreeViolation, match="autoattack"):
        autoattack(half, *numbered(2), THREAT)
