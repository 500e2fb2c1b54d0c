"""Winograd's products along one axis: how rows are cut, and where they beat the window."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.cpu.tile import WINDOW
from ftuner.core.product import ReadWindow
from ftuner.cost.step import Estimate, Machine
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.schedules.line_winograd.cpu_cost import LineProblem, line_terms


class LinePlan(NamedTuple):
    """How the work is cut, and what the busiest worker spends its time on."""

    block: int
    """Rows of a task; the last one of an image may have fewer."""
    estimate: Estimate


def line_plan(
    planner: Planner, problem: LineProblem, width: int, epilogue_cycles: float
) -> LinePlan:
    """The fastest of some blocks of rows. Larger blocks enter the panels of the weight less often;
    of smaller ones more inputs and sums stay in L1. `width`: vectors of a panel."""
    library = planner.library
    ukernels = planner.ukernels(width)
    machine = Machine(library.hardware, library.isa, problem.workers)
    blocks = {-(-problem.rows // parts) for parts in _PARTS if parts <= problem.rows}
    found = [
        LinePlan(block, line_terms(machine, ukernels, problem, block, epilogue_cycles))
        for block in sorted(blocks, reverse=True)
    ]
    return min(found, key=lambda plan: plan.estimate.seconds)


_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Blocks of an image that compete."""


def faster_lines(
    planner: Planner, direct: Planner, problem: LineProblem, width: int, window: ReadWindow,
    window_k: int, epilogue_cycles: float,
) -> LinePlan | None:  # fmt: skip
    """The plan of Winograd's products along lines, where they take less time than a product of
    `window_k` steps through the window. `planner` and `direct`: those of the libraries of both."""
    rows = problem.images * problem.rows * problem.positions
    product = panel_problem(
        problem.columns, window_k, width, rows, problem.workers, WINDOW, window=window
    )
    found = line_plan(planner, problem, width, epilogue_cycles)
    return found if found.estimate.seconds < direct.least_seconds(product) else None
