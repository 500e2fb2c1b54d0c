"""Primitives of charts as SVG text, to stand inside a page: no library draws them, and they refer
to nothing outside."""

from __future__ import annotations

from collections.abc import Iterable

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
