"""The text of a product kernel whose warps are specialised, in Gluon, for sm_90.

The warps are those of `codegen.triton.gluon`. Both warpgroups read the same tiles of B, each with
its half of the rows of A, so that a program loads no more than one of Triton. Neither waits for the
other, except for a first step: the second warpgroup begins a tile after the first one has finished
a step of it. Each of them stores its half of a tile while the other one still multiplies. The warp
that loads is as far ahead as the ring of buffers allows, also into the next tile.

A buffer is free when both warpgroups have passed it; `free` has an mbarrier for each of them.
Arguments, tiles and their order are those of `product`, and so are epilogues, as far as
`cost.gpu.tile.SPECIALISED_FUNCTIONS` has their functions and they read no matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from ftuner.codegen.triton.expressions import epilogue_prelude
from ftuner.codegen.triton.gluon import barrier_lines, specialised_function
from ftuner.codegen.triton.product_arguments import (
    a_block,
    b_block,
    c_block,
    gemm_arguments,
    operand_argument,
)
from ftuner.codegen.triton.product_results import sliced_lines, value_lines
from ftuner.codegen.triton.source import LANGUAGE_TYPES, Source
from ftuner.core.expr import operands
from ftuner.core.gpu.tile import Order, ProductKernel

_PRELUDE = """
BM = tl.constexpr({bm})
BN = tl.constexpr({bn})
BK = tl.constexpr({bk})
HALF = tl.constexpr({half})
WIDTH = tl.constexpr({width})
STAGES = tl.constexpr({stages})
DTYPE = tl.constexpr({dtype})
SUMS = tl.constexpr(tl.NVMMADistributedLayout([3, 0], [4, 1], [16, {bn}, 16]))
RESULT = tl.constexpr(tl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16]))
ROW = tl.constexpr(tl.SliceLayout(1, RESULT.value))
COLUMN = tl.constexpr(tl.SliceLayout(0, RESULT.value))
{functions}


@gluon.jit
def place_of(tile, m, n, swizzle):
    row_tiles = tl.cdiv(m, BM)
    columns = tl.cdiv(n, BN)
    in_element = row_tiles * columns
    in_swizzle = swizzle * columns
    place = tile % in_element
{place}
    return tile // in_element, row, column


@gluon.jit
def fetch(a, b, a_blocks, b_blocks, full, free, tiles, steps, m, n, a_batch, b_batch, swizzle):
    turn = 0
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        element, row, column = place_of(tile, m, n, swizzle)
        for step in range(steps):
            stage = turn % STAGES
            k = step * BK
            for half in tl.static_range(2):
                mbarrier.wait(free.index(2 * stage + half), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), 2 * a.nbytes_per_cta + b.nbytes_per_cta)
            for half in tl.static_range(2):
                tma.async_load(
                    a, [element * a_batch, {a_at}], full.index(stage),
                    a_blocks.index(2 * stage + half),
                )
            tma.async_load(
                b, [element * b_batch, {b_at}], full.index(stage), b_blocks.index(stage)
            )
            turn += 1


@gluon.jit
def multiply(
    half: tl.constexpr, c, a_blocks, b_blocks, staged, full, free, tiles, steps, m, n,
    swizzle, {given}
):
    staged = staged.index(half)
    turn = 0
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        element, row, column = place_of(tile, m, n, swizzle)
        if half == 1:
            mbarrier.wait(free.index(2 * (turn % STAGES)), turn // STAGES & 1)
        sums = tl.zeros((HALF, BN), tl.float32, SUMS)
        for step in range(steps):
            stage = turn % STAGES
            mbarrier.wait(full.index(stage), turn // STAGES & 1)
            a_tile = a_blocks.index(2 * stage + half){a_tile}
            b_tile = b_blocks.index(stage){b_tile}
            sums = warpgroup_mma(a_tile, b_tile, sums, is_async=True)
            sums = warpgroup_mma_wait(1, [sums])
            mbarrier.arrive(free.index(2 * ((turn - 1) % STAGES) + half), pred=step > 0)
            turn += 1
        sums = warpgroup_mma_wait(0, [sums])
        mbarrier.arrive(free.index(2 * ((turn - 1) % STAGES) + half))
{sliced}
    tma.store_wait(0)


@gluon.jit
def store(c, element, row, column, sums, staged, m, n, {given}):
    sums = tl.convert_layout(sums, RESULT, assert_trivial=True)
    c_rows = row + tl.arange(0, HALF, ROW)
    c_columns = column + tl.arange(0, WIDTH, COLUMN)
{computed}
    result = {result}.to(DTYPE)
    tma.store_wait(0)
    staged.reshape([HALF, WIDTH]).store(result)
    fence_async_shared()
    tma.async_store(c, [element, row, column], staged)
"""
_BODY = """
tiles = batch * tl.cdiv(m, BM) * tl.cdiv(n, BN)
steps = tl.maximum(tl.cdiv(k, BK), 1)
a_blocks = tl.allocate_shared_memory(DTYPE, [2 * STAGES, 1, {a_block}], a.layout)
b_blocks = tl.allocate_shared_memory(DTYPE, [STAGES, 1, {b_block}], b.layout)
staged = tl.allocate_shared_memory(DTYPE, [2, 1, HALF, WIDTH], c.layout)
given = (c, a_blocks, b_blocks, staged, full, free, tiles, steps, m, n, swizzle, {given})
fetched = (
    a, b, a_blocks, b_blocks, full, free, tiles, steps, m, n, a_batch, b_batch, swizzle,
)"""
_BARRIERS = {"full": ("STAGES", 1), "free": ("2 * STAGES", 1)}


def specialised_source(kernel: ProductKernel, place: Sequence[str]) -> Source:
    """Returns the source of a kernel of one tile with two warpgroups; its arguments are
    `gemm_arguments`. `place`: lines for `row` and `column` of tile `place` of its matrix."""
    tile = kernel.main
    blocks = {"a": a_block(kernel, tile), "b": b_block(kernel)}
    half, width = c_block(kernel, tile)
    given = "".join(f"{operand_argument(x.name)}, " for x in operands(kernel.epilogue))
    sliced, slices = sliced_lines(kernel, half)
    sliced += [
        f"store(c, element, row + half * HALF, column + {i * width}, {name}, staged, m, n, {given})"
        for i, name in enumerate(slices)
    ]
    computed, result = value_lines(kernel, "sums")
    prelude = _PRELUDE.format(
        bm=tile.bm, bn=tile.bn, bk=tile.bk, half=half, width=width, stages=tile.stages,
        dtype=LANGUAGE_TYPES[kernel.dtype.name], place=indent("\n".join(place), "    "),
        a_at=_at(kernel.a_order, "row + half * HALF"), b_at=_at(kernel.b_order, "column"),
        a_tile=_view(blocks["a"], turned=kernel.a_order != "k"),
        b_tile=_view(blocks["b"], turned=kernel.b_order == "k"),
        functions=epilogue_prelude(kernel.epilogue), given=given, result=result,
        computed=indent("\n".join(computed), "    "), sliced=indent("\n".join(sliced), 8 * " "),
    )  # fmt: skip
    shapes = {f"{name}_block": f"{x}, {y}" for name, (x, y) in blocks.items()}
    body = _BODY.format(given=given, **shapes)
    lines = [*barrier_lines(_BARRIERS), *body.splitlines()]
    arguments = gemm_arguments(kernel)
    return specialised_function(kernel.symbol, prelude, arguments, lines, "multiply", tile.stages)


def _at(order: Order, place: str) -> str:
    """Returns where a load of step `k` begins, the contiguous axis last."""
    return f"{place}, k" if order == "k" else f"k, {place}"


def _view(block: tuple[int, int], turned: bool) -> str:
    """Returns what makes a tile of the product of a block in shared memory."""
    return f".reshape([{block[0]}, {block[1]}])" + (".permute([1, 0])" if turned else "")
