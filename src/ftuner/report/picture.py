"""The patches of a plan, and the C matrix as a block picture in the terminal: patches coloured by
uKernel, with borders between workers; on a GPU tiles coloured by the wave that computes them. The
picture is to scale, except that a patch is at least one character cell wide and high."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from ftuner.core.cpu.tile import UKernel
from ftuner.core.units import count
from ftuner.planner.cpu.plan import Plan, Range
from ftuner.planner.gpu.plan import ProductPlan


class PatchOfWorker(NamedTuple):
    """One patch of a worker; all ranges are half open."""

    worker: int
    kernel: UKernel
    rows: Range
    columns: Range
    tiles: int
    """Row tiles."""
    panels: int
    batch: Range
    k: Range

    def to_document(self) -> dict[str, Any]:
        """The patch as JSON can hold it."""
        values = {n: list(x) if isinstance(x, tuple) else x for n, x in self._asdict().items()}
        kernel = values.pop("kernel")
        return {**values, "ukernel": str(kernel)}


class Region(NamedTuple):
    """A rectangle of the C matrix of one batch element, computed by one uKernel."""

    rows: Range
    columns: Range
    kernel: UKernel
    workers: tuple[int, ...]
    """Several if the batch or the reduction axis is cut: each computes other elements of the batch,
    or another part of the sum."""


def patches_of(plan: Plan) -> Iterator[PatchOfWorker]:
    """All patches, worker by worker, in the order in which a worker begins them."""
    for worker, share in enumerate(plan.shares):
        for patch in plan.patches(share):
            yield PatchOfWorker(
                worker,
                patch.family.by_height[patch.mr],
                (patch.row, patch.row + patch.mr * patch.tiles),
                (patch.column, patch.column + patch.columns),
                patch.tiles,
                patch.panels,
                share.batch,
                share.k,
            )


def regions_of(plan: Plan) -> tuple[Region, ...]:
    """The rectangles of C, each once, in the order of the first worker that computes it."""
    workers: dict[tuple[Range, Range, UKernel], list[int]] = {}
    for patch in patches_of(plan):
        workers.setdefault((patch.rows, patch.columns, patch.kernel), []).append(patch.worker)
    return tuple(Region(*place, tuple(found)) for place, found in workers.items())


MAX_LINES = 28
MIN_LINES = 3
MIN_COLUMNS = 12
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#eeca3b", "#72b7b2", "#9d755d")
"""Colours of uKernels, in the order of the area that each covers; they repeat."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Characters that replace the colours in a terminal without any."""
LINE_HEIGHT = 2.0
"""A character cell of a terminal is about twice as high as it is wide."""


def ukernels_by_area(regions: Sequence[Region]) -> dict[str, int]:
    """The uKernels of all regions, largest area first, with the elements of C that each covers."""
    areas: Counter[str] = Counter()
    for region in regions:
        (top, bottom), (left, right) = region.rows, region.columns
        areas[str(region.kernel)] += (bottom - top) * (right - left)
    return dict(areas.most_common())


def workers_label(workers: Sequence[int]) -> str:
    """The numbers of workers as text: `w0`, `w0-3`, `w0,2`."""
    runs: list[list[int]] = []
    for worker in sorted(set(workers)):
        if runs and worker == runs[-1][-1] + 1:
            runs[-1].append(worker)
        else:
            runs.append([worker])
    return "w" + ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def has_colours(console: Console) -> bool:
    """Whether a terminal shows colours: not if it has none, or the user wants none (NO_COLOR)."""
    return console.color_system is not None and not console.no_color


class Scale(NamedTuple):
    """One axis of C on character cells: `starts[i]` is the first cell of interval `i`, which begins
    at element `cuts[i]`."""

    cuts: tuple[int, ...]
    starts: tuple[int, ...]
    cells: int

    def elements(self) -> list[int]:
        """For each cell, the element of C that it shows."""
        found = []
        for index, (begin, end) in enumerate(pairwise((*self.starts, self.cells))):
            low, high = self.cuts[index], self.cuts[index + 1]
            width = max(end - begin, 1)
            found += [low + (2 * i + 1) * (high - low) // (2 * width) for i in range(end - begin)]
        return found


def scale_axis(cuts: Sequence[int], cells: int) -> Scale:
    """The cells of each interval between cuts: in proportion, and at least one if there are enough
    cells, so that no patch is left out."""
    intervals = len(cuts) - 1
    extent = cuts[-1] - cuts[0]
    starts = [round((cut - cuts[0]) / extent * cells) for cut in cuts[:-1]]
    if cells >= intervals:
        for index in range(1, intervals):
            least, most = starts[index - 1] + 1, cells - intervals + index
            starts[index] = min(max(starts[index], least), most)
    return Scale(tuple(cuts), tuple(starts), cells)


class PatchPicture:
    """A rich renderable: C (m x n) of one batch element, with axes and a legend."""

    def __init__(self, plan: Plan, most_lines: int) -> None:
        self._plan, self._most_lines = plan, most_lines
        self._regions = regions_of(plan)
        self._ukernels = ukernels_by_area(self._regions)
        rows = {edge for region in self._regions for edge in region.rows}
        columns = {edge for region in self._regions for edge in region.columns}
        self._row_cuts, self._column_cuts = sorted(rows), sorted(columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        m, n = self._plan.problem.m, self._plan.problem.n
        coloured = has_colours(console)
        margin = len(str(m)) + 1
        room = max(options.max_width - margin, 1)
        per_element = min(room / n, LINE_HEIGHT * self._most_lines / m)
        lines = max(round(m * per_element / LINE_HEIGHT), MIN_LINES, len(self._row_cuts) - 1)
        width = max(round(n * per_element), MIN_COLUMNS, len(self._column_cuts) - 1)
        down = scale_axis(self._row_cuts, min(lines, self._most_lines, max(m, 1)))
        across = scale_axis(self._column_cuts, min(width, room))
        yield self._column_axis(across, margin)
        yield from self._body(down, across, margin, coloured)
        yield from self._legend(coloured)

    def _column_axis(self, across: Scale, margin: int) -> Text:
        line = " " * margin
        for cut, start in zip(across.cuts, across.starts, strict=False):
            # At the right edge a number ends with C rather than beyond it.
            place = margin + min(start, max(across.cells - len(str(cut)), 0))
            if place > len(line) or not start:
                line = line.ljust(place) + str(cut)
        return Text(line, style="dim", no_wrap=True, overflow="crop")

    def _body(self, down: Scale, across: Scale, margin: int, coloured: bool) -> Iterator[Text]:
        rows, columns, names = down.elements(), across.elements(), [*self._ukernels]
        grid = [[self._region_at(row, column) for column in columns] for row in rows]
        labels = _label_places(grid)
        row_labels = dict(zip(down.starts, down.cuts, strict=False))
        for y, line in enumerate(grid):
            text = Text(no_wrap=True, overflow="crop")
            text.append(str(row_labels.get(y, "")).rjust(margin - 1) + " ", "dim")
            run, run_number = "", 0
            for x, region in enumerate(line):
                left = x > 0 and line[x - 1].workers != region.workers
                above = y > 0 and grid[y - 1][x].workers != region.workers
                number = names.index(str(region.kernel))
                if number != run_number:
                    text.append(run, _style(run_number, coloured))
                    run, run_number = "", number
                run += labels.get((y, x)) or _mark(number, left, above, coloured)
            text.append(run, _style(run_number, coloured))
            yield text

    def _region_at(self, row: int, column: int) -> Region:
        for region in self._regions:
            if (
                region.rows[0] <= row < region.rows[1]
                and region.columns[0] <= column < region.columns[1]
            ):
                return region
        raise AssertionError(f"no patch covers C[{row}, {column}]")

    def _legend(self, coloured: bool) -> Iterator[Text]:
        problem, grid = self._plan.problem, self._plan.choice.grid
        total = problem.m * problem.n
        for number, (name, area) in enumerate(self._ukernels.items()):
            text = Text()
            text.append("  " if coloured else _letter(number), _style(number, True))
            text.append(f" {name}, {area / total:.1%} of C")
            yield text
        title = f"C is {problem.m} x {problem.n}"
        if problem.batch > 1:
            title += f", one of {problem.batch}"
        title += f"; {count(len(self._plan.shares), 'worker')}"
        cut = [f"{axis} in {p}" for axis, p in grid._asdict().items() if p > 1]
        if cut:
            title += f": {', '.join(cut)}"
        if any(name.endswith("t") for name in self._ukernels):
            title += "; t: a tail, which stores only the columns asked for"
        yield Text(title, style="dim")


def _label_places(grid: list[list[Region]]) -> dict[tuple[int, int], str]:
    """The characters of the workers' labels by (line, column): a label in the middle of each area
    of the same workers, if it fits."""
    boxes: dict[tuple[int, ...], list[int]] = {}
    for y, line in enumerate(grid):
        for x, region in enumerate(line):
            box = boxes.setdefault(region.workers, [y, x, y, x])
            box[2], box[3] = max(box[2], y), max(box[3], x)
    places = {}
    for workers, (top, left, bottom, right) in boxes.items():
        label = workers_label(workers)
        begin = (left + right + 1 - len(label)) // 2
        # Beside another worker, the first column shows the border.
        if begin >= left + (left > 0):
            places.update({((top + bottom) // 2, begin + i): c for i, c in enumerate(label)})
    return places


BAR = 44
"""Characters of a wave of programs."""
MAX_WAVES = 4
"""Most waves that are drawn: the first and the last ones."""


class WavePicture:
    """A rich renderable: C (m x n) of the first batch element, and the programs of each wave."""

    def __init__(self, plan: ProductPlan, most_lines: int) -> None:
        self._plan, self._most_lines = plan, most_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self._plan
        m, n = plan.problem.m, plan.problem.n
        margin = len(str(m)) + 1
        room = max(options.max_width - margin, 1)
        per_element = min(room / n, LINE_HEIGHT * self._most_lines / m)
        lines = min(max(round(m * per_element / LINE_HEIGHT), MIN_LINES), self._most_lines, m)
        width = min(max(round(n * per_element), MIN_COLUMNS), room, n)
        cuts = sorted({0, m, *(first for _, first, _ in plan.bands)})
        down, across = scale_axis(cuts, max(lines, len(cuts) - 1)), scale_axis((0, n), width)
        labels = dict(zip(down.starts, down.cuts, strict=False))
        coloured = has_colours(console)
        for y, row in enumerate(down.elements()):
            text = Text(no_wrap=True, overflow="crop")
            text.append(str(labels.get(y, "")).rjust(margin - 1) + " ", "dim")
            waves = [plan.wave(row, column) for column in across.elements()]
            for wave, run in groupby(waves):
                cells = len(list(run))
                text.append((" " if coloured else _letter(wave)) * cells, _style(wave, coloured))
            yield text
        yield from self._waves(coloured)

    def _waves(self, coloured: bool) -> list[Text]:
        """A bar for each wave: programs with something to do, and idle ones."""
        plan = self._plan
        numbers = list(range(plan.waves))
        if len(numbers) > MAX_WAVES:
            numbers = [0, 1, *numbers[-(MAX_WAVES - 2) :]]
        lines = []
        for wave in numbers:
            busy = plan.programs - (plan.idle if wave == plan.waves - 1 else 0)
            cells = max(round(BAR * busy / plan.programs), 1)
            text = Text(f"wave {wave + 1:>3} ")
            text.append((" " if coloured else _letter(wave)) * cells, _style(wave, coloured))
            text.append("." * (BAR - cells), "dim")
            text.append(f" {busy} of {count(plan.programs, 'program')}")
            lines.append(text)
        title = f"C is {plan.problem.m} x {plan.problem.n}"
        if plan.problem.batch > 1:
            title += f", the first of {plan.problem.batch}"
        title += f"; {count(plan.units, 'unit')} in {count(plan.waves, 'wave')}"
        if plan.split_k > 1:
            title += f", split-k {plan.split_k}"
        return [*lines, Text(title, style="dim")]


def _mark(number: int, left: bool, above: bool, coloured: bool) -> str:
    if coloured:
        return "▏" if left else "▔" if above else " "
    return "|" if left else "-" if above else _letter(number)


def _letter(number: int) -> str:
    return LETTERS[number % len(LETTERS)]


def _style(number: int, coloured: bool) -> Style | None:
    return Style(color="black", bgcolor=COLOURS[number % len(COLOURS)]) if coloured else None


def plan_picture(plan: Plan | ProductPlan, most_lines: int = MAX_LINES) -> RenderableType:
    """C of a plan for the terminal, scaled to its width and to at most `most_lines`: patches, or
    on a GPU bands and waves."""
    if isinstance(plan, Plan):
        return PatchPicture(plan, most_lines)
    return WavePicture(plan, most_lines)
