"""Enumeration: every block tile that Triton could compile, before any filter.

The first filters remove tiles that cannot run. Then at most two schedules (warps, stages) are kept
for each height, width and depth: the fastest on a full chip, and the fastest alone on a
multiprocessor, whose latency no other block hides. The last filter keeps a small set that is nearly
as fast as all of them (`cover`).
"""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache
from itertools import product

from ftuner.core.gpu.schedule import LINE_BYTES
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile
from ftuner.cost.gpu.tile import (
    ProductForm,
    TileCost,
    fits_loads,
    instruction_of,
    kernel_of,
    loads_of,
    overlapped_seconds,
    registers_per_thread,
    shared_bytes,
    specialises,
    stage_bytes,
    tile_cost,
    vector_instruction,
)
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.ukernels.funnel import Funnel, Sieve
from ftuner.ukernels.gpu.cover import COVERED, covering, references

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


def tile_rate(hardware: GpuHardware, cost: TileCost, itemsize: int) -> float:
    """Returns the operations per second of one multiprocessor full of blocks, at the reference k,
    while all multiprocessors read from L2."""
    tuning = hardware.tuning
    rate = tuning.l2_rate_ratio * hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    l2_s = stage_bytes(cost.tile, itemsize) * tuning.l2_headroom / rate
    step_s = overlapped_seconds(tuning.overlap_exponent, cost.seconds_of_step(cost.blocks), l2_s)
    return _rate(hardware, cost, itemsize, step_s, cost.blocks)


def _rate_alone(hardware: GpuHardware, cost: TileCost, itemsize: int) -> float:
    """Returns the same of one block alone, whose latency no other block hides."""
    return _rate(hardware, cost, itemsize, cost.seconds_of_step(1), 1)


def _rate(
    hardware: GpuHardware, cost: TileCost, itemsize: int, step_s: float, resident: int
) -> float:
    tile, k = cost.tile, hardware.tuning.reference_k_bytes // itemsize
    seconds = k / tile.bk * step_s + (cost.fill_s + cost.store_s) / resident
    return 2.0 * tile.bm * tile.bn * k / seconds


@lru_cache(maxsize=256)
def run_filters(hardware: GpuHardware, form: ProductForm, window: int = 0) -> Funnel[BlockTile]:
    """Enumerates block tiles and applies all filters in order; the hardware supports the form. The
    kept tiles are sorted by height and width. `window`: as in `ProductKernel`."""
    size, multiply = form.dtype.itemsize, form.multiply
    sieve = Sieve(block_tiles(size))
    instructions = {t: instruction_of(hardware, t, multiply) for t in sieve.left}
    costs = {t: tile_cost(hardware, t, form) for t in sieve.left}
    vector, whole = vector_instruction(hardware.warp_threads), ProductForm(form.dtype, multiply)
    sieve.keep(
        "instruction",
        "no matrix instruction is small enough for each of its warps to have one",
        lambda t: instructions[t] is not None,
    )
    sieve.keep(
        "transaction",
        f"a row of B or C is shorter than half a line of {LINE_BYTES} bytes",
        lambda t: t.bn * size >= LINE_BYTES // 2,
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
            registers_per_thread(hardware, t, instructions[t] or vector, whole)
            <= hardware.registers_per_thread
            and fits_loads(hardware, t, form, window)
        ),
    )
    sieve.keep(
        "shared memory",
        "its stages do not fit the shared memory of a block",
        lambda t: shared_bytes(hardware, t, form) <= hardware.shared_bytes_per_block,
    )
    sieve.keep(
        "residence", "no multiprocessor has room for a block", lambda t: costs[t] is not None
    )
    fitting = {t: cost for t, cost in costs.items() if cost is not None}
    left = [fitting[t] for t in sieve.left]
    ordered = sorted(left, key=lambda c: _robustness(hardware, c, form), reverse=True)
    chosen = set(_schedules(hardware, ordered, size).values())
    sieve.keep(
        "schedule",
        "another number of warps or stages is as fast for the same extents",
        lambda t: t in chosen,
    )
    aligned = form.alignment == ALIGNMENT_BYTES and not window
    chained = loads_of(hardware, multiply, aligned) == "descriptors"
    ordered = [cost for cost in ordered if cost.tile in chosen]
    products = references(form.alignment, window)
    cover = {c.tile for c in covering(hardware, form.dtype, ordered, products, chained)}
    sieve.keep(
        "cover", f"others take at most {COVERED} of its time for every reference product",
        lambda t: t in cover,
    )  # fmt: skip
    return Funnel[BlockTile](sieve.enumerated, sieve.pruned, tuple(sorted(sieve.left, key=astuple)))


def _schedules(
    hardware: GpuHardware, costs: list[TileCost], itemsize: int
) -> dict[tuple[int, int, int, object], BlockTile]:
    """Returns the fastest schedules for each height, width and depth: on a full chip, and alone.
    `costs` are sorted by robustness, which decides among schedules of almost the same rate."""
    found: dict[tuple[int, int, int, object], BlockTile] = {}
    for measure in (tile_rate, _rate_alone):
        rates = {c.tile: measure(hardware, c, itemsize) for c in costs}
        fastest: dict[tuple[int, int, int], float] = {}
        for tile, rate in rates.items():
            extents = tile.bm, tile.bn, tile.bk
            fastest[extents] = max(fastest.get(extents, 0.0), rate)
        for tile, rate in rates.items():
            extents = tile.bm, tile.bn, tile.bk
            if rate >= hardware.tuning.same_rate_ratio * fastest[extents]:
                found.setdefault((*extents, measure), tile)
    return found


def _robustness(
    hardware: GpuHardware, cost: TileCost, form: ProductForm
) -> tuple[bool, bool, float, int, int, int]:
    """Returns what speaks for a schedule besides its estimate, as a sort key: specialised warps,
    whole lines of memory, bytes in flight, resident blocks, and little shared memory."""
    tile, tuning = cost.tile, hardware.tuning
    share = hardware.l2_bandwidth_bytes_per_s / hardware.multiprocessors
    enough = tuning.ample_latencies * tuning.loaded_latency_ratio * hardware.dram_latency_s * share
    stage = stage_bytes(tile, form.dtype.itemsize)
    kernel = kernel_of(hardware, tile, form)
    ahead = tile.stages - 1 if kernel.buffers(hardware.architecture) > 1 else 1
    in_flight = min(cost.blocks * ahead * stage, enough)
    whole_lines = tile.bk * form.dtype.itemsize % LINE_BYTES == 0
    return (
        specialises(hardware, kernel), whole_lines, in_flight, cost.blocks, -tile.stages * stage,
        -tile.warps,
    )  # fmt: skip
