"""What one attention tile of a GPU takes of a multiprocessor: registers, shared memory, seconds.

A tile of `bq` rows walks over its keys in blocks of `bk`. A block takes a multiprocessor the
longest of

    matrix   4 bq bk operations for each element of a query and of a value, at the rate of the
             matrix instruction that fits the tile
    power    an exponential for each score, and what else is done to scores and sums
    shared   keys and values written to shared memory once and read by each row of warps, or on
             their way from L2

which overlap among groups of warps that do not wait for each other (`overlapped_seconds`); a group
alone does its products and its powers one after the other.

Sources: that products and powers take turns from FlashAttention-3 (arXiv 2407.08608), section 3.2.
Registers and shared memory were fitted on what ptxas reports for some 400 kernels compiled by
Triton 3.9 for sm_80 and sm_90: bfloat16, tf32 and float32, 32 to 256 elements, 16 to 128 rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionForm, AttentionTile
from ftuner.cost.gpu.tile import (
    ACCUMULATOR_BYTES,
    COPY_BYTES,
    LOADED_LATENCY,
    REGISTER_BYTES,
    STEP_CLOCKS,
    SUSTAINED_MATRIX,
    SUSTAINED_VECTOR,
    is_vector,
    occupancy,
    overlapped_seconds,
    peak_flops_per_s,
    vector_instruction,
    vector_threads,
)
from ftuner.hardware.model import GpuHardware, MatrixInstruction

POWERS_PER_CLOCK = 16
"""Exponentials of a multiprocessor in a clock (CUDA C++ Programming Guide, arithmetic throughput,
compute capability 7.0 to 9.0)."""
SCORE_OPERATIONS = 4
"""Instructions for a score besides: the largest, a multiply-add, the sum, a conversion. Counted in
the kernel's text."""
MASK_OPERATIONS = 2
"""More, where there is a mask."""
ROW_OPERATIONS = 48
"""For each row of a block of keys: four shuffles among the four lanes that hold it, and some eight
other instructions that all of them execute. Counted likewise."""
GROUP_WARPS = 4
"""Warps that take turns together: one for each subpartition."""
ROWS_A_WARP = 16
"""The height of the least matrix instruction."""
SLACK_BYTES = 1024
"""Of shared memory: barriers, rows of sums on their way between warps."""
MOST_REGISTERS = 256
"""Modelled: from about 260 on, compiled kernels spilled, but for some; below, ptxas saved 24 bytes
at most."""
MOST_VECTOR_REGISTERS = 216
"""The same without matrix units, whose kernels are told less well."""
LEAST_VECTOR_KEYS = 16
MOST_VECTOR_ELEMENTS = 2560
"""Of a block of keys without matrix units, if it has more than the least keys: products over longer
ones are unrolled whole, and spilled at any height."""


class _Fitted(NamedTuple):
    """Registers of a thread: a base, and for each accumulator, score, and register of the query
    that it has."""

    base: float
    accumulator: float
    score: float
    query: float


ASYNCHRONOUS = _Fitted(28, 0.85, 2.1, 0.4)
"""The instruction reads keys, values and the query from shared memory."""
SYNCHRONOUS = _Fitted(45, 1.0, 3.3, 0.5)
"""Fragments pass through registers, loaded by the copy engine before."""
SYNCHRONOUS_POINTERS = _Fitted(45, 1.5, 1.7, 0.75)
WITHOUT_MATRIX = _Fitted(27, 2.13, 6.2, 2.13)
ADDRESS = 1.6
"""For each register of a 64-bit address of what a thread loads at once."""
TURNED = 1.5
"""For each value of 4 bytes of a block that a group of warps turns, because the asynchronous
instruction takes those of 2 bytes only as they lie."""
WIDE_FRAGMENT = 1.1
"""For each value of 4 bytes of a block that threads load by pointers, and multiply by fragments."""
SECOND_BLOCK = 2
"""For each key of a block, up to `SECOND_KEYS`, where warps lie along keys and a second block of
elements is narrower than they are together."""
SECOND_KEYS = 64


MASK_BASE, MASK_SCORE = 20, 1.2
"""For a mask of a number for each score, and for each of these."""
MASK_ELEMENT = 12
"""For each score, where each number of a mask is loaded by an address of its own."""


class AttentionTileCost(NamedTuple):
    """What a tile takes of one multiprocessor; seconds are those of one block of keys, if not said
    otherwise."""

    tile: AttentionTile
    blocks: int
    """Resident at once."""
    matrix_s: float
    power_s: float
    shared_s: float
    step_s: tuple[float, ...]
    """Of a multiprocessor, for a block of keys of one of so many resident tiles; the first one is
    of none."""
    fill_s: float
    """Of a tile, from its first load to its first product."""
    store_s: float
    """Of a tile, from its last product to its last store."""
    partial_s: float
    """Of a tile, writing its sums, or reading them back, where keys are cut."""


def instruction_of(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile
) -> MatrixInstruction | None:
    """The first instruction that every warp of the tile has rows of; None if there is none."""
    if form.multiply == "float32":
        return vector_instruction(hardware.warp_threads)
    for instruction in hardware.matrix_instructions:
        issuers, odd = divmod(tile.warps, instruction.warps)
        if odd or tile.bq % instruction.rows:
            continue
        # A tile lower than its warps has them along keys; warps that issue together do not.
        if not instruction.asynchronous or tile.bq // instruction.rows >= issuers:
            return instruction
    return None


def registers_per_thread(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, instruction: MatrixInstruction
) -> int:
    """Registers of 32 bits that a thread needs; beyond what it may have, it spills."""
    size = form.dtype.itemsize
    threads = tile.warps * hardware.warp_threads
    described = form.loads == "descriptors"
    if is_vector(instruction):
        fitted = WITHOUT_MATRIX
    elif instruction.asynchronous:
        fitted = ASYNCHRONOUS
    else:
        fitted = SYNCHRONOUS if described else SYNCHRONOUS_POINTERS
    scores = tile.bq * tile.bk / threads
    found = fitted.base + fitted.score * scores
    found += fitted.accumulator * tile.bq * form.columns / threads
    found += fitted.query * tile.bq * form.depth * size / (REGISTER_BYTES * threads)
    if not described and not is_vector(instruction):
        loaded = COPY_BYTES if form.aligned else size
        addresses = tile.bk * (form.depth + form.columns) * size / (loaded * threads)
        found += ADDRESS * 2 * addresses
    values = tile.bk * form.columns
    if instruction.asynchronous and size > 2:
        found += TURNED * values / (GROUP_WARPS * hardware.warp_threads)
    elif fitted is SYNCHRONOUS_POINTERS and size > 2:
        found += WIDE_FRAGMENT * values / threads
    if _hides_values(form, instruction):
        found += values * size / (REGISTER_BYTES * threads)
    if len(form.column_blocks) > 1 and tile.bq < ROWS_A_WARP * tile.warps:
        found += SECOND_BLOCK * min(tile.bk, SECOND_KEYS)
    return round(found + _mask_registers(form, scores))


def _hides_values(form: AttentionForm, instruction: MatrixInstruction) -> bool:
    """Whether values pass through registers on their way, where those of the next request are
    replaced by zeros."""
    described = form.loads == "descriptors"
    return described and form.ragged is not None and not instruction.asynchronous


def _mask_registers(form: AttentionForm, scores: float) -> float:
    if form.mask is None or form.mask.spread == "keys":
        return 0.0
    if form.mask.layout == "aligned":
        return MASK_BASE + MASK_SCORE * scores
    return MASK_ELEMENT * scores


def shared_bytes(form: AttentionForm, tile: AttentionTile, instruction: MatrixInstruction) -> int:
    """Shared memory of a block of warps: keys and values of its stages, the query, and where warps
    lie along keys their powers on the way from one to the other."""
    size = form.dtype.itemsize
    buffers = tile.stages if instruction.asynchronous else max(tile.stages - 1, 1)
    found = buffers * tile.bk * (form.depth + form.columns) * size
    found += tile.bq * form.depth * size
    if tile.bq < ROWS_A_WARP * tile.warps or is_vector(instruction):
        found += tile.bq * tile.bk * size
    if _hides_values(form, instruction):
        found += tile.bk * form.columns * size
    if form.mask is not None and form.mask.spread == "scores":
        under_way = max(tile.stages - 1, 1)
        found += under_way * tile.bq * tile.bk * form.mask.dtype.itemsize
    return found + SLACK_BYTES


def resident_tiles(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, spilling: bool = False
) -> int:
    """Tiles that a multiprocessor holds at once; 0 if one does not fit, or spills and should
    not."""
    instruction = instruction_of(hardware, form, tile)
    if instruction is None:
        return 0
    registers = registers_per_thread(hardware, form, tile, instruction)
    used = shared_bytes(form, tile, instruction)
    if used > hardware.shared_bytes_per_block:
        return 0
    if not spilling and _spills(form, tile, instruction, registers):
        return 0
    accumulators = tile.bq * (tile.bk + form.columns) * ACCUMULATOR_BYTES
    given = min(registers, MOST_REGISTERS)
    return occupancy(hardware, instruction, tile.warps, given, used, accumulators)


def _spills(
    form: AttentionForm, tile: AttentionTile, instruction: MatrixInstruction, registers: int
) -> bool:
    if not is_vector(instruction):
        return registers > MOST_REGISTERS
    unrolled = tile.bk * max(form.depth, form.columns)
    if unrolled > MOST_VECTOR_ELEMENTS and tile.bk > LEAST_VECTOR_KEYS:
        return True
    return registers > MOST_VECTOR_REGISTERS


@lru_cache(maxsize=4096)
def attention_tile_cost(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, spilling: bool = False
) -> AttentionTileCost | None:
    """What the tile takes; None if no multiprocessor holds it, or not without spilling, unless that
    is put up with. The chip can multiply so."""
    blocks = resident_tiles(hardware, form, tile, spilling)
    instruction = instruction_of(hardware, form, tile)
    if not blocks or instruction is None:
        return None
    size = form.dtype.itemsize
    period = 1.0 / hardware.clock_hz
    across = form.depth + form.columns
    block_bytes = tile.bk * across * size

    # Products.
    sustained = SUSTAINED_VECTOR if is_vector(instruction) else SUSTAINED_MATRIX
    times = 3 if form.multiply == "tf32x3" else 1
    multiply = "tf32" if form.multiply == "tf32x3" else form.multiply
    peak = peak_flops_per_s(hardware, multiply) / hardware.multiprocessors
    matrix_s = times * 2.0 * tile.bq * tile.bk * across / (peak * sustained * instruction.rate)

    # Powers, and what is done to scores and sums.
    scores = tile.bq * tile.bk
    each = SCORE_OPERATIONS + (0 if form.mask is None else MASK_OPERATIONS)
    lanes = hardware.subpartitions_per_multiprocessor * hardware.warp_threads
    operations = scores * each + tile.bq * (form.columns + ROW_OPERATIONS)
    power_s = overlapped_seconds(scores / POWERS_PER_CLOCK, operations / lanes) * period

    # Shared memory.
    down = max(min(tile.warps, tile.bq // ROWS_A_WARP), 1)
    query = 0
    if is_vector(instruction):
        threads = vector_threads(instruction)
        down *= threads[0]
        query = threads[1] * tile.bq * form.depth * size
    elif instruction.asynchronous:
        down = -(-tile.bq // instruction.rows)
        query = tile.bq * form.depth * size
    passing = (1 + down) * block_bytes + query
    shared_rate = hardware.shared_bytes_per_clock * hardware.clock_hz
    port_rate = hardware.l2_bytes_per_clock * hardware.clock_hz
    shared_s = max(passing / shared_rate, block_bytes / port_rate)

    # One after the other where a group of warps is alone, and no sooner than blocks arrive.
    busy_s = overlapped_seconds(matrix_s, power_s, shared_s)
    turns_s = (matrix_s + power_s) * GROUP_WARPS / tile.warps + STEP_CLOCKS * period
    wait_s = LOADED_LATENCY * hardware.dram_latency_s / max(tile.stages - 1, 1)
    alone_s = max(turns_s, wait_s)
    return AttentionTileCost(
        tile=tile,
        blocks=blocks,
        matrix_s=matrix_s,
        power_s=power_s,
        shared_s=shared_s,
        step_s=(0.0, *(max(busy_s, alone_s / r) for r in range(1, blocks + 1))),
        fill_s=2 * hardware.dram_latency_s + block_bytes / port_rate,
        store_s=tile.bq * form.columns * size / port_rate,
        partial_s=tile.bq * (form.columns + 2) * ACCUMULATOR_BYTES / port_rate,
    )
