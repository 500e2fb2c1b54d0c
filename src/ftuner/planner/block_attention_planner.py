"""Choosing the attention kernel of a GPU, and how its keys are cut, by an estimate.

A tile of `bq` rows walks over its keys in blocks of `bk`. What one takes of a multiprocessor is the
longer of its products on the matrix units and its blocks of keys and values from L2; powers of two
are added. The busiest multiprocessor does whole waves of tiles, as in `cost.block_estimate`; where
tiles are fewer than multiprocessors, keys are cut into parts (flash-decoding, Dao et al. 2023).
Arithmetic only: nothing is compiled or measured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ftuner.core.block_attention import AttentionForm, AttentionKernel, AttentionTile
from ftuner.hardware.model import GpuHardware
from ftuner.planner.block_attention import BlockAttentionPlan, BlockAttentionProblem

ROWS = (16, 32, 64, 128)
KEYS = (32, 64, 128)
STAGES = 2
"""One block of keys on its way while another is in use."""
ROWS_A_WARP = 16
"""What a warp takes of a tile: the height of the least matrix instruction."""
REGISTERS = 160
"""Of a thread, for the scores and values of a tile and the query's fragments: 255, less what
addresses, sums and the compiler take. Assumed; to be checked against compiled kernels."""
POWERS_PER_CLOCK = 16
"""Exponentials of a multiprocessor in a clock (CUDA C++ Programming Guide, arithmetic throughput,
compute capability 7.0 to 9.0)."""
SUSTAINED = 0.6
"""Part of the matrix units' rate that attention reaches at best: assumed, from FlashAttention-2 on
Ampere; to be fitted on a device."""
LEAST_BLOCKS = 4
"""Blocks of keys that a part must keep; below, adding parts up costs more than it saves."""
MAX_PARTS = 64


class _Priced(NamedTuple):
    tile: AttentionTile
    blocks: int
    """Resident on a multiprocessor at once."""
    step_s: float
    """Of one block of keys, on a multiprocessor of its own."""


@lru_cache(maxsize=1024)
def tiles_of(hardware: GpuHardware, form: AttentionForm) -> tuple[_Priced, ...]:
    """The tiles that a chip can hold, with what a block of keys takes; one at least."""
    size = form.dtype.itemsize
    rates = {**hardware.vector_flops_per_s, **hardware.matrix_flops_per_s}
    rate = SUSTAINED * rates["tf32" if form.multiply == "tf32x3" else form.multiply]
    rate /= hardware.multiprocessors
    found = []
    for bq in ROWS:
        for bk in KEYS:
            warps = max(4, bq // ROWS_A_WARP)
            held = bq * (form.columns + bk) + bq * form.depth * size // 4
            registers = held // (warps * hardware.warp_threads)
            shared = (STAGES * bk * (form.depth + form.columns) + bq * form.depth) * size
            if registers > REGISTERS or shared > hardware.shared_bytes_per_block:
                continue
            resident = min(
                hardware.shared_bytes_per_multiprocessor // shared,
                hardware.threads_per_multiprocessor // (warps * hardware.warp_threads),
                hardware.registers_per_multiprocessor
                // ((registers + 64) * warps * hardware.warp_threads),
            )
            multiply_s = 2.0 * bq * bk * (form.depth + form.columns) / rate
            load_s = bk * (form.depth + form.columns) * size / (
                hardware.l2_bytes_per_clock * hardware.clock_hz
            )  # fmt: skip
            power_s = bq * bk / (POWERS_PER_CLOCK * hardware.clock_hz)
            tile = AttentionTile(bq, bk, warps, STAGES)
            found.append(_Priced(tile, max(resident, 1), max(multiply_s, load_s) + power_s))
    if not found:
        tile = AttentionTile(ROWS[0], KEYS[0] // 2, 4, 1)
        found.append(_Priced(tile, 1, 1.0))
    return tuple(found)


def plan_attention(
    hardware: GpuHardware, form: AttentionForm, problem: BlockAttentionProblem
) -> BlockAttentionPlan:
    """The plan that takes the least; rows, keys and heads of the problem are positive."""
    best, least = None, 0.0
    for priced in tiles_of(hardware, form):
        tile = priced.tile
        # Heads that share keys are rows of one tile where a head has few.
        packed = problem.sharing > 1 and 2 * problem.rows <= tile.bq
        heads = problem.batch * problem.heads * (1 if packed else problem.sharing)
        rows = problem.rows * (problem.sharing if packed else 1)
        tiles = heads * -(-rows // tile.bq)
        steps = -(-problem.keys // tile.bk)
        if form.causal != "none":
            # A row sees half of the keys on average, and all of the past.
            steps = -(-(problem.keys - problem.rows // 2) // tile.bk)
        steps = max(steps, 1)
        room = hardware.multiprocessors * priced.blocks
        parts = max(min(room // tiles, steps // LEAST_BLOCKS, MAX_PARTS), 1)
        # Resident blocks share the multiprocessor: those of a wave take turns.
        busiest = -(-tiles * parts // hardware.multiprocessors)
        seconds = busiest * -(-steps // parts) * priced.step_s
        if parts > 1:
            seconds += 2 * hardware.dram_latency_s
        if best is None or seconds < least:
            kernel = AttentionKernel(form, tile, packed, parts > 1)
            best, least = BlockAttentionPlan(problem, kernel, 1, parts), seconds
    assert best is not None
    return best
