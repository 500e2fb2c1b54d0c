"""The body of a dot uKernel: a tile of dot products, with vectors along k, in LLVM IR.

For operands that are both contiguous along k, a matrix by a vector or the scores of one query, the
outer product would first have to transpose B, which costs more than it multiplies. Here each
accumulator is a vector of partial sums of one element of C, added up at the end. Same signature as
`gemm`; `Context.B_K_STRIDE` holds the stride between columns of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, IRBuilder, begun, const, quarter_lanes, scalar_type
from ftuner.codegen.llvm.ir.instructions import emitter_of
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_lanes
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import UKernel
from ftuner.core.product import product_types
from ftuner.hardware.isa import InstructionSet

Sums = list[ir.Value]
"""Vectors for the elements of a tile, row after row."""


def emit_dot(module: ir.Module, kernel: UKernel, isa: InstructionSet) -> ir.Function:
    """Add the function of a dot uKernel to a module."""
    builder, (context, a, b, c, _, _, k, tiles) = begun(module, KERNEL_TYPE, kernel.symbol)
    for pointer in (context, a, b, c):
        pointer.add_attribute("noalias")
    assert kernel.types == product_types(kernel.types.c), "dot tiles are of one dtype"
    size = kernel.types.c.itemsize
    a_stride, tile_step = builder.slots(context, Context.A_STRIDE, Context.A_TILE_STRIDE)
    b_stride, c_stride = builder.slots(context, Context.B_K_STRIDE, Context.C_ROW_STRIDE)
    accumulate = builder.icmp_signed("!=", builder.slot(context, Context.ACCUMULATE), 0)
    columns = [builder.at(b, b_stride, j) for j in range(kernel.nr)]
    with builder.counted_loop(0, tiles) as tile:
        first = builder.at(a, tile, tile_step)
        rows = [builder.at(first, a_stride, i) for i in range(kernel.mr)]
        totals = _dot_products(builder, kernel, isa, rows, columns, k)
        corner = builder.at(c, builder.mul(tile, kernel.mr), c_stride)
        places = [
            builder.at(builder.at(corner, c_stride, i), j * size)
            for i in range(kernel.mr)
            for j in range(kernel.nr)
        ]
        with builder.if_else(accumulate) as (add, replace):
            with add:
                _store(builder, kernel, totals, places, accumulates=True)
            with replace:
                _store(builder, kernel, totals, places, accumulates=False)
    builder.ret_void()
    return builder.function


def _store(
    builder: IRBuilder, kernel: UKernel, totals: Sums, places: Sequence[ir.Value], accumulates: bool
) -> None:
    """Store the elements of a tile. A vector that is one piece of a row is stored as one."""
    size = kernel.types.c.itemsize
    number = 0
    for vector in totals:
        count = min(vector.type.count, len(places) - number)
        in_row = count == vector.type.count and number % kernel.nr + count <= kernel.nr
        values = [vector] if in_row else [
            builder.extract_element(vector, const(lane)) for lane in range(count)
        ]  # fmt: skip
        for value, place in zip(values, places[number:], strict=False):
            added = value
            if accumulates:
                before = builder.load(place, typ=value.type, align=size)
                added = builder.fadd(before, value)
            builder.store(added, place, align=size)
        number += count


def _dot_products(
    builder: IRBuilder, kernel: UKernel, isa: InstructionSet, rows: Sums, columns: Sums, k: ir.Value
) -> Sums:
    """Whole vectors of k, `chains` at once, then one at once, then what is left of a vector."""
    dtype, lanes, chains = kernel.types.c, kernel.lanes, kernel.tile.chains
    size, element = dtype.itemsize, scalar_type(dtype)
    vector = ir.VectorType(element, lanes)
    multiply_add = emitter_of(isa, kernel.types)
    tile = len(rows) * len(columns)
    zero = ir.Constant(vector, None)

    def step(
        offset: ir.Value, sums: Sums, kind: ir.Type = vector, mask: ir.Value | None = None
    ) -> Sums:
        a_k, b_k = (
            [load_lanes(builder, builder.at(p, offset), kind, size, mask) for p in pointers]
            for pointers in (rows, columns)
        )
        pairs = zip(product(a_k, b_k), sums, strict=True)
        return [multiply_add(builder, x, y, total) for (x, y), total in pairs]

    def rounds(offset: ir.Value, count: ir.Value, sums: Sums, steps: int) -> tuple[ir.Value, Sums]:
        """`count` rounds of `steps` vectors, each with sums of its own."""

        def body(values: list[ir.Value]) -> list[ir.Value]:
            here, *carried = values
            done: Sums = []
            for chain in range(steps):
                done += step(here, carried[chain * tile : (chain + 1) * tile])
                here = builder.add(here, lanes * size)
            return [here, *done]

        end, *result = builder.carried_loop(count, [offset, *sums], body)
        return end, result

    vectors = builder.udiv(k, lanes)
    sums = [zero] * (tile * chains)
    offset, sums = rounds(const(0), builder.udiv(vectors, chains), sums, chains)
    if chains > 1:
        left = builder.urem(vectors, chains)
        offset, first = rounds(offset, left, sums[:tile], 1)
        sums = first + sums[tile:]
    sums = builder.add_chains(sums, tile)

    left = builder.urem(k, lanes)
    quarter = quarter_lanes(dtype)
    if isa.masked:
        mask = lanes_below(builder, left, lanes)
        some = builder.zext(builder.icmp_signed("!=", left, 0), I64)
        last = builder.carried_loop(some, sums, lambda sums: step(offset, sums, mask=mask))
        return _totals(builder, last, quarter)

    def scalar_step(values: list[ir.Value]) -> list[ir.Value]:
        here, *carried = values
        done = step(here, carried, element)
        return [builder.add(here, size), *done]

    none = ir.Constant(element, 0.0)
    rest = builder.carried_loop(left, [offset, *([none] * tile)], scalar_step)[1:]
    # The rest of a sum is one more of its lanes.
    lane = const(0)
    first = [builder.extract_element(x, lane) for x in sums]
    both = [builder.fadd(x, y) for x, y in zip(first, rest, strict=True)]
    sums = [builder.insert_element(x, y, lane) for x, y in zip(sums, both, strict=True)]
    return _totals(builder, sums, quarter)


def _totals(builder: IRBuilder, sums: Sums, count: int) -> Sums:
    """The sums of all lanes of each vector: `count` of them in each vector of the result, of which
    the last may have lanes that mean nothing."""
    found = []
    for first in range(0, len(sums), count):
        some = sums[first : first + count]
        turned = builder.transpose(some + some[-1:] * (count - len(some)), count)
        while len(turned) > 1:
            pairs = zip(turned[::2], turned[1::2], strict=True)
            turned = [builder.fadd(x, y) for x, y in pairs]
        (value,) = turned
        while value.type.count > count:
            half = value.type.count // 2
            low, high = (builder.shuffle(value, value, range(i, i + half)) for i in (0, half))
            value = builder.fadd(low, high)
        found.append(value)
    return found
