"""Charts of a model as SVG text, to stand inside a page: no library draws them, and they refer to
nothing outside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from ftuner.core.units import capacity, count, duration, rate
from ftuner.planner.cpu.plan import Plan
from ftuner.report.arena import ArenaMap
from ftuner.report.cpu.patches import Region, regions_of
from ftuner.report.cpu.picture import COLOURS, ukernels_by_area, workers_label
from ftuner.report.roofline import Roofline

WIDTH = 960
"""Of all charts, in the units of their view boxes: pixels of a page of that width."""
LABEL_PIXELS = 7
"""Width of a character of the labels, somewhat generous."""
LEAST_TILE = 4
"""Pixels of a tile's side from which on its edges are drawn."""
LEFT = 84
"""Margin for the numbers of a vertical axis."""
INK, FAINT = "#222", "#ddd"
_DASHES = ("1 3", "3 3", "7 3", "none")
"""Of the roofs, L1 first."""


class Bar(NamedTuple):
    """A part of a timeline, or a point under a roofline."""

    label: str
    """Shown while the mouse is over it."""
    link: str
    """Where a click leads within the page."""
    seconds: float
    colour: str


class Point(NamedTuple):
    """Work under the roofline."""

    bar: Bar
    flops_per_byte: float
    flops_per_s: float


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """An element of HTML or SVG. Underscores in names of attributes stand for hyphens; `content` is
    escaped already."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{content}</{name}>"


def _value(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))
    )


def words(x: float, y: float, text: str, **attributes: object) -> str:
    return element("text", escape(text), x=float(x), y=float(y), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def box(x: float, y: float, width: float, height: float, hint: str, **attributes: object) -> str:
    """A rectangle with a text that is shown while the mouse is over it."""
    title = element("title", escape(hint))
    return element("rect", title, x=float(x), y=float(y), width=float(width), height=float(height),
                   **attributes)  # fmt: skip


def linked(link: str, content: str) -> str:
    return element("a", content, href=f"#{link}")


def chart(height: float, parts: Iterable[str], label: str) -> str:
    """A chart of `WIDTH` x `height`; `label` says what it shows."""
    return element(
        "svg", "\n".join(parts), viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=label
    )


def timeline(bars: Sequence[Bar]) -> str:
    """Steps side by side in their order, as wide as they take."""
    total = sum(bar.seconds for bar in bars) or 1.0
    parts, x, height = [], 0.0, 44
    for bar in bars:
        width = bar.seconds / total * WIDTH
        shape = box(x, 0, width, height, bar.label, fill=bar.colour, stroke="white",
                    stroke_width=0.4)  # fmt: skip
        parts.append(linked(bar.link, shape))
        x += width
    parts += [words(0, 60, "0"), words(WIDTH, 60, duration(total), text_anchor="end")]
    return chart(66, parts, "time of the steps in their order")


def roofline_chart(roofline: Roofline, points: Sequence[Point], whole_flops_per_s: float) -> str:
    """The roofs of the machine, a circle for each step (its area is its share of the time), and a
    diamond for the whole model."""
    top, bottom, right = 12, 330, WIDTH - 190
    peak = roofline.peak_flops_per_s
    ridges = [peak / roof.bandwidth_bytes_per_s for roof in roofline.roofs]
    places = [roofline.flops_per_byte, *ridges, *(p.flops_per_byte for p in points)]
    rates = [peak, whole_flops_per_s, *(p.flops_per_s for p in points)]
    x0, x1 = math.log2(min(places)) - 1, math.log2(max(places)) + 1
    y0, y1 = math.log10(min(rates)) - 0.2, math.log10(peak) + 0.2

    def x(flops_per_byte: float) -> float:
        return LEFT + (math.log2(flops_per_byte) - x0) / (x1 - x0) * (right - LEFT)

    def y(flops_per_s: float) -> float:
        return bottom - (math.log10(flops_per_s) - y0) / (y1 - y0) * (bottom - top)

    parts = []
    for power in range(math.ceil(y0), math.floor(y1) + 1):
        parts.append(line(LEFT, y(10.0**power), right, y(10.0**power), stroke=FAINT))
        label = rate(10.0**power, "flop/s")
        parts.append(words(LEFT - 6, y(10.0**power) + 4, label, text_anchor="end"))
    apart = max(round((x1 - x0) / 8), 1)
    for power in range(math.ceil(x0), math.floor(x1) + 1, apart):
        parts.append(line(x(2.0**power), top, x(2.0**power), bottom, stroke=FAINT))
        parts.append(words(x(2.0**power), bottom + 16, f"{2.0**power:g}", text_anchor="middle"))
    parts.append(words((LEFT + right) / 2, bottom + 34, "flop / byte", text_anchor="middle"))
    for number, (roof, ridge) in enumerate(zip(roofline.roofs, ridges, strict=True)):
        dashes = _DASHES[number % len(_DASHES)]
        begin = max(2.0**x0, 10.0**y0 / roof.bandwidth_bytes_per_s)
        corners = [(begin, begin * roof.bandwidth_bytes_per_s), (ridge, peak), (2.0**x1, peak)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
        weight = 2.4 if roof.level == roofline.home else 1.2
        parts.append(
            element(
                "polyline",
                points=path,
                fill="none",
                stroke=INK,
                stroke_width=weight,
                stroke_dasharray=dashes,
            )
        )
        at = top + 14 + 18 * number
        parts.append(line(right + 8, at - 4, right + 36, at - 4, stroke=INK, stroke_width=weight,
                          stroke_dasharray=dashes))  # fmt: skip
        text = f"{roof.level}, {rate(roof.bandwidth_bytes_per_s, 'B/s')}"
        parts.append(words(right + 42, at, text))
    total = sum(p.bar.seconds for p in points) or 1.0
    for point in sorted(points, key=lambda p: -p.bar.seconds):
        title = element("title", escape(point.bar.label))
        radius = 2.0 + 16.0 * math.sqrt(point.bar.seconds / total)
        shape = element("circle", title, cx=x(point.flops_per_byte), cy=y(point.flops_per_s),
                        r=radius, fill=point.bar.colour, fill_opacity=0.65,
                        stroke="white")  # fmt: skip
        parts.append(linked(point.bar.link, shape))
    a, b = x(roofline.flops_per_byte), y(whole_flops_per_s)
    corners_of = f"{a:.1f},{b - 9:.1f} {a + 7:.1f},{b:.1f} {a:.1f},{b + 9:.1f} {a - 7:.1f},{b:.1f}"
    share = f"the model: {whole_flops_per_s / peak:.0%} of {rate(peak, 'flop/s')}"
    title = element("title", escape(share))
    parts.append(element("polygon", title, points=corners_of, fill=INK, stroke="white"))
    at = top + 14 + 18 * len(roofline.roofs)
    parts.append(words(right + 18, at, "◆ the whole model"))
    parts.append(words(right + 18, at + 18, "● one step"))
    return chart(bottom + 42, parts, "the steps under the roofline")


def patches_chart(plan: Plan) -> str:
    """C of one product: a rectangle for each uKernel and its workers. Each axis has its own
    scale."""
    problem, regions = plan.problem, regions_of(plan)
    top, height = 20, 130
    ukernels = ukernels_by_area(regions)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(ukernels.names)}
    across, down = (WIDTH - LEFT) / problem.n, height / problem.m

    def shown(region: Region) -> str:
        (first, last), (left, right) = region.rows, region.columns
        name, who = str(region.kernel), workers_label(region.workers)
        x, y = LEFT + left * across, top + first * down
        wide, high = (right - left) * across, (last - first) * down
        hint = f"{name} of {who}: rows {first} to {last}, columns {left} to {right}"
        drawn = [box(x, y, wide, high, hint, fill=colours[name])]
        if region.kernel.mr * down >= LEAST_TILE:
            rows = range(first + region.kernel.mr, last, region.kernel.mr)
            drawn += [edge(x, top + n * down, x + wide, top + n * down) for n in rows]
        if region.kernel.nr * across >= LEAST_TILE:
            columns = range(left + region.kernel.nr, right, region.kernel.nr)
            drawn += [edge(LEFT + n * across, y, LEFT + n * across, y + high) for n in columns]
        drawn.append(element("rect", x=x, y=y, width=wide, height=high, fill="none",
                             stroke="white", stroke_width=2))  # fmt: skip
        if wide >= LABEL_PIXELS * len(who) and high >= LABEL_PIXELS * 2:
            drawn.append(words(x + wide / 2, y + high / 2 + 4, who, text_anchor="middle"))
        return "".join(drawn)

    def edge(x1: float, y1: float, x2: float, y2: float) -> str:
        return line(x1, y1, x2, y2, stroke="white", stroke_width=0.5, stroke_opacity=0.7)

    parts = [shown(region) for region in regions]
    place = float(LEFT)
    for name, area in zip(*ukernels, strict=True):
        text = f"{name}, {area / (problem.m * problem.n):.1%} of C"
        parts.append(element("rect", x=place, y=top + height + 8, width=10, height=10,
                             fill=colours[name]))  # fmt: skip
        parts.append(words(place + 15, top + height + 17, text))
        place += 15 + LABEL_PIXELS * (len(text) + 3)
    parts += [
        words(LEFT, top - 6, "0"),
        words(WIDTH, top - 6, f"n = {problem.n}", text_anchor="end"),
        words(LEFT - 6, top + 12, "0", text_anchor="end"),
        words(LEFT - 6, top + height, f"m = {problem.m}", text_anchor="end"),
    ]
    return chart(top + height + 22, parts, f"patches of {problem.m} x {problem.n} x {problem.k}")


def arena_chart(arena: ArenaMap, bars: Mapping[int, Bar]) -> str:
    """The arena over the steps: a rectangle for each result, as long as it is kept, at its place.
    `bars` has the step that wrote it."""
    top, height = 8, 240
    steps = arena.last - arena.first + 1
    across, down = (WIDTH - LEFT) / steps, height / max(arena.size_bytes, 1)
    parts = [line(LEFT, top + height, WIDTH, top + height, stroke=INK)]
    for place in arena.places:
        bar = bars[place.first]
        kept = count(place.last - place.first + 1, "step")
        hint = f"{capacity(place.size_bytes)} for {kept}, written by {bar.label}"
        shape = box(
            LEFT + (place.first - arena.first) * across,
            top + height - (place.offset + place.size_bytes) * down,
            (place.last - place.first + 1) * across, place.size_bytes * down, hint,
            fill=bar.colour, stroke="white", stroke_width=0.6,
        )  # fmt: skip
        parts.append(linked(bar.link, shape))
    parts += [
        words(LEFT - 6, top + 10, capacity(arena.size_bytes), text_anchor="end"),
        words(LEFT - 6, top + height, "0", text_anchor="end"),
        words(LEFT, top + height + 16, f"step {arena.first}"),
        words(WIDTH, top + height + 16, f"step {arena.last}", text_anchor="end"),
    ]
    return chart(top + height + 22, parts, "the arena over the steps")
