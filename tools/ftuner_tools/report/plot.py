"""Plots of points and lines over two axes as wide as a panel, and axes of numbers and names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ftuner.report.html import Html, html
from ftuner.report.svg import (
    HEIGHT,
    MOST_TICKS,
    PANEL,
    Axis,
    Curve,
    Frame,
    Marks,
    chart,
    legend,
    shape_mark,
)

_LEAST = 1e-12
"""Values that are all smaller are drawn as zero, on an axis to 1."""
_TICK_PIXELS = 8.5
"""Width of a character of the vertical axis, in the larger type of narrow screens."""


def plot(
    across: Axis, up: Axis, curves: Sequence[Curve], marks: Sequence[Marks], label: str,
    height: float = HEIGHT,
) -> Html:  # fmt: skip
    """A plot of the width of a panel, with its legend. Lines are behind points."""
    longest = max((len(text) for _, text in up.ticks), default=0)
    frame = Frame(across, up, height=height, left=max(_TICK_PIXELS * longest + 14, 44))
    parts = [
        *frame.grid(),
        *(frame.curve(curve) for curve in curves),
        *(
            shape_mark(frame.x(p.x), frame.y(p.y), p.text, kind.colour, kind.shape)
            for kind in marks
            for p in kind.points
        ),
    ]
    return html(chart(height, parts, label, PANEL), legend(curves, marks))


def linear_axis(title: str, values: Iterable[float], label: Callable[[float], str]) -> Axis:
    """An axis from 0 to beyond the greatest value, at round numbers."""
    most = max(values, default=0.0)
    if most < _LEAST:
        most = 1.0
    step = _round_up(most / MOST_TICKS)
    count = math.ceil(most / step)
    ticks = tuple((n * step, label(n * step)) for n in range(count + 1))
    return Axis(title, 0.0, count * step, "linear", ticks)


def whole_axis(title: str, low: int, high: int, ticks: Iterable[int]) -> Axis:
    """An axis of whole numbers, with labels at some of them."""
    return Axis(title, low, high, "linear", tuple((n, str(n)) for n in ticks))


def named_axis(title: str, names: Sequence[str]) -> Axis:
    """An axis of named places: the first at 0, the next at 1, and so on, with half a place on each
    side."""
    return Axis(title, -0.5, len(names) - 0.5, "linear", tuple(enumerate(names)))


def spaced_axis(title: str, names: Sequence[str]) -> Axis:
    """An axis from the first named place to the last, evenly apart: places are 0, 1, 2..."""
    return Axis(title, 0.0, max(len(names) - 1, 1), "linear", tuple(enumerate(names)))


def _round_up(value: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= value * (1 - 1e-9))
