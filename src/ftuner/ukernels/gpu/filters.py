"""Enumeration: every block tile that Triton could compile, before any filter.

Filters read the cost of a tile on one multiprocessor (`cost.gpu.tile`). The first remove tiles that
cannot run, the next tiles that leave the multiprocessor idle. Then one schedule (`bk`, warps,
stages) is kept for each height and width. The last removes a tile if half of it is nearly as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import sqrt

from ftuner.core.dtype import DType
from ftuner.core.gpu.schedule import LINE_BYTES
from ftuner.core.gpu.tile import BlockTile, Multiply
from ftuner.cost.gpu.tile import (
    TileCost,
    instruction_of,
    overlapped_seconds,
    registers_per_thread,
    shared_bytes,
    stage_bytes,
    tile_cost,
    vector_instruction,
)
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.ukernels.funnel import THRESHOLD, Funnel, Sieve

EXTENTS = (16, 32, 64, 128, 256)
"""Heights and widths of a tile. Triton's blocks are powers of two, and its products take at least
16 rows and columns."""
ROW_BYTES = (64, 128, 256)
"""Bytes of `bk` elements: half a memory line, one line, or two. Swizzled rows of shared memory have
the same lengths."""
WARPS = (4, 8)
STAGES = (2, 3, 4, 5, 6)


def block_tiles(itemsize: int) -> list[BlockTile]:
    """Every combination of height, width, depth, warps and stages, for elements of `itemsize`
    bytes."""
    depths = [row_bytes // itemsize for row_bytes in ROW_BYTES]
    return [BlockTile(*found) for found in product(EXTENTS, EXTENTS, depths, WARPS, STAGES)]


Extents = tuple[int, int]


def tile_rate(
    hardware: GpuHardware, cost: TileCost, itemsize: int, resident: int | None = None
) -> float:
    """Returns the operations per second of one multiprocessor with `resident` blocks (by default as
    many as it holds), at the reference k, while all multiprocessors read from L2."""
    tile, blocks, tuning = cost.tile, resident or cost.blocks, hardware.tuning
    rate = tuning.l2_rate_ratio * hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    k = tuning.reference_k_bytes // itemsize
    l2_s = stage_bytes(tile, itemsize) * tuning.l2_headroom / rate
    step_s = overlapped_seconds(tuning.overlap_exponent, cost.seconds_of_step(blocks), l2_s)
    seconds = k / tile.bk * step_s + (cost.fill_s + cost.store_s) / blocks
    return 2.0 * tile.bm * tile.bn * k / seconds


def latency_covered(hardware: GpuHardware, cost: TileCost, itemsize: int) -> float:
    """Returns the fraction of DRAM's latency that the loads in flight cover (Little's law): the
    time of their stages over the time until they arrive; at most 1."""
    share = hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    l2_s = stage_bytes(cost.tile, itemsize) / share
    step_s = overlapped_seconds(hardware.tuning.overlap_exponent, cost.busy_s, l2_s)
    return min(cost.blocks * step_s / cost.wait_s, 1.0)


def run_filters(hardware: GpuHardware, dtype: DType, multiply: Multiply) -> Funnel[BlockTile]:
    """Enumerates block tiles and applies all filters in order; the hardware supports `multiply`.
    The kept tiles are sorted by height and width."""
    size, tuning = dtype.itemsize, hardware.tuning
    sieve = Sieve(block_tiles(size))
    instructions = {t: instruction_of(hardware, t, multiply) for t in sieve.left}
    costs = {t: tile_cost(hardware, t, dtype, multiply) for t in sieve.left}
    vector = vector_instruction(hardware.warp_threads)
    sieve.keep(
        "instruction",
        "no matrix instruction is small enough for each of its warps to have one",
        lambda t: instructions[t] is not None,
    )
    sieve.keep(
        "transaction",
        f"a row of B or C is shorter than a line of {LINE_BYTES} bytes",
        lambda t: t.bn * size >= LINE_BYTES,
    )
    if hardware.asynchronous_copy:
        reason = "with two stages only one is in flight"
    else:
        reason = "without asynchronous copies one stage is in flight, for which two are enough"
    sieve.keep("copies", reason, lambda t: (t.stages > min(STAGES)) == hardware.asynchronous_copy)
    sieve.keep(
        "registers",
        "accumulators, fragments and addresses do not fit the registers of a thread",
        lambda t: (
            registers_per_thread(hardware, t, instructions[t] or vector, dtype, multiply)
            <= hardware.registers_per_thread
        ),
    )
    sieve.keep(
        "shared memory",
        "its stages do not fit the shared memory of a block",
        lambda t: shared_bytes(hardware, t, dtype, multiply) <= hardware.shared_bytes_per_block,
    )
    sieve.keep(
        "residence", "no multiprocessor has room for a block", lambda t: costs[t] is not None
    )
    fitting = {t: cost for t, cost in costs.items() if cost is not None}
    needed = tuning.resident_warps_per_subpartition * hardware.subpartitions_per_multiprocessor
    sieve.keep_above(
        "occupancy",
        f"resident warps are fewer than {{threshold}} of {needed}",
        lambda t: fitting[t].blocks * t.warps / needed,
    )
    lowest = min((t.bm for t in sieve.left), default=0)

    def squarish(tile: BlockTile) -> bool:
        low = tile.bm == lowest
        widest = tuning.widest_aspect_of_lowest if low else tuning.widest_aspect
        return tile.bm <= tuning.tallest_aspect * tile.bn and tile.bn <= widest * tile.bm

    sieve.keep("aspect", "a squarer tile of the same area reads less per operation", squarish)
    covered = {t: latency_covered(hardware, fitting[t], size) for t in sieve.left}
    most = _most_by_extents(covered)
    sieve.keep(
        "latency",
        f"its loads in flight cover less than {THRESHOLD} of DRAM's latency that another schedule "
        "of its extents covers",
        lambda t: covered[t] >= THRESHOLD * most[_extents(t)],
    )
    chosen = _schedules(hardware, [fitting[t] for t in sieve.left], size)
    sieve.keep(
        "schedule",
        "another depth or number of warps or stages is as fast for the same extents",
        lambda t: chosen[_extents(t)] == t,
    )
    rates = {_extents(t): tile_rate(hardware, fitting[t], size) for t in sieve.left}

    def gains(tile: BlockTile) -> bool:
        halves = ((tile.bm // 2, tile.bn), (tile.bm, tile.bn // 2))
        reached = max(rates.get(half, 0.0) for half in halves)
        return reached < THRESHOLD * rates[_extents(tile)]

    sieve.keep("intensity", f"half of it reaches {THRESHOLD} of its rate", gains)
    return Funnel[BlockTile](
        sieve.enumerated, sieve.pruned, tuple(sorted(sieve.left, key=_extents))
    )


def _extents(tile: BlockTile) -> Extents:
    return tile.bm, tile.bn


def _most_by_extents(measured: Mapping[BlockTile, float]) -> dict[Extents, float]:
    most: dict[Extents, float] = {}
    for tile, value in measured.items():
        most[_extents(tile)] = max(most.get(_extents(tile), 0.0), value)
    return most


def _schedules(
    hardware: GpuHardware, costs: list[TileCost], itemsize: int
) -> dict[Extents, BlockTile]:
    """Returns the fastest schedule for each height and width, by the geometric mean of two rates:
    with the chip full of blocks, and with one block on each multiprocessor."""

    def mean_rate(cost: TileCost) -> float:
        full = tile_rate(hardware, cost, itemsize)
        return sqrt(full * tile_rate(hardware, cost, itemsize, 1))

    share = hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    tuning = hardware.tuning
    latency_s = tuning.loaded_latency_ratio * hardware.dram_latency_s
    enough = tuning.ample_latencies * latency_s * share

    def second_to_rate(cost: TileCost) -> tuple[bool, float, int, int, int]:
        tile = cost.tile
        staged = tile.stages * stage_bytes(tile, itemsize)
        in_flight = cost.blocks * (staged - stage_bytes(tile, itemsize))
        whole_lines = tile.bk * itemsize % LINE_BYTES == 0
        return whole_lines, min(in_flight, enough), cost.blocks, -staged, -tile.warps

    rates = {cost.tile: mean_rate(cost) for cost in costs}
    fastest = _most_by_extents(rates)
    near = [c for c in costs if rates[c.tile] >= tuning.same_rate_ratio * fastest[_extents(c.tile)]]
    # Later entries replace earlier ones of the same extents.
    return {_extents(c.tile): c.tile for c in sorted(near, key=second_to_rate)}
