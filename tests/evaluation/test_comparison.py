from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pwoa.errors import InputError
from pwoa.evaluation.comparison import compare, mcnemar
from pwoa.evaluation.folder import OF_MODEL, OF_TEACHER
from pwoa.evaluation.scores import FILE, paired, save_verdicts

LINF8 = {"norm": "linf", "radius": 8 / 255, "step": 2 / 255}
Store = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Writes an evaluation: the verdicts of attacks as strings of 1 and 0."""

    def write(name: str, right: dict[str, str], **about: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "result.json").write_text("{}", encoding="utf-8")
        verdicts = {attack: torch.tensor([digit == "1" for digit in digits]) for attack, digits in right.items()}
        save_verdicts(folder / FILE, verdicts, {"data": "d1", "threat": LINF8} | about)
        return folder

    return write


def test_every_image_is_counted_once(store: Store) -> None:
    a = store("a", {"natural": "1111111111", "pgd20": "1110000110"})
    b = store("b", {"natural": "1111111111", "pgd20": "1011110000"})
    found = compare(a, b)
    natural, attacked = found.rows
    assert (found.a, found.b, found.images, found.warnings, found.notes) == (a, b, 10, (), ())
    assert (natural.attack, natural.both, natural.only_a, natural.only_b, natural.neither) == ("natural", 10, 0, 0, 0)
    assert (natural.difference, natural.p_value) == (0, 1)
    assert (attacked.both, attacked.only_a, attacked.only_b, attacked.neither) == (2, 3, 3, 2)
    assert (attacked.accuracy_a, attacked.accuracy_b, attacked.difference) == (50, 50, 0)
    assert attacked.interval == paired(3, 3, 10)
    assert found.only_a("pgd20") == [1, 7, 8]
    assert found.only_b("pgd20") == [3, 4, 5]


def test_the_difference_is_b_minus_a(store: Store) -> None:
    (row,) = compare(store("a", {"cw": "1000"}), store("b", {"cw": "1111"})).rows
    assert (row.accuracy_a, row.accuracy_b, row.difference) == (25, 100, 75)
    assert row.interval[0] < 75 <= row.interval[1]
    assert row.p_value == 0.25


def test_rows_are_in_the_order_of_a_with_what_only_one_has_left_out_and_said(store: Store) -> None:
    a = store("a", {"pgd20": "10", "cw": "10", "natural": "11", "pgd20@0.1": "01", "pgd20@0.2": "01"})
    b = store("b", {"natural": "11", "fgsm": "10", "pgd20": "10", "pgd20@0.1": "00"})
    found = compare(str(a), str(b))
    assert [row.attack for row in found.rows] == ["pgd20", "natural", "pgd20@0.1"]
    assert found.notes == ("not compared, only A has: cw, pgd20@0.2", "not compared, only B has: fgsm")


@pytest.mark.parametrize(
    ("threat", "note"),
    [
        (LINF8 | {"radius": 4 / 255}, "A was attacked at l∞ 8/255, B at l∞ 4/255"),
        ({"norm": "l2", "radius": 0.5, "step": 0.1}, "A was attacked at l∞ 8/255, B at l2 0.5"),
        (
            LINF8 | {"step": 0.01},
            "A was attacked at l∞ 8/255 in steps of 2/255, B at l∞ 8/255 in steps of 0.01",
        ),
        (None, "A was attacked at l∞ 8/255, B at an unknown threat"),
    ],
)
def test_another_threat_is_a_warning(store: Store, threat: dict[str, Any] | None, note: str) -> None:
    found = compare(store("a", {"cw": "10"}), store("b", {"cw": "10"}, threat=threat))
    assert (found.warnings, found.notes) == ((note,), ())
    assert len(found.rows) == 1


@pytest.mark.parametrize(
    ("other", "about", "message"),
    [
        ({"cw": "10"}, {"data": "d2"}, r"a and .*b were measured on different data \(SHA-256 d1 and d2\)"),
        ({"cw": "10"}, {"data": None}, "b does not say which data"),
        ({"fgsm": "10"}, {}, "no attack in common: .*a has cw; .*b has fgsm"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    store: Store, other: dict[str, str], about: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        compare(store("a", {"cw": "10"}), store("b", other, **about))
    assert "\n" not in str(caught.value)


def test_of_more_images_the_first_are_compared(store: Store) -> None:
    found = compare(store("a", {"cw": "1011"}), store("b", {"cw": "001"}))
    assert (found.images, found.notes) == (3, ("A was measured on 4 images, B on 3: the first are compared",))
    assert (found.rows[0].only_a, found.rows[0].both, found.rows[0].images) == (1, 1, 3)


def test_an_attack_on_fewer_images_is_compared_on_those(store: Store) -> None:
    a, b = store("a", {"natural": "1111", "strong": "110"}), store("b", {"natural": "1111", "strong": "01"})
    natural, strong = compare(a, b).rows
    assert (natural.images, strong.images, strong.both, strong.only_a) == (4, 2, 1, 1)


def test_a_run_alone_compares_its_teacher_with_its_model(store: Store, tmp_path: Path) -> None:
    for name, digits in (("teacher", "111"), ("model", "101")):
        (tmp_path / "run" / "evaluation").mkdir(parents=True, exist_ok=True)
        store(name, {"cw": digits}).rename(tmp_path / "run" / "evaluation" / name)
    run = tmp_path / "run"
    alone, both = compare(run), compare(run / OF_TEACHER, run)
    assert (alone.a, alone.b) == (run / OF_TEACHER, run)
    assert alone.rows == both.rows
    assert (alone.rows[0].accuracy_a, alone.rows[0].only_a, alone.rows[0].only_b) == (100, 1, 0)
    with pytest.raises(InputError, match="teacher keeps no verdicts of a teacher; give two folders"):
        compare(run / OF_TEACHER)
    with pytest.raises(InputError, match=r"evaluation is neither a run nor an evaluation$"):
        compare(run / "evaluation")
    (run / OF_TEACHER).rename(tmp_path / "another")
    with pytest.raises(InputError, match=r"run: a trained teacher has nothing to compare with; give a second folder$"):
        compare(run)
    with pytest.raises(InputError, match=r"nowhere is not a folder: give one of an evaluation, or of a run$"):
        compare(tmp_path / "nowhere")


def test_a_folder_without_verdicts_is_refused(store: Store, tmp_path: Path) -> None:
    good, bare = store("a", {"cw": "10"}), tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(InputError, match=r"bare is neither a run nor an evaluation$"):
        compare(good, bare)
    (bare / "evaluation.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"bare holds no verdicts \(verdicts.safetensors\)"):
        compare(good, bare)
    with pytest.raises(InputError, match="missing is not a folder"):
        compare(tmp_path / "missing", good)
    (bare / FILE).write_bytes(b"something else")
    with pytest.raises(InputError, match="is damaged or no file of verdicts"):
        compare(good, bare)


def test_of_a_run_the_evaluation_of_its_model_is_compared(store: Store) -> None:
    a, b = store("a", {"cw": "10"}), store("b", {"cw": "11"})
    (a / OF_MODEL).mkdir(parents=True)
    (a / FILE).rename(a / OF_MODEL / FILE)
    found = compare(a, b)  # B has its verdicts in the folder itself, as runs of version 0.2 have
    assert (found.a, found.rows[0].difference) == (a, 50)


def test_images_of_an_attack_that_was_not_compared_are_refused(store: Store) -> None:
    found = compare(store("a", {"pgd20": "10", "cw": "11"}), store("b", {"pgd20": "01"}))
    with pytest.raises(InputError, match=r"'pgd2' is not among the attacks compared \(did you mean 'pgd20'\?\)"):
        found.only_a("pgd2")
    with pytest.raises(InputError, match="'cw' is not among the attacks compared"):
        found.only_b("cw")


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1), (1, 0, 1), (0, 5, 2 / 2**5), (1, 9, 22 / 1024), (9, 1, 22 / 1024), (7, 7, 1), (7, 8, 1)],
)
def test_mcnemar_of_few_images(only_a: int, only_b: int, p: float) -> None:
    assert mcnemar(only_a, only_b) == p


@settings(deadline=None)
@given(only_a=st.integers(0, 200), only_b=st.integers(0, 200))
def test_mcnemar_is_the_chance_of_a_split_at_least_as_uneven(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    uneven = [k for k in range(n + 1) if abs(2 * k - n) >= abs(only_a - only_b)]
    assert mcnemar(only_a, only_b) == float(Fraction(sum(math.comb(n, k) for k in uneven), 2**n))


def test_mcnemar_of_ten_thousand_discordant_images_is_fast_and_near_the_normal_law() -> None:
    start = time.perf_counter()
    p = mcnemar(4900, 5100)
    assert time.perf_counter() - start < 1
    assert p == pytest.approx(math.erfc(199 / 100 / math.sqrt(2)), rel=1e-3)
    assert mcnemar(0, 10_000) == 0
