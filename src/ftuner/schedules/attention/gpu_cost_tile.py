"""The cost of an attention tile on one multiprocessor of a GPU: registers, shared memory, seconds.

A tile of `bq` rows walks over its keys in blocks of `bk`. A multiprocessor spends on a block the
longest of

    matrix   4 bq bk operations for each element of a query and of a value, at the rate of the
             matrix instruction that fits the tile
    power    the largest score of each row, then an exponential for each score, and the other
             instructions on scores and sums
    shared   keys and values written to shared memory once and read by each row of warps, or
             loaded from L2

These overlap among resident tiles (`overlapped_seconds`). The warps of one tile go through a block
of keys together: barriers stand between its products and its powers, so that these add up, and so
do the waits of both for their operands (`turn_cycles`); with specialised warps they overlap.
Fragments that a scheduler's only warp loads add up with its products, too.
`tests/codegen/triton/static_bound.py` follows the machine code and holds the seconds against it.

Registers and shared memory are fitted (`hardware.gpu_tuning`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ftuner.core.gpu.attention import MIN_BLOCK, AttentionForm, AttentionTile
from ftuner.core.gpu.schedule import LINE_BYTES
from ftuner.core.gpu.tile import SPECIALISED_REGISTERS
from ftuner.cost.gpu.tile import (
    ACCUMULATOR_BYTES,
    COPY_BYTES,
    REGISTER_BYTES,
    is_vector,
    occupancy,
    overlapped_seconds,
    sustained_flops_per_s,
    vector_instruction,
    vector_threads,
)
from ftuner.hardware.gpu_model import GpuHardware, MatrixInstruction
from ftuner.hardware.gpu_tuning import GpuTuning

ROWS_A_WARP = 16
"""Height of the smallest matrix instruction."""
_GROUP_WARPS = 4
"""Warps of a warpgroup."""


class _Registers(NamedTuple):
    """Registers of a thread: a base, and those for each accumulator, score, and register of the
    query that it holds."""

    base: float
    accumulator: float
    score: float
    query: float


class AttentionTileCost(NamedTuple):
    """The cost of one tile on one multiprocessor. Seconds are for one block of keys, unless they
    are said to be for the tile."""

    tile: AttentionTile
    blocks: int
    """Resident tiles."""
    matrix_s: float
    power_s: float
    shared_s: float
    step_s: tuple[float, ...]
    """A multiprocessor's seconds for a block of one tile, by the number of resident tiles; entry 0
    is 0."""
    fill_s: float
    """Tile: from its first load to its first product."""
    store_s: float
    """Tile: from its last product to its last store."""
    partial_s: float
    """Tile: writing its sums, or reading them back, with split keys."""


def instruction_of(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile
) -> MatrixInstruction | None:
    """Returns the first instruction of which every warp of the tile has rows; None if there is
    none."""
    if form.multiply == "float32":
        return vector_instruction(hardware.warp_threads)
    for instruction in hardware.matrix_instructions:
        issuers, odd = divmod(tile.warps, instruction.warps)
        if odd or tile.bq % instruction.rows:
            continue
        # Warps beyond the rows of the tile are along keys, which warpgroups cannot be. Where
        # accumulators are in tensor memory, one thread issues for all.
        placed = instruction.accumulator_bytes or tile.bq // instruction.rows >= issuers
        if not instruction.asynchronous or placed:
            return instruction
    return None


def registers_per_thread(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, instruction: MatrixInstruction
) -> int:
    """Returns the 32-bit registers that a thread needs without spilling."""
    if tile.specialised:
        return SPECIALISED_REGISTERS
    size = form.dtype.itemsize
    threads = tile.warps * hardware.warp_threads
    described, tuning = form.loads == "descriptors", hardware.tuning
    fitted = _registers(tuning, instruction, described)
    scores = tile.bq * tile.bk / threads
    found = fitted.base + fitted.score * scores
    found += fitted.accumulator * tile.bq * form.columns / threads
    found += fitted.query * tile.bq * form.depth * size / (REGISTER_BYTES * threads)
    if not described and not is_vector(instruction):
        loaded = COPY_BYTES if form.aligned else size
        addresses = tile.bk * (form.depth + form.columns) * size / (loaded * threads)
        found += tuning.address_registers * 2 * addresses
    values = tile.bk * form.columns
    if instruction.asynchronous and size > 2:
        found += tuning.transposed_registers * values / (_GROUP_WARPS * hardware.warp_threads)
    elif not (described or is_vector(instruction)) and size > 2:
        found += tuning.wide_fragment_registers * values / threads
    if _hides_values(form, instruction):
        found += values * size / (REGISTER_BYTES * threads)
    if len(form.column_blocks) > 1 and tile.bq < ROWS_A_WARP * tile.warps:
        found += tuning.second_block_registers * min(tile.bk, tuning.second_block_keys)
    return round(found + _mask_registers(tuning, form, scores))


def _registers(tuning: GpuTuning, instruction: MatrixInstruction, described: bool) -> _Registers:
    kind = "copied" if described else "pointer"
    if is_vector(instruction):
        kind = "vector"
    elif instruction.asynchronous:
        kind = "wgmma"
    of = (f"{kind}_registers_per_{of}" for of in ("accumulator", "score", "query_register"))
    return _Registers(*(getattr(tuning, name) for name in (f"{kind}_base_registers", *of)))


def _hides_values(form: AttentionForm, instruction: MatrixInstruction) -> bool:
    """Whether values pass through registers before they are multiplied, so that those of the next
    request can be replaced by zeros."""
    described = form.loads == "descriptors"
    return described and form.ragged is not None and not instruction.asynchronous


def _mask_registers(tuning: GpuTuning, form: AttentionForm, scores: float) -> float:
    if form.mask is None or form.mask.spread == "keys":
        return 0.0
    if form.mask.layout == "aligned":
        return tuning.mask_base_registers + tuning.mask_registers_per_score * scores
    return tuning.mask_registers_per_address * scores


def shared_bytes(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, instruction: MatrixInstruction
) -> int:
    """Returns the shared memory of a block of warps: keys and values of its stages, the query, and,
    where warps are along keys, the powers that they exchange."""
    size = form.dtype.itemsize
    buffers = tile.stages if instruction.asynchronous else max(tile.stages - 1, 1)
    found = buffers * tile.bk * (form.depth + form.columns) * size
    found += tile.bq * form.depth * size
    if tile.bq < ROWS_A_WARP * tile.warps or is_vector(instruction):
        found += tile.bq * tile.bk * size
    if _hides_values(form, instruction):
        found += tile.bk * form.columns * size
    if form.mask is not None and form.mask.spread == "scores":
        in_flight = max(tile.stages - 1, 1)
        found += in_flight * tile.bq * tile.bk * form.mask.dtype.itemsize
    return found + hardware.tuning.slack_bytes


def resident_tiles(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, spilling: bool = False
) -> int:
    """Returns the tiles that a multiprocessor holds at once; 0 if one does not fit, or spills
    unless `spilling` allows that."""
    instruction = instruction_of(hardware, form, tile)
    if instruction is None:
        return 0
    registers = registers_per_thread(hardware, form, tile, instruction)
    used = shared_bytes(hardware, form, tile, instruction)
    if used > hardware.shared_bytes_per_block:
        return 0
    tuning = hardware.tuning
    if not spilling and _spills(tuning, form, tile, instruction, registers):
        return 0
    accumulators = tile.bq * (tile.bk + form.columns) * ACCUMULATOR_BYTES
    given = min(registers, tuning.spill_registers)
    return occupancy(hardware, instruction, tile.all_warps, given, used, accumulators)


def _spills(
    tuning: GpuTuning,
    form: AttentionForm,
    tile: AttentionTile,
    instruction: MatrixInstruction,
    registers: int,
) -> bool:
    if not is_vector(instruction):
        return registers > tuning.spill_registers
    unrolled = tile.bk * max(form.depth, form.columns)
    if unrolled > tuning.vector_unrolled_elements and tile.bk > MIN_BLOCK:
        return True
    return registers > tuning.vector_spill_registers


def takes_specialised(hardware: GpuHardware, form: AttentionForm) -> bool:
    """Whether there is a kernel with specialised warps for a form."""
    return (
        hardware.architecture == "sm_90"
        and form.loads == "descriptors"
        and form.exact
        and form.dtype.itemsize == 2
        and form.depth_blocks == form.column_blocks
        and form.depth_blocks in ((64,), (128,))
        and not (form.mask or form.ragged or form.sinks or form.capped or form.negative)
    )


def exchanges_more(hardware: GpuHardware, form: AttentionForm, tile: AttentionTile) -> bool:
    """Whether warps exchange more than is modelled: where values have more columns than a tile has
    rows, and a block has fewer keys, Triton places warps along keys even if each has rows of its
    own. The machine code for sm_80 then takes 1.4 times the estimate."""
    instruction = instruction_of(hardware, form, tile)
    fragments = instruction is not None and not instruction.asynchronous
    rows_suffice = tile.bq >= ROWS_A_WARP * tile.warps
    return fragments and rows_suffice and tile.bk < tile.bq < form.columns


@lru_cache(maxsize=4096)
def attention_tile_cost(
    hardware: GpuHardware, form: AttentionForm, tile: AttentionTile, spilling: bool = False
) -> AttentionTileCost | None:
    """Returns the cost of a tile; None if no multiprocessor holds it, or if it spills unless
    `spilling` allows that. The chip supports the form's products."""
    blocks = resident_tiles(hardware, form, tile, spilling)
    instruction = instruction_of(hardware, form, tile)
    if not blocks or instruction is None:
        return None
    size, tuning = form.dtype.itemsize, hardware.tuning
    period = 1.0 / hardware.clock_hz
    across = form.depth + form.columns
    block_bytes = tile.bk * across * size

    # Products.
    rate = sustained_flops_per_s(hardware, form.multiply)
    matrix_s = 2.0 * tile.bq * tile.bk * across / (rate * instruction.rate)

    # Powers, and other instructions on scores and sums. No power begins before the largest score is
    # known.
    scores = tile.bq * tile.bk
    each = tuning.score_instructions + (0 if form.mask is None else tuning.mask_instructions)
    lanes = hardware.subpartitions_per_multiprocessor * hardware.warp_threads
    operations = scores * each + tile.bq * (form.columns + tuning.row_instructions)
    exponent = tuning.overlap_exponent
    power_cycles = scores / tuning.exponentials_per_cycle
    power_s = overlapped_seconds(exponent, power_cycles, operations / lanes) * period
    power_s += scores * tuning.largest_instructions / lanes * period
    if instruction.accumulator_bytes:
        # Accumulators come to registers to be scaled, and go back, before they are added to.
        power_s += 4 * tile.bq * form.columns / lanes * period

    # Shared memory.
    down = max(min(tile.warps, tile.bq // ROWS_A_WARP), 1)
    along_keys = tile.warps // down
    query = along_keys * tile.bq * form.depth * size
    if is_vector(instruction):
        threads = vector_threads(instruction)
        down *= threads[0]
        query = threads[1] * tile.bq * form.depth * size
    elif instruction.asynchronous:
        down = -(-tile.bq // instruction.rows)
        query = tile.bq * form.depth * size
    elif along_keys > 1:
        # Each warp reads the powers of all.
        query += (1 + along_keys) * scores * size
    # Four lanes reduce a row, by two shuffles for its maximum and two for its sum, and those of
    # all warps again after an exchange.
    shuffles = tile.bq * along_keys / 2 * (4 if along_keys > 1 else 1)
    passing = (1 + down) * block_bytes + query + shuffles * LINE_BYTES
    shared_rate = hardware.shared_bytes_per_clock * hardware.clock_hz
    port_rate = hardware.l2_bytes_per_clock * hardware.clock_hz
    shared_s = max(passing / shared_rate, block_bytes / port_rate)

    # A tile alone does products and powers in turns, and not before its loads arrive.
    busy_s = overlapped_seconds(exponent, matrix_s, power_s, shared_s)
    turns_s = matrix_s + power_s + tuning.turn_cycles * period
    if not instruction.asynchronous:
        turns_s += tuning.exchange_cycles * period if along_keys > 1 else 0.0
        alone = tile.warps <= hardware.subpartitions_per_multiprocessor
        fragments_s = overlapped_seconds(exponent, matrix_s, shared_s) - matrix_s
        turns_s += shared_s if alone else fragments_s
    if tile.specialised:
        # Each warpgroup computes powers while its own product runs, and so does the other, which
        # hides half of what the first one waits for.
        waiting_s = power_s + tuning.turn_cycles / 2 * period
        turns_s = overlapped_seconds(exponent, matrix_s, waiting_s, shared_s)
    wait_s = tuning.loaded_latency_ratio * hardware.dram_latency_s / max(tile.stages - 1, 1)
    alone_s = max(turns_s, wait_s)
    return AttentionTileCost(
        tile=tile,
        blocks=blocks,
        matrix_s=matrix_s,
        power_s=power_s,
        shared_s=shared_s,
        step_s=(
            0.0,
            alone_s,
            *(overlapped_seconds(exponent, busy_s, alone_s / r) for r in range(2, blocks + 1)),
        ),
        fill_s=2 * hardware.dram_latency_s + block_bytes / port_rate,
        store_s=tile.bq * form.columns * size / port_rate,
        partial_s=tile.bq * (form.columns + 2) * ACCUMULATOR_BYTES / port_rate,
    )
