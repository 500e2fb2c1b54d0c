"""Winograd's products: how tiles are cut into blocks, and where they are faster than the window."""

from __future__ import annotations

from ftuner.core.cpu.tile import WINDOW
from ftuner.core.winograd import OUTPUTS
from ftuner.core.winograd import WINDOW as EXTENT
from ftuner.cost.cpu.product import Covers
from ftuner.cost.cpu.winograd import (
    WinogradProblem,
    WinogradUKernels,
    block_bytes,
    winograd_terms,
)
from ftuner.cost.functions import expression_cycles
from ftuner.cost.step import Machine
from ftuner.cost.terms import Estimate
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.planner import Planner
from ftuner.planner.cpu.problem import ReadWindow
from ftuner.ukernels.cpu.library import Library

ELEMENTS_OF_WINDOW = EXTENT**2


def outputs_of(channels: int, columns: int, itemsize: int, hardware: CpuHardware) -> int:
    """Outputs of a tile along both axes: the most of which the last cache holds the weight."""
    levels = hardware.levels
    cache_bytes = hardware.tuning.cache_share * levels[max(len(levels) - 2, 0)].capacity_bytes
    weights = {m: (m + EXTENT - 1) ** 2 * channels * columns * itemsize for m in OUTPUTS}
    return max((m for m in OUTPUTS if weights[m] <= cache_bytes), default=min(OUTPUTS))


def winograd_block(planner: Planner, problem: WinogradProblem) -> int:
    """Tiles in a task: so many that inputs and sums stay in L2, in whole row tiles, and so few that
    all workers have tasks."""
    library = planner.library
    width, tuning = library.widths[0], library.hardware.tuning
    main = planner.cover(width, False, problem.channels)[1].main
    levels = library.hardware.levels
    l2_bytes = tuning.winograd_share_of_l2 * levels[min(1, len(levels) - 1)].capacity_bytes
    nr, size = width * library.lanes, library.types.c.itemsize
    tiles_of_main = int(l2_bytes / block_bytes(problem, main, nr, size))
    block = min(max(tiles_of_main, 1) * main, problem.tiles)
    tasks = -(-problem.tiles // block)
    if tasks % problem.workers:
        tasks += problem.workers - tasks % problem.workers
    return max(-(-problem.tiles // tasks), 1)


def winograd_estimate(
    planner: Planner, problem: WinogradProblem, epilogue_cycles: float
) -> Estimate:
    """What the busiest worker spends its time on. `epilogue_cycles`: of one vector."""
    library = planner.library

    def covers(vectors: int, tail: bool, steps: int) -> Covers:
        return planner.cover(vectors, tail, steps)[1]

    ukernels = WinogradUKernels(library.types, library.lanes, library.widths[0], covers)
    machine = Machine(library.hardware, library.isa, problem.workers)
    block = winograd_block(planner, problem)
    return winograd_terms(machine, ukernels, problem, block, epilogue_cycles)


def epilogue_cycles_of(library: Library) -> float:
    """Cycles of the epilogue of a library on one vector."""
    tuning = library.hardware.tuning
    return expression_cycles(library.epilogue, library.types.c, library.isa, tuning)


def winograd_is_faster(
    planner: Planner, direct: Planner, problem: WinogradProblem, epilogue_cycles: float
) -> bool:
    """Whether Winograd's products take less time than a product through the window. `planner` and
    `direct`: those of the libraries of both."""
    if not problem.tiles:
        return False
    channels = problem.channels
    rows = problem.images * problem.rows * problem.positions
    window = ReadWindow(channels, float(ELEMENTS_OF_WINDOW))
    product = panel_problem(
        problem.columns, ELEMENTS_OF_WINDOW * channels, direct.library.widths[0], rows,
        problem.workers, WINDOW, window=window,
    )  # fmt: skip
    seconds = direct.estimate(direct.plan(product)).seconds
    return winograd_estimate(planner, problem, epilogue_cycles).seconds < seconds
