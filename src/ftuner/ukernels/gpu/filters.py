"""Enumeration and pruning of block tiles: named filters, each with a reason.

A tile is what `cost.gpu.tile` says it takes of a multiprocessor. Filters first take out what cannot
run, then what leaves the multiprocessor waiting, then all schedules (`bk`, warps, stages) of the
same extents but one, and last the extents that others make up for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import sqrt

from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import BlockTile, Multiply
from ftuner.cost.gpu.tile import (
    LOADED_LATENCY,
    TileCost,
    instruction_of,
    registers_per_thread,
    shared_bytes,
    stage_bytes,
    tile_cost,
    together,
    vector_instruction,
)
from ftuner.hardware.model import GpuHardware
from ftuner.ukernels.funnel import THRESHOLD, Pruned, Sieve

EXTENTS = (16, 32, 64, 128, 256)
"""Triton's blocks are powers of two, its products 16 at least."""
ROW_BYTES = (64, 128, 256)
"""Of a tile's row of k: half a line, one, or two. Swizzled rows of shared memory are as long."""
WARPS = (4, 8)
STAGES = (2, 3, 4, 5, 6)
LINE_BYTES = 128
"""What L2 and DRAM are read by."""
WARPS_A_SUBPARTITION = 2
"""So that one issues while another waits."""
HEADROOM = 2.0
"""L2 is counted as if it gave this much less, where tiles are compared: reads come in bursts, and
beside those of C. Assumed; to be fitted on a device."""
REFERENCE_K_BYTES = 8192
"""Of the k at which tiles are compared: a layer of 4096 features of two bytes."""
TALLEST = 2
WIDEST = 4
"""Height over width, and width over height, of a tile at most. They differ because n, the features
of a layer, is seldom short, and m often is."""
WIDEST_OF_LOWEST = 8
"""For the lowest tiles, which serve the fewest rows."""
SAME = 0.99
"""Schedules whose rates differ by less are told apart by whether rows of k are whole lines, then by
the bytes that they have under way, by resident blocks, and by how little they need."""
AMPLE = 2.0
"""More bytes under way than this many times what L2's share brings in a latency hide nothing."""

Extents = tuple[int, int]


@dataclass(frozen=True)
class BlockFunnel:
    """From all enumerated tiles to the kept ones."""

    enumerated: int
    pruned: tuple[Pruned[BlockTile], ...]
    kept: tuple[BlockTile, ...]
    """One schedule for each height and width, lowest first."""


def block_tiles(itemsize: int) -> list[BlockTile]:
    """Every tile of the extents above, before any filter."""
    depths = [row_bytes // itemsize for row_bytes in ROW_BYTES]
    return [BlockTile(*found) for found in product(EXTENTS, EXTENTS, depths, WARPS, STAGES)]


def tile_rate(
    hardware: GpuHardware, cost: TileCost, itemsize: int, resident: int | None = None
) -> float:
    """Operations a second of one multiprocessor with `resident` blocks (by default all that it
    holds), every multiprocessor fed from L2 at once, at the reference k."""
    tile, blocks = cost.tile, resident or cost.blocks
    share = hardware.l2_bandwidth_bytes_per_s / (hardware.multiprocessors * HEADROOM)
    k = REFERENCE_K_BYTES // itemsize
    step_s = together(cost.seconds_of_step(blocks), stage_bytes(tile, itemsize) / share)
    seconds = k / tile.bk * step_s + (cost.fill_s + cost.store_s) / blocks
    return 2.0 * tile.bm * tile.bn * k / seconds


def latency_covered(hardware: GpuHardware, cost: TileCost, itemsize: int) -> float:
    """The part of DRAM's latency that the loads under way cover (Little's law): time that their
    steps take, over time that they take to arrive; at most 1."""
    share = hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    step_s = together(cost.busy_s, stage_bytes(cost.tile, itemsize) / share)
    return min(cost.blocks * step_s / cost.wait_s, 1.0)


def run_block_filters(hardware: GpuHardware, dtype: DType, multiply: Multiply) -> BlockFunnel:
    """Enumerate and apply all filters in order. The hardware can multiply so."""
    size = dtype.itemsize
    sieve = Sieve(block_tiles(size))
    instructions = {t: instruction_of(hardware, t, multiply) for t in sieve.left}
    costs = {t: tile_cost(hardware, t, dtype, multiply) for t in sieve.left}
    vector = vector_instruction(hardware.warp_threads)
    sieve.keep(
        "instruction",
        "no matrix instruction gives each of its warps a part",
        lambda t: instructions[t] is not None,
    )
    sieve.keep(
        "transaction",
        f"a row of B or C is shorter than a line of {LINE_BYTES} bytes",
        lambda t: t.bn * size >= LINE_BYTES,
    )
    if hardware.asynchronous_copy:
        reason = "of two stages only one is under way"
    else:
        reason = "without asynchronous copies only one stage is under way, and two are enough"
    sieve.keep("copies", reason, lambda t: (t.stages > min(STAGES)) == hardware.asynchronous_copy)
    sieve.keep(
        "registers",
        "accumulators, fragments and addresses do not fit the registers of a thread",
        lambda t: (
            registers_per_thread(hardware, t, instructions[t] or vector, size)
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
    needed = WARPS_A_SUBPARTITION * hardware.subpartitions_per_multiprocessor
    sieve.keep_above(
        "occupancy",
        f"resident warps are fewer than {{threshold}} of {needed}",
        lambda t: fitting[t].blocks * t.warps / needed,
    )
    lowest = min((t.bm for t in sieve.left), default=0)
    sieve.keep(
        "aspect",
        "a squarer tile of the same area reads less for each operation",
        lambda t: (
            t.bm <= TALLEST * t.bn
            and t.bn <= (WIDEST_OF_LOWEST if t.bm == lowest else WIDEST) * t.bm
        ),
    )
    covered = {t: latency_covered(hardware, fitting[t], size) for t in sieve.left}
    most = _most_by_extents(covered)
    sieve.keep(
        "latency",
        f"its loads under way cover less than {THRESHOLD} of DRAM's latency, or of what another "
        "schedule of its extents covers",
        lambda t: covered[t] >= THRESHOLD * most[_extents(t)],
    )
    chosen = _schedules(hardware, [fitting[t] for t in sieve.left], size)
    sieve.keep(
        "schedule",
        "another depth, number of warps or of stages of the same extents is as fast",
        lambda t: chosen[_extents(t)] == t,
    )
    rates = {_extents(t): tile_rate(hardware, fitting[t], size) for t in sieve.left}

    def gains(tile: BlockTile) -> bool:
        halves = ((tile.bm // 2, tile.bn), (tile.bm, tile.bn // 2))
        reached = max(rates.get(half, 0.0) for half in halves)
        return reached < THRESHOLD * rates[_extents(tile)]

    sieve.keep("intensity", f"half of it reaches {THRESHOLD} of its rate", gains)
    return BlockFunnel(sieve.enumerated, sieve.pruned, tuple(sorted(sieve.left, key=_extents)))


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
    """For each height and width the schedule that is fastest both with the chip full of blocks and
    with one on each multiprocessor: the geometric mean of both rates."""

    def mean_rate(cost: TileCost) -> float:
        full = tile_rate(hardware, cost, itemsize)
        return sqrt(full * tile_rate(hardware, cost, itemsize, 1))

    share = hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors

    enough = AMPLE * LOADED_LATENCY * hardware.dram_latency_s * share

    def second_to_rate(cost: TileCost) -> tuple[bool, float, int, int, int]:
        tile = cost.tile
        staged = tile.stages * stage_bytes(tile, itemsize)
        under_way = cost.blocks * (staged - stage_bytes(tile, itemsize))
        whole_lines = tile.bk * itemsize % LINE_BYTES == 0
        return whole_lines, min(under_way, enough), cost.blocks, -staged, -tile.warps

    rates = {cost.tile: mean_rate(cost) for cost in costs}
    fastest = _most_by_extents(rates)
    near = [c for c in costs if rates[c.tile] >= SAME * fastest[_extents(c.tile)]]
    # The last one of equal extents stays.
    return {_extents(c.tile): c.tile for c in sorted(near, key=second_to_rate)}
