"""Charts of plans and of models: the time of steps, rooflines, patches, waves, arenas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ftuner.core.units import capacity, count, duration, rate
from ftuner.planner.cpu.plan import Plan, Range
from ftuner.planner.gpu.plan import ProductPlan
from ftuner.report import svg
from ftuner.report.html import Html, colour_key, element, html, linked
from ftuner.report.model import ArenaMap
from ftuner.report.picture import COLOURS, Region, regions_of, ukernels_by_area, workers_label
from ftuner.report.roofline import Roofline

LEAST_TILE = 4
"""Pixels of a tile's side from which on its edges are drawn."""
LEFT = 84
"""Margin for the numbers of a vertical axis."""
TOP, HEIGHT = 20.0, 130.0
"""Of C of a product, below the numbers of its horizontal axis."""
_DASHES = ("1 3", "3 3", "7 3", "none")
"""Line styles of the roofs, L1 first."""
_STEP = "var(--s0)"
"""Colour that stands for all kinds of steps."""
MOST_TILES = 4096
"""Most tiles of a GPU's plan that are drawn one by one; more are drawn as bands."""


class Bar(NamedTuple):
    """A part of a timeline, or a point under a roofline."""

    label: str
    """Shown while the mouse is over it."""
    link: str
    """Where a click leads within the page."""
    seconds: float
    colour: str


class Work(NamedTuple):
    """Work under the roofline."""

    bar: Bar
    flops_per_byte: float
    flops_per_s: float


def timeline(bars: Sequence[Bar]) -> Html:
    """Steps side by side in their order, as wide as they take."""
    total = sum(bar.seconds for bar in bars) or 1.0
    parts, x, height = [], 0.0, 44
    for bar in bars:
        width = bar.seconds / total * svg.WIDTH
        shape = svg.box(x, 0, width, height, bar.label, fill=bar.colour, stroke=svg.PAPER,
                    stroke_width=0.4)  # fmt: skip
        parts.append(linked(bar.link, shape))
        x += width
    parts += [svg.words(0, 60, "0"), svg.words(svg.WIDTH, 60, duration(total), text_anchor="end")]
    return svg.chart(66, parts, "time of the steps in their order")


def roofline_axes(
    peak_flops_per_s: float, levels: Sequence[tuple[str, float]], flops_per_byte: Iterable[float],
    flops_per_s: Iterable[float],
) -> tuple[svg.Axis, svg.Axis]:  # fmt: skip
    """Axes with room for the roofs of all levels, each with its bytes per second, and for work of
    these intensities and rates."""
    ridges = [peak_flops_per_s / per_s for _, per_s in levels]
    across = svg.log_axis(
        "flop / byte", (*ridges, *flops_per_byte), lambda x: f"{x:g}", "log2", 2.0
    )
    rates = (peak_flops_per_s, *flops_per_s)
    return across, svg.log_axis("flop/s", rates, lambda x: rate(x, ""), "log10", 1.6)


def roof_curves(
    peak_flops_per_s: float, levels: Sequence[tuple[str, float]], across: svg.Axis, up: svg.Axis,
    home: str = "",
) -> list[svg.Curve]:  # fmt: skip
    """A line for each memory level, up to the peak; that of the level `home` is thicker."""
    curves = []
    for number, (level, per_s) in enumerate(levels):
        begin, ridge = max(across.low, up.low / per_s), peak_flops_per_s / per_s
        points = [
            (begin, begin * per_s),
            (ridge, peak_flops_per_s),
            (across.high, peak_flops_per_s),
        ]
        weight = 2.4 if level == home else 1.3
        name = f"{level}, {rate(per_s, 'B/s')}"
        curves.append(svg.Curve(name, points, svg.INK, _DASHES[number % len(_DASHES)], weight))
    return curves


def roofline_chart(roofline: Roofline, works: Sequence[Work], whole_flops_per_s: float) -> Html:
    """The roofs of the machine, a circle for each step (its area is its share of the time), and a
    diamond for the whole model."""
    peak, here = roofline.peak_flops_per_s, roofline.flops_per_byte
    levels = [(roof.level, roof.bandwidth_bytes_per_s) for roof in roofline.roofs]
    across, up = roofline_axes(
        peak, levels, [here, *(w.flops_per_byte for w in works)],
        [whole_flops_per_s, *(w.flops_per_s for w in works)],
    )  # fmt: skip
    frame = svg.Frame(across, up, svg.WIDTH, 360)
    curves = roof_curves(peak, levels, across, up, roofline.home)
    parts = [*frame.grid(), *map(frame.curve, curves)]
    total = sum(w.bar.seconds for w in works) or 1.0
    for work in sorted(works, key=lambda w: -w.bar.seconds):
        radius = 2.0 + 16.0 * math.sqrt(work.bar.seconds / total)
        shape = element("circle", svg.hint(work.bar.label), cx=frame.x(work.flops_per_byte),
                        cy=frame.y(work.flops_per_s), r=radius, fill=work.bar.colour,
                        fill_opacity=0.65, stroke=svg.PAPER)  # fmt: skip
        parts.append(linked(work.bar.link, shape))
    share = f"the model: {whole_flops_per_s / peak:.0%} of {rate(peak, 'flop/s')}"
    parts.append(svg.diamond(frame.x(here), frame.y(whole_flops_per_s), 9, share, fill=svg.INK,
                         stroke=svg.PAPER))  # fmt: skip
    kinds = (svg.Marks("one step", (), _STEP), svg.Marks("the whole model", (), svg.INK, "diamond"))
    return html(
        svg.chart(frame.height, parts, "the steps under the roofline"), svg.legend(curves, kinds)
    )


class _Square(NamedTuple):
    """Where C of one product is drawn; each axis has its own scale."""

    m: int
    n: int
    width: float

    def place(self, rows: Range, columns: Range) -> tuple[float, float, float, float]:
        """x, y, width and height of a rectangle of C."""
        across, down = (self.width - LEFT) / self.n, HEIGHT / self.m
        x, y = LEFT + columns[0] * across, TOP + rows[0] * down
        return x, y, (columns[1] - columns[0]) * across, (rows[1] - rows[0]) * down

    def labels(self) -> list[Html]:
        """The labels of the axes."""
        return [
            svg.words(LEFT, TOP - 6, "0"),
            svg.words(self.width, TOP - 6, f"n = {self.n}", text_anchor="end"),
            svg.words(LEFT - 6, TOP + 12, "0", text_anchor="end"),
            svg.words(LEFT - 6, TOP + HEIGHT, f"m = {self.m}", text_anchor="end"),
        ]


def plan_chart(plan: Plan | ProductPlan, width: float = svg.WIDTH) -> Html:
    """C of one product: a rectangle for each uKernel and its workers. On a GPU its tiles, coloured
    by the wave that finishes them; the bands if there are too many tiles."""
    problem = plan.problem
    square = _Square(problem.m, problem.n, width)
    what, (parts, keys) = (
        ("patches", _patches(plan, square)) if isinstance(plan, Plan)
        else ("tiles", _waves(plan, square))
    )  # fmt: skip
    said = f"{what} of {problem.m} x {problem.n} x {problem.k}"
    drawn = svg.chart(TOP + HEIGHT + 8, [*parts, *square.labels()], said, width)
    return html(drawn, element("div", *keys, class_="keys"))


def _patches(plan: Plan, square: _Square) -> tuple[list[Html], list[Html]]:
    """The rectangles, and the key to their colours."""
    regions = regions_of(plan)
    ukernels = ukernels_by_area(regions)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(ukernels)}

    def edge(x: float, y: float, wide: float, high: float) -> Html:
        return svg.line(
            x, y, x + wide, y + high, stroke=svg.PAPER, stroke_width=0.5, stroke_opacity=0.7
        )

    def shown(region: Region) -> Html:
        (first, last), (left, right) = region.rows, region.columns
        mr, nr = region.kernel.mr, region.kernel.nr
        name, who = str(region.kernel), workers_label(region.workers)
        x, y, wide, high = square.place(region.rows, region.columns)
        text = f"{name} of {who}: rows {first} to {last}, columns {left} to {right}"
        drawn = [svg.box(x, y, wide, high, text, fill=colours[name])]
        down, across = high / (last - first), wide / (right - left)
        if mr * down >= LEAST_TILE:
            drawn += [edge(x, y + n * down, wide, 0) for n in range(mr, last - first, mr)]
        if nr * across >= LEAST_TILE:
            drawn += [edge(x + n * across, y, 0, high) for n in range(nr, right - left, nr)]
        drawn.append(element("rect", x=x, y=y, width=wide, height=high, fill="none",
                             stroke=svg.PAPER, stroke_width=2))  # fmt: skip
        if wide >= svg.LABEL_PIXELS * len(who) and high >= svg.LABEL_PIXELS * 2:
            middle = (x + wide / 2, y + high / 2 + 4)
            drawn.append(svg.words(*middle, who, text_anchor="middle", class_="on-colour"))
        return html(*drawn)

    keys = [
        element(
            "span", colour_key(colours[name]), f"{name}, {area / (square.m * square.n):.1%} of C"
        )
        for name, area in ukernels.items()
    ]
    return [*map(shown, regions)], keys


def _waves(plan: ProductPlan, square: _Square) -> tuple[list[Html], list[Html]]:
    """The tiles or bands, and the key to their colours."""
    n, nr = square.n, plan.kernel.main.bn
    parts: list[Html] = []
    waves: set[int] = set()
    alone = plan.tiles <= MOST_TILES
    for tile, first, last in plan.bands:
        for row in range(first, last, tile.bm) if alone else (first,):
            end = min(row + tile.bm, last) if alone else last
            for column in range(0, n, nr) if alone else (0,):
                right = min(column + nr, n) if alone else n
                wave = plan.wave(row, column)
                text = f"{tile}: rows {row} to {end}, columns {column} to {right}"
                if alone:
                    waves.add(wave)
                    text = f"{text}, wave {wave + 1}"
                place = square.place((row, end), (column, right))
                colour = COLOURS[wave % len(COLOURS)]
                parts.append(svg.box(*place, text, fill=colour, stroke=svg.PAPER, stroke_width=0.6))
    shown = sorted(waves)[: len(COLOURS)]
    keys = [element("span", colour_key(COLOURS[w]), f"wave {w + 1}") for w in shown]
    if len(waves) > len(shown):
        keys.append(element("span", f"… {count(len(waves), 'wave')}, colours repeat"))
    return parts, keys


def arena_chart(arena: ArenaMap, bars: Mapping[int, Bar]) -> Html:
    """The arena over the steps: a rectangle for each result, as long as it is kept, at its place.
    `bars` has the step that wrote it."""
    top, height = 8, 240
    steps = arena.last - arena.first + 1
    across, down = (svg.WIDTH - LEFT) / steps, height / max(arena.size_bytes, 1)
    parts = [svg.line(LEFT, top + height, svg.WIDTH, top + height, stroke=svg.INK)]
    for place in arena.places:
        bar = bars[place.first]
        kept = count(place.last - place.first + 1, "step")
        text = f"{capacity(place.size_bytes)} for {kept}, written by {bar.label}"
        shape = svg.box(
            LEFT + (place.first - arena.first) * across,
            top + height - (place.offset + place.size_bytes) * down,
            (place.last - place.first + 1) * across, place.size_bytes * down, text,
            fill=bar.colour, stroke=svg.PAPER, stroke_width=0.6,
        )  # fmt: skip
        parts.append(linked(bar.link, shape))
    parts += [
        svg.words(LEFT - 6, top + 10, capacity(arena.size_bytes), text_anchor="end"),
        svg.words(LEFT - 6, top + height, "0", text_anchor="end"),
        svg.words(LEFT, top + height + 16, f"step {arena.first}"),
        svg.words(svg.WIDTH, top + height + 16, f"step {arena.last}", text_anchor="end"),
    ]
    return svg.chart(top + height + 22, parts, "the arena over the steps")
