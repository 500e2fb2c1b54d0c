"""The text of an attention kernel whose warps are specialised, in Gluon, for sm_90.

The warps are those of `codegen.triton.gluon`: one fetches blocks of keys and values, two warpgroups
multiply and compute powers. Each issues the product of the next block of keys, then
that of the last block's powers and values, and computes the next powers while the latter runs: the
matrix units have work while the warpgroup computes its softmax (Shah et al., "FlashAttention-3",
arXiv 2407.08608).

Step i of `count` multiplies the keys of block i and the values of block i - 1. One mbarrier,
`free`, gives both buffers back in the next step, where the warps of a warpgroup meet once. Blocks
are walked from the last to the first: those that some row does not see come first, and the only one
that always has a mask is outside of the loops.

Arguments, sums and hidden rows are those of `gpu_kernel`.
"""

from __future__ import annotations

from textwrap import indent

from ftuner.codegen.triton.gluon import barrier_lines, specialised_function
from ftuner.codegen.triton.source import LANGUAGE_TYPES, Source
from ftuner.core.gpu.attention import AttentionKernel
from ftuner.schedules.attention.gpu_kernel_operands import (
    attention_arguments,
    place_lines,
    range_lines,
)

_PRELUDE = """
BQ = tl.constexpr({bq})
BK = tl.constexpr({bk})
HALF = tl.constexpr({half})
DEPTH = tl.constexpr({depth})
STAGES = tl.constexpr({stages})
DTYPE = tl.constexpr({dtype})
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)
HIDDEN = tl.constexpr(float("-inf"))
SCORES = tl.constexpr(tl.NVMMADistributedLayout([3, 0], [4, 1], [16, {bk}, 16]))
VALUES = tl.constexpr(tl.NVMMADistributedLayout([3, 0], [4, 1], [16, {depth}, 16]))
POWERS = tl.constexpr(tl.DotOperandLayout(0, VALUES.value, 2))
ROW = tl.constexpr(tl.SliceLayout(1, SCORES.value))
KEY = tl.constexpr(tl.SliceLayout(0, SCORES.value))
VALUE_ROW = tl.constexpr(tl.SliceLayout(1, VALUES.value))
MOVED = tl.constexpr(tl.BlockedLayout([1, 8], [{down}, {across}], [4, 1], [1, 0]))
QUERIES = tl.constexpr(tl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def fetch(
    k, v, k_blocks, v_blocks, k_full, v_full, free, k_request, k_head, v_request, v_head, count
):
    for step in range(count + 1):
        stage = step % STAGES
        start = (count - 1 - step) * BK
        mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
        if step < count:
            mbarrier.expect(k_full.index(stage), k.nbytes_per_cta)
            tma.async_load(
                k, [k_request, k_head, start, 0], k_full.index(stage), k_blocks.index(stage)
            )
        if step > 0:
            stage = (step - 1) % STAGES
            mbarrier.expect(v_full.index(stage), v.nbytes_per_cta)
            tma.async_load(
                v, [v_request, v_head, start + BK, 0], v_full.index(stage), v_blocks.index(stage)
            )


@gluon.jit
def score(step, queries, k_blocks, k_full, blank):
    stage = step % STAGES
    mbarrier.wait(k_full.index(stage), step // STAGES & 1)
    keys = k_blocks.index(stage).reshape([BK, DEPTH]).permute([1, 0])
    return warpgroup_mma(queries, keys, blank, use_acc=False, is_async=True)


@gluon.jit
def weigh(step, powers, v_blocks, value):
    values = v_blocks.index(step % STAGES).reshape([BK, DEPTH])
    return warpgroup_mma(powers, values, value, is_async=True)


@gluon.jit
def powers_of(scores, largest, total, factor):
    after = tl.maximum(largest, tl.max(scores, 1) * factor)
    powers = tl.exp2(tl.fma(scores, factor, -after[:, None]))
    fades = tl.exp2(largest - after)
    total = total * fades + tl.sum(powers, 1)
    return tl.convert_layout(powers.to(DTYPE), POWERS), after, total, fades


@gluon.jit
def powers_seen(scores, largest, total, factor, seen):
    scores = tl.where(seen, scores * factor, HIDDEN)
    after = tl.maximum(largest, tl.max(scores, 1))
    powers = tl.exp2(scores - after[:, None])
    fades = tl.exp2(largest - after)
    total = total * fades + tl.sum(powers, 1)
    return tl.convert_layout(powers.to(DTYPE), POWERS), after, total, fades


@gluon.jit
def attend(
    half: tl.constexpr, q, out, q_row, out_row, queries, k_blocks, v_blocks, k_full, v_full, free,
    first, rows, keys, count, whole, end, limit, factor, blind, undefined,
):
    index = first + half * HALF + tl.arange(0, HALF, tl.SliceLayout(1, MOVED))
    column = tl.arange(0, DEPTH, tl.SliceLayout(0, MOVED))[None, :]
    inside = (index < rows)[:, None]
    queries = queries.index(half)
    queries.store(tl.load(q + index[:, None] * q_row + column, mask=inside, other=0.0))
    fence_async_shared()

    position = first + half * HALF + tl.arange(0, HALF, ROW)
    key = tl.arange(0, BK, KEY)[None, :]
    last = {last}
    largest = tl.full((HALF,), LOWEST, tl.float32, ROW)
    total = tl.zeros((HALF,), tl.float32, ROW)
    value = tl.zeros((HALF, DEPTH), tl.float32, VALUES)
    blank = tl.zeros((HALF, BK), tl.float32, SCORES)
    start = (count - 1) * BK
    scores = warpgroup_mma_wait(0, [score(0, queries, k_blocks, k_full, blank)])
    powers, largest, total, fades = powers_seen(
        scores, largest, total, factor, start + key <= last
    )
    mbarrier.wait(v_full.index(0), 0)
{loops}
    value = weigh(count - 1, powers, v_blocks, value)
    value, powers = warpgroup_mma_wait(0, [value, powers])

    broken = total != total
    blank_rows = (total == 0) | broken
    share = tl.convert_layout(1.0 / tl.where(blank_rows, 1.0, total), VALUE_ROW)
    instead = tl.where({seeing}, blind, 0.0)
    instead = tl.convert_layout(tl.where(broken, undefined, instead), VALUE_ROW)
    blank_rows = tl.convert_layout(blank_rows, VALUE_ROW)
    value = tl.where(blank_rows[:, None], instead[:, None], value * share[:, None])
    queries.store(value.to(DTYPE))
    tl.store(out + index[:, None] * out_row + column, queries.load(MOVED), mask=inside)
"""
_LOOP = """
for step in range({begin}, {end}):
    start = (count - 1 - step) * BK
    ahead = score(step, queries, k_blocks, k_full, blank)
    value = weigh(step - 1, powers, v_blocks, value)
    scores = warpgroup_mma_wait(1, [ahead])
    ahead_powers, largest, total, fades = {powers}
    mbarrier.arrive(free.index((step - 1) % STAGES))
    # The branch of this wait keeps ptxas from moving the powers after the wait for the product.
    mbarrier.wait(v_full.index(step % STAGES), step // STAGES & 1)
    value, _, powers = warpgroup_mma_wait(0, [value, powers, ahead_powers])
    value = value * tl.convert_layout(fades, VALUE_ROW)[:, None]"""
_BODY = """
whole = middle // BK
count = tl.maximum((end + BK - 1) // BK, 1)
q += request * q_batch + head * q_head + member * q_member
out += request * out_batch + head * out_head + member * out_member
queries = tl.allocate_shared_memory(DTYPE, [2, HALF, DEPTH], QUERIES)
k_blocks = tl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, BK, DEPTH], k.layout)
v_blocks = tl.allocate_shared_memory(DTYPE, [STAGES, 1, 1, BK, DEPTH], v.layout)
given = (
    q, out, q_row, out_row, queries, k_blocks, v_blocks, k_full, v_full, free, tile * BQ, rows,
    keys, count, whole, end, limit, scale * LOG2_E, blind, undefined,
)
fetched = (
    k, v, k_blocks, v_blocks, k_full, v_full, free, request * k_batch, head * k_head,
    request * v_batch, head * v_head, count,
)"""
_BARRIERS = {"k_full": ("STAGES", 1), "v_full": ("STAGES", 1), "free": ("STAGES", 2)}


def specialised_source(kernel: AttentionKernel) -> Source:
    """Returns the source of a kernel with a specialised tile; its arguments are
    `attention_arguments`."""
    form, tile = kernel.form, kernel.tile
    causal = form.causal != "none"
    across = form.depth // 8
    powers = "powers_of(scores, largest, total, factor)"
    loops = _LOOP.format(begin=1, end="count", powers=powers)
    if causal:
        edge = "powers_seen(scores, largest, total, factor, start + key <= last)"
        loops = (
            "\nedge = tl.maximum(count - whole, 1)"
            + _LOOP.format(begin=1, end="edge", powers=edge)
            + _LOOP.format(begin="edge", end="count", powers=powers)
        )
    prelude = _PRELUDE.format(
        bq=tile.bq, bk=tile.bk, half=tile.bq // 2, depth=form.depth, stages=tile.stages,
        dtype=LANGUAGE_TYPES[form.dtype.name], down=32 // across, across=across,
        last="tl.minimum(position + limit, end - 1)[:, None]" if causal else "end - 1",
        loops=indent(loops, "    "),
        seeing="(position + limit >= 0) & (keys > 0)" if causal else "keys > 0",
    )  # fmt: skip
    body = [*place_lines(kernel), *range_lines(kernel), *([] if causal else ["limit = 0"])]
    body += [*barrier_lines(_BARRIERS), *_BODY.splitlines()]
    return specialised_function(
        kernel.symbol, prelude, attention_arguments(kernel), body, "attend", tile.stages
    )
