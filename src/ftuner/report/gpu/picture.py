"""C as a block picture in the terminal: tiles coloured by the wave that computes them."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from ftuner.core.units import count
from ftuner.planner.gpu.plan import ProductPlan
from ftuner.report.cpu.picture import (
    COLOURS,
    LETTERS,
    LINE_HEIGHT,
    MAX_LINES,
    MIN_COLUMNS,
    MIN_LINES,
    has_colours,
    scale_axis,
)

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


def _letter(wave: int) -> str:
    return LETTERS[wave % len(LETTERS)]


def _style(wave: int, coloured: bool) -> Style | None:
    return Style(color="black", bgcolor=COLOURS[wave % len(COLOURS)]) if coloured else None


def wave_picture(plan: ProductPlan, most_lines: int = MAX_LINES) -> WavePicture:
    """Bands and waves for the terminal, scaled to its width and to at most `most_lines`."""
    return WavePicture(plan, most_lines)
