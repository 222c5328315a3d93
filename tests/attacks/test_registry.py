"""Attacks by name: the one parser, the labels, and what may be registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from pwoa.attacks.registry import ATTACKS, Attack, attack_label, find_attack, gradient_free, parse_attacks, register
from pwoa.errors import InputError

PAPER = ("natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack")
FOUR = ("apgd-ce", "apgd-t", "fab-t", "square")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("paper", PAPER),
        ("natural, pgd50", ("natural", "pgd50")),
        (["cw", "fgsm"], ("cw", "fgsm")),
        ("pgd20,paper,cw7", ("pgd20", "natural", "fgsm", "pgd10", "cw", "autoattack", "cw7")),
        ("fgsm,fgsm", ("fgsm",)),
        ("autoattack", ("autoattack",)),
        ("apgd-ce,square-paper,transfer", ("apgd-ce", "square-paper", "transfer")),
    ],
)
def test_names_of_attacks(given: str | Sequence[str], expected: tuple[str, ...]) -> None:
    assert parse_attacks(given) == expected


@pytest.mark.parametrize(
    "name",
    ["pgd", "pgd0", "pgd05", "PGD20", "pgdN", "cw-7", "cw0", "auto-attack", "pgd10 pgd20", "", "pgd1e1", "fgsm5"],
)
def test_unknown_attacks_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown attack '{name}'; known: paper, natural, fgsm, pgdN, cw, cwN, auto"):
        parse_attacks(["natural", name])
    with pytest.raises(InputError, match=f"unknown attack '{name}'"):
        parse_attacks(f"natural,{name}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pgd-20", "pgd20"),
        ("PGD20", "pgd20"),
        ("PGD_7", "pgd7"),
        ("CW-50", "cw50"),
        ("pgd", "pgd20"),
        ("PGD-N", "pgd20"),
        ("pgdN", "pgd20"),
        ("pgd0", "pgd20"),
        ("cwN", "cw20"),
        ("C&W", "cw"),
        ("CW", "cw"),
        ("FGSM", "fgsm"),
        ("fgsm5", "fgsm"),
        ("Auto-Attack", "autoattack"),
        ("AA", None),
        ("apgdt", "apgd-t"),
        ("APGD_CE", "apgd-ce"),
        ("Paper", "paper"),
        ("pdg20", "pgd20"),
        ("sqare", "square"),
        ("standard", None),
    ],
)
def test_the_attack_that_was_meant_is_suggested(name: str, meant: str | None) -> None:
    with pytest.raises(InputError, match=f"^unknown attack '{name}'") as caught:
        find_attack(name)
    _, asked, suggested = str(caught.value).partition("; did you mean ")
    assert (suggested if asked else None) == (meant and f"{meant!r}?")


def test_what_replaced_standard_is_named() -> None:
    with pytest.raises(InputError, match=r"'standard' \(it is now autoattack, .* or paper, .*\); known: "):
        parse_attacks("standard")


@pytest.mark.parametrize(
    ("given", "message"), [([], "no attack is named"), (7, "attacks = 7"), ([1], r"attacks = \[1\]")]
)
def test_what_is_no_name_is_refused(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_attacks(cast(Sequence[str], given))


def test_what_the_attacks_declare() -> None:
    assert find_attack("autoattack").parts == FOUR
    assert find_attack("transfer").parts == ("apgd-ce", "apgd-t")
    assert find_attack("pgd7").parts == ("pgd7",)
    assert (find_attack("pgd7").steps, find_attack("cw").steps, find_attack("cw8").steps) == (7, 30, 8)
    assert gradient_free() == ("natural", "square", "square-paper", "transfer", "replica")
    assert [name for name, attack in ATTACKS.items() if attack.continues] == ["square", "square-paper"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("natural", "natural"),
        ("fgsm", "FGSM"),
        ("pgd20", "PGD-20"),
        ("cw", "CW"),
        ("cw50", "CW-50"),
        ("apgd-ce", "APGD-CE"),
        ("apgd-dlr", "APGD-DLR"),
        ("apgd-t", "APGD-T"),
        ("square", "Square"),
        ("square-paper", "Square (paper)"),
        ("transfer", "transfer"),
        ("worst", "worst case"),
        ("pgd20@0.1", "PGD-20 at 0.1"),
        ("autoattack:fab-t", "FAB-T of AutoAttack"),
        ("autoattack:fab-t@0.1", "FAB-T of AutoAttack at 0.1"),
        ("autoattack@8/255", "AutoAttack at 8/255"),
        ("somebody's attack", "somebody's attack"),
    ],
)
def test_attacks_are_written_as_in_papers(name: str, label: str) -> None:
    assert attack_label(name) == label


@pytest.mark.parametrize("name", ["paper", "standard", "square"])
def test_a_name_cannot_get_a_second_meaning(name: str) -> None:
    with pytest.raises(InputError, match=f"there is an attack '{name}' already"):
        register(Attack(name, "another", run=ATTACKS["fgsm"].run))


def test_an_attack_has_something_to_run() -> None:
    with pytest.raises(InputError, match="the attack 'idle' has nothing to run"):
        register(Attack("idle", "idle"))
    assert "idle" not in ATTACKS
