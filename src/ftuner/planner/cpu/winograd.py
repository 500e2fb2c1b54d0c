"""Winograd's products: how tiles are cut into blocks, and where they are faster than the window."""

from __future__ import annotations

import math

from ftuner.core.cpu.tile import WINDOW
from ftuner.core.dim import Dim
from ftuner.core.product import ReadWindow
from ftuner.core.winograd import OUTPUTS
from ftuner.core.winograd import WINDOW as EXTENT
from ftuner.cost.cpu.product import Covers
from ftuner.cost.cpu.winograd import (
    WinogradBlocks,
    WinogradProblem,
    WinogradUKernels,
    block_bytes,
    winograd_terms,
)
from ftuner.cost.functions import expression_cycles
from ftuner.cost.step import Machine
from ftuner.cost.terms import Estimate
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.planner import Planner
from ftuner.ukernels.cpu.library import Library

ELEMENTS_OF_WINDOW = EXTENT**2
LEAST_CHANNELS = 8
"""Channels of a block; fewer would read and write the sums too often."""


def outputs_of(rows: Dim, positions: Dim) -> int:
    """Outputs of a tile along both axes: those with the fewest multiplications, and the most where
    the extents are known only at run time."""
    if not (isinstance(rows, int) and isinstance(positions, int)):
        return max(OUTPUTS)
    extents = (max(rows, 1), max(positions, 1))
    products = {m: math.prod(-(-n // m) for n in extents) * (m + EXTENT - 1) ** 2 for m in OUTPUTS}
    return min(OUTPUTS, key=lambda m: (products[m], -m))


def winograd_blocks(planner: Planner, problem: WinogradProblem) -> WinogradBlocks:
    """Blocks of tiles whose inputs and sums stay in L2, in whole row tiles, and few enough tiles
    that all workers have tasks; blocks of channels whose transformed weight stays there, too."""
    library = planner.library
    width, tuning = library.widths[0], library.hardware.tuning
    main = planner.cover(width, False, problem.channels)[1].main
    levels = library.hardware.levels
    l2_bytes = levels[min(1, len(levels) - 1)].capacity_bytes
    nr, size = width * library.lanes, library.types.c.itemsize
    tile_bytes = block_bytes(problem, main, nr, size)
    tiles_of_main = int(tuning.winograd_share_of_l2 * l2_bytes / tile_bytes)
    block = min(max(tiles_of_main, 1) * main, problem.tiles)
    tasks = -(-problem.tiles // block)
    if tasks % problem.workers:
        tasks += problem.workers - tasks % problem.workers
    weight_bytes = tuning.winograd_weight_share_of_l2 * l2_bytes
    channels = int(weight_bytes / (problem.matrices * nr * size))
    blocks = -(-problem.channels // max(channels, LEAST_CHANNELS))
    return WinogradBlocks(max(-(-problem.tiles // tasks), 1), -(-problem.channels // blocks))


def winograd_estimate(
    planner: Planner, problem: WinogradProblem, epilogue_cycles: float
) -> Estimate:
    """What the busiest worker spends its time on. `epilogue_cycles`: of one vector."""
    library = planner.library

    def covers(vectors: int, tail: bool, steps: int) -> Covers:
        return planner.cover(vectors, tail, steps)[1]

    ukernels = WinogradUKernels(library.types, library.lanes, library.widths[0], covers)
    machine = Machine(library.hardware, library.isa, problem.workers)
    blocks = winograd_blocks(planner, problem)
    return winograd_terms(machine, ukernels, problem, blocks, epilogue_cycles)


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
    window = ReadWindow(2, channels, float(ELEMENTS_OF_WINDOW))
    product = panel_problem(
        problem.columns, ELEMENTS_OF_WINDOW * channels, direct.library.widths[0], rows,
        problem.workers, WINDOW, window=window,
    )  # fmt: skip
    seconds = direct.least_seconds(product)
    return winograd_estimate(planner, problem, epilogue_cycles).seconds < seconds
