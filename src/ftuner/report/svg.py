"""Primitives of charts as SVG text, to stand inside a page; axes, lines, points and a legend. No
library draws them, and they refer to nothing outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from ftuner.report.html import Html, element

WIDTH = 960
"""Width of a chart as wide as the page, in the units of its view box: pixels."""
PANEL = 520
"""Width of one of two charts side by side, which a narrow screen shows below each other."""
LABEL_PIXELS = 7
"""Width of a character of the labels, somewhat generous."""
INK, FAINT, PAPER = "var(--ink)", "var(--faint)", "var(--paper)"
"""Colours that the page's style sets for light and for dark screens."""
SERIES = tuple(f"var(--s{number})" for number in range(6))
"""Colours of lines and points, each distinct from the paper in both."""
HEIGHT = 290
"""Height of a plot."""
_TOP, _RIGHT, _BELOW = 26, 14, 40
"""Margins for the titles of the axes and the last label of the horizontal one."""
MOST_TICKS = 6
"""Steps between the labels of an axis, at most."""
_RADIUS = 3.4
"""Radius of a point."""
_BASES = {"linear": None, "log2": 2.0, "log10": 10.0}

Scale = Literal["linear", "log2", "log10"]
Shape = Literal["circle", "ring", "diamond"]


def words(x: float, y: float, text: str, **attributes: object) -> Html:
    return element("text", text, x=float(x), y=float(y), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Html:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def hint(text: str) -> Html:
    """What a shape shows while the mouse is over it."""
    return element("title", text)


def box(x: float, y: float, width: float, height: float, text: str, **attributes: object) -> Html:
    """A rectangle with a text that is shown while the mouse is over it."""
    return element("rect", hint(text), x=float(x), y=float(y), width=float(width),
                   height=float(height), **attributes)  # fmt: skip


def corners(points: Iterable[tuple[float, float]]) -> str:
    """The attribute `points` of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def diamond(x: float, y: float, radius: float, text: str, **attributes: object) -> Html:
    """A diamond with a text that is shown while the mouse is over it."""
    place = corners(((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)))
    return element("polygon", hint(text), points=place, **attributes)


def chart(height: float, parts: Iterable[Html], label: str, width: float = WIDTH) -> Html:
    """A chart of `width` x `height`; `label` says what it shows."""
    return element(
        "svg", Html("\n".join(parts)), viewBox=f"0 0 {width:.0f} {height:.0f}", role="img",
        aria_label=label,
    )  # fmt: skip


class Axis(NamedTuple):
    """A range of values, with the labels of some."""

    title: str
    """The quantity and its unit."""
    low: float
    high: float
    scale: Scale
    ticks: tuple[tuple[float, str], ...]
    """Values, and what stands beside them."""

    def place(self, value: float) -> float:
        """Where a value is: 0 is the low end of the axis, 1 the high end."""
        base = _BASES[self.scale]
        low, high = self.low, self.high
        if base is not None:
            low, high, value = (math.log(x, base) for x in (low, high, max(value, low)))
        return min(max((value - low) / (high - low), 0.0), 1.0)


class Curve(NamedTuple):
    """A line through points."""

    name: str
    """In the legend; empty for none."""
    points: Sequence[tuple[float, float]]
    colour: str = INK
    dashes: str = "none"
    weight: float = 1.7


class Point(NamedTuple):
    """One value, and what is shown while the mouse is over it."""

    x: float
    y: float
    text: str


class Marks(NamedTuple):
    """Points of one kind."""

    name: str
    points: Sequence[Point]
    colour: str
    shape: Shape = "circle"


class Frame(NamedTuple):
    """Two axes on a chart, and where values are on it. `left`: for the labels of the vertical axis;
    `right`: what is left free beside the plot."""

    across: Axis
    up: Axis
    width: float = PANEL
    height: float = HEIGHT
    left: float = 58
    right: float = _RIGHT

    @property
    def bottom(self) -> float:
        return self.height - _BELOW

    def x(self, value: float) -> float:
        return self.left + self.across.place(value) * (self.width - self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.up.place(value) * (self.bottom - _TOP)

    def grid(self) -> Iterator[Html]:
        """Lines and labels of both axes, and their titles."""
        for value, label in self.up.ticks:
            y = self.y(value)
            yield line(self.left, y, self.width - self.right, y, stroke=FAINT)
            yield words(self.left - 6, y + 4, label, text_anchor="end")
        for value, label in self.across.ticks:
            x = self.x(value)
            yield line(x, _TOP, x, self.bottom, stroke=FAINT)
            yield words(x, self.bottom + 16, label, text_anchor="middle")
        middle = (self.left + self.width - self.right) / 2
        yield words(middle, self.height - 6, self.across.title, text_anchor="middle")
        yield words(max(self.left - 40, 0), 14, self.up.title)

    def curve(self, drawn: Curve) -> Html:
        places = corners((self.x(x), self.y(y)) for x, y in drawn.points)
        return element("polyline", hint(drawn.name), points=places, fill="none",
                       stroke=drawn.colour, stroke_width=drawn.weight,
                       stroke_dasharray=drawn.dashes, stroke_linejoin="round")  # fmt: skip


def legend(curves: Iterable[Curve], marks: Iterable[Marks]) -> Html:
    """The names of lines and points beside what they look like; nothing if none has a name."""
    entries = [
        (c.name, line(0, 6, 28, 6, stroke=c.colour, stroke_width=c.weight,
                      stroke_dasharray=c.dashes))
        for c in curves
    ]  # fmt: skip
    entries += [
        (kind.name, shape_mark(14, 6, kind.name, kind.colour, kind.shape)) for kind in marks
    ]
    # Lines and points of one name are one entry.
    looks: dict[str, list[Html]] = {}
    for name, look in entries:
        looks.setdefault(name, []).append(look)
    shown = (
        element("span", element("svg", *drawn, viewBox="0 0 28 12", aria_hidden="true"), name)
        for name, drawn in looks.items()
        if name
    )
    return element("div", *shown, class_="keys")


def log_axis(
    title: str, values: Iterable[float], label: Callable[[float], str],
    scale: Literal["log2", "log10"] = "log10", margin: float = 1.25,
) -> Axis:  # fmt: skip
    """A logarithmic axis around positive values; `margin`: the factor that it has on both sides."""
    base = _BASES[scale]
    assert base is not None
    known = list(values)
    low, high = min(known) / margin, max(known) * margin
    first, last = math.ceil(math.log(low, base)), math.floor(math.log(high, base))
    apart = max(math.ceil((last - first) / MOST_TICKS), 1)
    powers = [base**power for power in range(first, last + 1, apart)]
    if len(powers) < 2 and scale == "log10":
        # Less than a decade: also multiples of the powers.
        decades = range(first - 1, last + 1)
        powers = [n * 10.0**p for p in decades for n in (1, 2, 5) if low <= n * 10.0**p <= high]
    return Axis(title, low, high, scale, tuple((value, label(value)) for value in powers))


def shape_mark(x: float, y: float, text: str, colour: str, shape: Shape) -> Html:
    """A point of one of the shapes."""
    if shape == "diamond":
        return diamond(x, y, _RADIUS + 1.4, text, fill=colour, stroke=PAPER, stroke_width=0.7)
    if shape == "ring":
        return element("circle", hint(text), cx=x, cy=y, r=_RADIUS, fill=PAPER, stroke=colour,
                       stroke_width=1.5)  # fmt: skip
    return element("circle", hint(text), cx=x, cy=y, r=_RADIUS, fill=colour, stroke=PAPER,
                   stroke_width=0.7)  # fmt: skip
