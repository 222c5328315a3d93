"""Axes, ticks and what is drawn."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwoa.report.figure import Bar, Bars, Plot, Scale, Series, doubling_ticks, log_ticks, range_of, round_ticks, thinned
from pwoa.report.html import element, escape, table
from pwoa.report.svg import draw

Numbers = st.floats(-1e12, 1e12, allow_nan=False)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (8.11, 8.13, [8.11, 8.115, 8.12, 8.125, 8.13]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_ticks_of_a_logarithmic_axis() -> None:
    assert log_ticks(0.9, 11) == pytest.approx([1, 2, 5, 10])
    assert doubling_ticks(0.9, 4.3) == [1, 2, 4]
    assert doubling_ticks(1, 4096) == [1, 8, 64, 512, 4096]
    assert log_ticks(1e-8, 1e8) == pytest.approx([10.0**power for power in (-8, -5, -2, 1, 4, 7)])


@given(st.lists(Numbers, min_size=1), st.booleans())
def test_a_range_holds_its_values_and_has_a_width(values: list[float], log: bool) -> None:
    low, high = range_of(values, log)
    assert low < high
    assert all(low <= value <= high for value in values if value > 0 or not log)


@given(Numbers, st.floats(1e-6, 1e12), st.integers(2, 9))
def test_there_are_never_more_ticks_than_asked_for(low: float, width: float, most: int) -> None:
    if low + width > low:
        ticks = round_ticks(low, low + width, most)
        assert len(ticks) <= most + 1


def test_a_scale_is_linear_or_logarithmic() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(1, 100, 0, 2, log=True)(10) == pytest.approx(1)


def test_thinned_keeps_both_ends() -> None:
    points = [(float(i), float(i)) for i in range(1000)]
    kept = thinned(points, 50)
    assert (len(kept), kept[0], kept[-1]) == (50, points[0], points[-1])


def parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup)


def test_bars_are_as_long_as_their_values() -> None:
    bars = Bars(
        "Title", "Words.", ("a",), (0,), (("x", (Bar(50, 40, 60),)), ("y", (Bar(100, 90, 100),)), ("z", (None,)))
    )
    svg = parsed(draw(bars)).find("svg")
    assert svg is not None
    widths = [float(rect.attrib["width"]) for rect in svg.iter("rect")]
    assert len(widths) == 2
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert (svg.findtext("title"), svg.findtext("desc"), svg.attrib["role"]) == ("Title", "Words.", "img")


def test_points_stand_where_their_values_are_and_lead_to_their_runs() -> None:
    series = Series("s", ((0, 0), (10, 100)), links=("#a", "#b"), labels=("A", "B"), joined=False)
    svg = parsed(draw(Plot("t", "w", "x", "y", (series,)))).find("svg")
    assert svg is not None
    first, last = svg.iter("circle")
    assert float(first.attrib["cx"]) < float(last.attrib["cx"])
    assert float(first.attrib["cy"]) > float(last.attrib["cy"])
    assert [link.attrib["href"] for link in svg.iter("a")] == ["#a", "#b"]
    assert svg.attrib["role"] == "group"  # an image has no links in it


@pytest.mark.parametrize(
    ("begin", "names"),
    [
        ((0.9, 50.5, 100.5), ["allocation", "search", "finetune"]),
        ((0.9, 2.5, 82.5), ["allocation, search", "finetune"]),
    ],
)
def test_the_name_of_a_short_stage_stands_with_the_next_one(begin: tuple[float, ...], names: list[str]) -> None:
    borders = tuple(zip(begin, ("allocation", "search", "finetune"), strict=True))
    series = Series("s", ((1, 0), (150, 1)))
    svg = parsed(draw(Plot("t", "w", "x", "y", (series,), (0, 151), borders=borders))).find("svg")
    assert svg is not None
    found = [text for text in svg.iter("text") if text.attrib.get("class") == "faint"]
    assert [text.text for text in found] == names
    places = [float(text.attrib["x"]) for text in found]
    assert places == sorted(places)
    assert len([line for line in svg.iter("line") if line.attrib["class"] == "border"]) == 2


@given(st.lists(st.tuples(Numbers, Numbers), min_size=1, max_size=200), st.sampled_from(["", "x", "y", "xy"]))
def test_any_points_are_drawn_inside_the_figure(points: list[tuple[float, float]], log: str) -> None:
    drawn = draw(
        Plot("t", "w", "x", "y", (Series("s", tuple(points)),), log=log if min(min(p) for p in points) > 0 else "")
    )
    places = [float(value) for value in re.findall(r'c[xy]="([^"]*)"', drawn)]
    assert all(-1 <= place <= 361 for place in places)


@given(st.text())
def test_whatever_is_no_markup_is_escaped(text: str) -> None:
    assert not set("<>\"'") & set(escape(text))
    assert "<script" not in element("p", text, title=text).lower().replace("<p", "")
    assert parsed(table(["a"], [[text]], "c")).findtext(".//tbody/tr/th") is not None
