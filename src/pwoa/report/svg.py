"""Figures as SVG inside a page: colours by the page's style sheet, words for those who cannot see them.

A figure is drawn 360 units wide (a small one 200), so that its text is readable on a phone as it is; wider pages have
several side by side.
"""

import math
from collections.abc import Iterable, Sequence

from pwoa.report.figure import Bars, Figure, Plot, Scale, Series, doubling_ticks, range_of, thinned, tick_text
from pwoa.report.html import Markup, element, escape, join

SHADES = 6
"""How many colours there are from the first to the last point of a series that is coloured by order."""
LOOKS = 8
"""How many colours and marks there are."""
_MARKED = 40  # a series of more points has no marks
_LETTER = 5.5  # how wide one is, about


def draw(figure: Figure, level: int = 3) -> Markup:
    """Return a figure with its title, its drawing and its legend."""
    drawing = _bars(figure) if isinstance(figure, Bars) else _plot(figure)
    small = isinstance(figure, Plot) and figure.small
    return element(
        "figure",
        element(f"h{level}", figure.title),
        drawing,
        _legend(figure),
        class_="small" if small else "bars" if isinstance(figure, Bars) else None,
    )


def share_bar(share: float, look: int) -> Markup:
    """Return a small bar that shows a share from 0 to 1, to stand beside the number."""
    width = _n(100 * min(max(share, 0.0), 1.0))
    inside = element("rect", width=width, height=8, class_=f"f{look % LOOKS}")
    return element("svg", inside, viewBox="0 0 100 8", preserveAspectRatio="none", class_="share", aria_hidden="true")


def stacked_bar(parts: Sequence[tuple[str, int]], words: str) -> Markup:
    """Return a bar of parts, each with the class of its colour and its count."""
    total, at, inside = sum(size for _, size in parts) or 1, 0.0, Markup("")
    for look, size in parts:
        width = 200 * size / total
        inside += element("rect", x=_n(at), width=_n(width), height=10, class_=look)
        at += width
    return element(
        "svg", inside, viewBox="0 0 200 10", preserveAspectRatio="none", class_="stack", role="img", aria_label=words
    )


def swatch(look: int, shade: str | None = None) -> Markup:
    """Return the mark of a series, for a legend or a table. shade: another colour than its own."""
    return element("svg", _mark(6, 6, look, shade=shade), viewBox="0 0 12 12", class_="swatch", aria_hidden="true")


def _legend(figure: Figure) -> Markup:
    if isinstance(figure, Bars):
        items = [element("li", swatch(look), name) for name, look in zip(figure.names, figure.looks, strict=True)]
    else:
        named = [series for series in figure.series if series.name]
        items = [element("li", swatch(each.look, "h3" if each.by_order else None), each.name) for each in named]
    if isinstance(figure, Plot) and any(series.by_order for series in figure.series):
        ramp = join(element("i", class_=f"h{shade}") for shade in range(SHADES))
        items.append(element("li", element("span", ramp, class_="ramp", aria_hidden="true"), "first to last epoch"))
    return element("ul", join(items), class_="legend") if len(items) > 1 else Markup("")


def _svg(figure: Figure, width: float, height: float, inside: Markup, linked: bool = False) -> Markup:
    return element(
        "svg",
        element("title", figure.title),
        element("desc", figure.description),
        inside,
        viewBox=f"0 0 {_n(width)} {_n(height)}",
        role="group" if linked else "img",
    )


def _plot(figure: Plot) -> Markup:
    width, height = (200.0, 130.0) if figure.small else (360.0, 236.0)
    right, top, bottom = (8, 8, 18) if figure.small else (12, 16, 40)
    points = [point for series in figure.series for point in series.points]
    ends = [end for series in figure.series for interval in series.intervals for end in interval]
    x_range = figure.x_range or range_of((x for x, _ in points), "x" in figure.log)
    y_range = figure.y_range or range_of([*(y for _, y in points), *ends], "y" in figure.log, 0.08)
    y = Scale(*y_range, height - bottom, top, "y" in figure.log)
    digits = max((len(tick_text(value)) for value in y.ticks(_ticks(figure)[1])), default=1)
    left = round(10 + 5.2 * digits) if figure.small else round(26 + 6.5 * digits)
    x = Scale(*x_range, left, width - right, "x" in figure.log)
    drawn = _axes(figure, x, y, width, height, left, right, top, bottom)
    for series in figure.series:
        drawn += _series(series, x, y, figure.small)
    linked = any(series.links for series in figure.series)
    return _svg(figure, width, height, drawn, linked)


def _axes(
    figure: Plot, x: Scale, y: Scale, width: float, height: float, left: int, right: int, top: int, bottom: int
) -> Markup:
    drawn, floor = Markup(""), height - bottom
    for value in y.ticks(_ticks(figure)[1]):
        at = _n(y(value))
        drawn += element("line", x1=left, x2=_n(width - right), y1=at, y2=at, class_="grid")
        drawn += _text(tick_text(value), left - 5, y(value) + 3.5, "end")
    whole = all(float(px).is_integer() for series in figure.series for px, _ in series.points)
    most = _ticks(figure)[0]
    for value in doubling_ticks(x.low, x.high, most) if figure.doubling and x.log else x.ticks(most):
        if value == int(value) or not (whole and not x.log):  # no half epochs
            drawn += _text(tick_text(value), x(value), floor + 13, "middle")
    for border, _ in figure.borders[1:]:
        at = _n(x(border))
        drawn += element("line", x1=at, x2=at, y1=top, y2=_n(floor), class_="border")
    for at_name, name in [] if figure.small else _names(figure, x):
        drawn += _text(name, at_name + 3, top - 4, "start", "faint")
    drawn += element("line", x1=left, x2=_n(width - right), y1=_n(floor), y2=_n(floor), class_="axis")
    if not figure.small:
        drawn += _text(figure.x, (left + width - right) / 2, height - 6, "middle", "label")
        middle = _n((top + floor) / 2)
        drawn += element(
            "text", figure.y, class_="label", text_anchor="middle", transform=f"translate(11 {middle}) rotate(-90)"
        )
    return drawn


def _names(figure: Plot, x: Scale) -> list[tuple[float, str]]:
    """Return where the names of the borders stand; one that would run into the next stands there with it."""
    found: list[tuple[float, str]] = []
    for border, name in figure.borders:
        at = x(border)
        if found and found[-1][0] + _LETTER * (len(found[-1][1]) + 1) > at:
            at, name = found[-1][0], f"{found.pop()[1]}, {name}"
        found.append((at, name))
    return found


def _ticks(figure: Plot) -> tuple[int, int]:
    """Return how many ticks there are at most, on the x and on the y axis."""
    return (4, 3) if figure.small else (7, 6)


def _series(series: Series, x: Scale, y: Scale, small: bool) -> Markup:
    points, size = thinned(series.points, 50 if small or series.by_order else 100), 2.2 if small else 3.4
    look, drawn = series.look % LOOKS, Markup("")
    whiskers = series.intervals if len(series.intervals) == len(series.points) else ()
    if whiskers and series.joined:
        edge = [(px, high) for (px, _), (_, high) in zip(series.points, whiskers, strict=True)]
        back = [(px, low) for (px, _), (low, _) in zip(series.points, whiskers, strict=True)]
        drawn += element("path", d=_path([*edge, *reversed(back)], x, y) + "z", class_=f"shade f{look}")
    elif whiskers:
        for (px, _), (low, high) in zip(series.points, whiskers, strict=True):
            at = _n(x(px))
            drawn += element("line", x1=at, x2=at, y1=_n(y(low)), y2=_n(y(high)), class_=f"whisker l{look}")
    if series.joined and len(points) > 1:
        drawn += element(
            "path", d=_path(points, x, y), class_="line l7 faintly" if series.by_order else f"line l{look}"
        )
    if len(points) <= _MARKED or series.by_order or not series.joined:
        for place, (px, py) in enumerate(points):
            shade = f"h{place * (SHADES - 1) // max(len(points) - 1, 1)}" if series.by_order else None
            mark = _mark(x(px), y(py), look, size, shade)
            drawn += _linked(series, place, mark) if len(points) == len(series.points) else mark
    return drawn


def _linked(series: Series, place: int, mark: Markup) -> Markup:
    told_one_by_one = len(series.points) <= _MARKED or series.links
    label = series.labels[place] if told_one_by_one and place < len(series.labels) else ""
    told = mark if not label else element("g", element("title", label), mark)
    return element("a", told, href=series.links[place], aria_label=label) if place < len(series.links) else told


def _path(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + " ".join(f"{_n(x(px))} {_n(y(py))}" for px, py in points)


def _mark(x: float, y: float, look: int, size: float = 4.0, shade: str | None = None) -> Markup:
    """Return the mark of a look: a shape of its own for each, so that colour is not all that tells them apart."""
    sides = (0, 4, 3, 8, 5, -3, 6, -4)[look % LOOKS]
    colour = shade or f"f{look % LOOKS}"
    if not sides:
        return element("circle", cx=_n(x), cy=_n(y), r=_n(size), class_=colour)
    turn = math.pi / 4 if sides == 4 else math.pi / 2 if sides < 0 and sides == -3 else -math.pi / 2
    radius = size * (1.35 if abs(sides) < 5 else 1.15)
    angles = [turn + 2 * math.pi * corner / abs(sides) for corner in range(abs(sides))]
    corners = " ".join(f"{_n(x + radius * math.cos(a))},{_n(y + radius * math.sin(a))}" for a in angles)
    return element("polygon", points=corners, class_=colour)


def _bars(figure: Bars) -> Markup:
    width, left, right, top = 360.0, 88.0, 38.0, 4.0
    thick, gap = 9.0, 11.0
    x, at, drawn = Scale(0, 100, left, width - right), top, Markup("")
    height = top + sum(len(bars) * thick + gap for _, bars in figure.rows) + 20
    for value in (0, 25, 50, 75, 100):
        place = _n(x(value))
        drawn += element("line", x1=place, x2=place, y1=top, y2=_n(height - 18), class_="grid")
        drawn += _text(f"{value} %", x(value), height - 5, "middle")
    for name, bars in figure.rows:
        middle = at + len(bars) * thick / 2
        drawn += _text(name if len(name) <= 15 else name[:14] + "…", left - 7, middle + 3.5, "end", "label")
        for look, bar in zip(figure.looks, bars, strict=True):
            if bar is not None:
                drawn += _bar(x, at, thick, look % LOOKS, bar.value, bar.low, bar.high)
            at += thick
        at += gap
    return _svg(figure, width, height, drawn)


def _bar(x: Scale, at: float, thick: float, look: int, value: float, low: float, high: float) -> Markup:
    middle, start = _n(at + thick / 2), x(0)
    drawn = element(
        "rect", x=_n(start), y=_n(at + 1), width=_n(x(value) - start), height=_n(thick - 2), rx=1.5, class_=f"f{look}"
    )
    drawn += element("line", x1=_n(x(low)), x2=_n(x(high)), y1=middle, y2=middle, class_="interval")
    return drawn + _text(f"{value:.1f}", max(x(value), x(high)) + 4, at + thick / 2 + 3.2, "start", "value")


def _text(text: str, x: float, y: float, anchor: str, class_: str | None = None) -> Markup:
    return element("text", text, x=_n(x), y=_n(y), text_anchor=anchor, class_=class_)


def _n(value: float) -> str:
    """Write a place with one decimal, which is a tenth of a pixel."""
    return escape(f"{value:.1f}".removesuffix(".0"))
