"""Winograd's products: how tiles are cut into blocks, and where they are faster than the window."""

from __future__ import annotations

import math
from typing import NamedTuple

from ftuner.core.cpu.tile import WINDOW
from ftuner.core.dim import Dim
from ftuner.core.product import ReadWindow
from ftuner.core.winograd import OUTPUTS
from ftuner.core.winograd import WINDOW as EXTENT
from ftuner.cost.functions import expression_cycles
from ftuner.cost.step import Estimate, Machine
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.schedules.winograd.cpu_cost import (
    WinogradBlocks,
    WinogradProblem,
    block_bytes,
    winograd_terms,
)
from ftuner.ukernels.cpu.library import Library

ELEMENTS_OF_WINDOW = EXTENT**2
LARGEST_BLOCK = 4
"""Bytes of a block's inputs and sums, at most, in multiples of L2."""
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


class WinogradPlan(NamedTuple):
    """How the work is cut, and what the busiest worker spends its time on."""

    blocks: WinogradBlocks
    estimate: Estimate


def winograd_plan(
    planner: Planner, problem: WinogradProblem, epilogue_cycles: float
) -> WinogradPlan:
    """The fastest of some blocks of tiles, such that all workers have equally many. Larger blocks
    transform the weight and enter its panels less often; of smaller ones more inputs and sums stay
    in L2. Blocks of channels have a transformed weight that stays there, too. `epilogue_cycles`: of
    one vector."""
    library = planner.library
    width, tuning = library.widths[0], library.hardware.tuning
    l2_bytes = library.hardware.l2_bytes
    nr, size = width * library.lanes, library.types.c.itemsize
    weight_bytes = tuning.winograd_weight_share_of_l2 * l2_bytes
    channels = int(weight_bytes / (problem.matrices * nr * size))
    parts = -(-problem.channels // max(channels, LEAST_CHANNELS))
    channels = -(-problem.channels // parts)
    ukernels = planner.ukernels(width)
    machine = Machine(library.hardware, library.isa, problem.workers)
    tile_bytes = block_bytes(problem, 1, nr, size)
    main = ukernels.covers(width, False, problem.channels).main
    least = max(int(tuning.winograd_share_of_l2 * l2_bytes / tile_bytes), main)
    found = []
    for tiles in _blocks_between(problem, least, int(LARGEST_BLOCK * l2_bytes / tile_bytes)):
        blocks = WinogradBlocks(tiles, channels)
        terms = winograd_terms(machine, ukernels, problem, blocks, epilogue_cycles)
        found.append(WinogradPlan(blocks, terms))
    return min(found, key=lambda plan: plan.estimate.seconds)


def _blocks_between(problem: WinogradProblem, least: int, most: int) -> list[int]:
    """Tiles of a block such that each worker has equally many blocks: of 1, 2, 3, 4, 6, 8, 12, ...
    for each worker those of `least` to `most` tiles, and the next smaller one."""
    tiles, workers = max(problem.tiles, 1), problem.workers
    found: list[int] = []
    number, step = 1, 1
    while True:
        block = -(-tiles // (number * workers))
        if block <= most or block == 1:
            found.append(block)
        if block <= least:
            return found or [block]
        number += step
        # Each step is taken twice: 1, 2, 3, 4, 6, 8, 12, 16, 24.
        if number & (number - 1) == 0:
            step = number // 2


def epilogue_cycles_of(library: Library) -> float:
    """Cycles of the epilogue of a library on one vector."""
    tuning = library.hardware.tuning
    return expression_cycles(library.epilogue, library.types.c, library.isa, tuning)


def faster_winograd(
    planner: Planner, direct: Planner, problem: WinogradProblem, epilogue_cycles: float
) -> WinogradPlan | None:
    """The plan of Winograd's products, where they take less time than a product through the window.
    `planner` and `direct`: those of the libraries of both."""
    if not problem.tiles:
        return None
    channels = problem.channels
    rows = problem.images * problem.rows * problem.positions
    window = ReadWindow(2, channels, float(ELEMENTS_OF_WINDOW))
    product = panel_problem(
        problem.columns, ELEMENTS_OF_WINDOW * channels, direct.library.widths[0], rows,
        problem.workers, WINDOW, window=window,
    )  # fmt: skip
    found = winograd_plan(planner, problem, epilogue_cycles)
    return found if found.estimate.seconds < direct.least_seconds(product) else None
