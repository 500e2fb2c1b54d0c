"""The body of a dot uKernel: a tile of dot products, with vectors along k, in LLVM IR.

For operands that are both contiguous along k, a matrix by a vector or the scores of one query, the
outer product would first have to transpose B, which costs more than it multiplies. Here each
accumulator is a vector of partial sums of one element of C, added up at the end. Same signature as
`gemm`; `Context.B_K_STRIDE` holds the stride between columns of B.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.abi import Context
from ftuner.codegen.llvm.build import (
    add_chains,
    at,
    const,
    intrinsic,
    lanes_below,
    masked_load,
    multiply_add,
    scalar_type,
    slot,
    type_suffix,
)
from ftuner.codegen.llvm.gemm import KERNEL_TYPE
from ftuner.codegen.llvm.loops import carried_loop, counted_loop
from ftuner.core.ukernel import UKernel

Sums = list[ir.Value]
"""One value for each element of the tile, row after row."""


def emit_dot(module: ir.Module, kernel: UKernel, fused: bool, masked: bool) -> ir.Function:
    """Add the function of a dot uKernel to a module; `fused` and `masked` as in `emit_ukernel`."""
    function = ir.Function(module, KERNEL_TYPE, kernel.symbol)
    context, a, b, c, _, _, k, tiles = function.args
    for pointer in (context, a, b, c):
        pointer.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    size = kernel.dtype.itemsize
    a_stride = slot(builder, context, Context.A_STRIDE)
    tile_step = slot(builder, context, Context.A_TILE_STRIDE)
    b_stride = slot(builder, context, Context.B_K_STRIDE)
    c_stride = slot(builder, context, Context.C_ROW_STRIDE)
    accumulate = builder.icmp_signed("!=", slot(builder, context, Context.ACCUMULATE), const(0))
    columns = [at(builder, b, builder.mul(b_stride, const(j))) for j in range(kernel.nr)]
    with counted_loop(builder, const(0), tiles) as tile:
        first = at(builder, a, builder.mul(tile, tile_step))
        rows = [at(builder, first, builder.mul(a_stride, const(i))) for i in range(kernel.mr)]
        sums = _dot_products(builder, kernel, fused, masked, rows, columns, k)
        for i in range(kernel.mr):
            row = builder.add(builder.mul(tile, const(kernel.mr)), const(i))
            place = at(builder, c, builder.mul(row, c_stride))
            for j in range(kernel.nr):
                element = at(builder, place, j * size)
                _store(builder, sums[i * kernel.nr + j], element, accumulate, size)
    builder.ret_void()
    return function


def _store(
    builder: ir.IRBuilder, value: ir.Value, place: ir.Value, accumulate: ir.Value, size: int
) -> None:
    with builder.if_else(accumulate) as (add, replace):
        with add:
            before = builder.load(place, typ=value.type, align=size)
            builder.store(builder.fadd(before, value), place, align=size)
        with replace:
            builder.store(value, place, align=size)


def _dot_products(
    builder: ir.IRBuilder,
    kernel: UKernel,
    fused: bool,
    masked: bool,
    rows: Sequence[ir.Value],
    columns: Sequence[ir.Value],
    k: ir.Value,
) -> Sums:
    """Whole vectors of k, `chains` at once, then one at once, then what is left of a vector."""
    size, lanes, chains = kernel.dtype.itemsize, kernel.lanes, kernel.tile.chains
    element = scalar_type(kernel.dtype)
    vector = ir.VectorType(element, lanes)
    tile = len(rows) * len(columns)
    zero = ir.Constant(vector, [0.0] * lanes)

    def step(offset: ir.Value, sums: Sums) -> Sums:
        a_k = [builder.load(at(builder, p, offset), typ=vector, align=size) for p in rows]
        b_k = [builder.load(at(builder, p, offset), typ=vector, align=size) for p in columns]
        return _multiply(builder, a_k, b_k, sums, fused)

    def rounds(offset: ir.Value, count: ir.Value, sums: Sums, steps: int) -> tuple[ir.Value, Sums]:
        """`count` rounds of `steps` vectors, each with sums of its own."""

        def body(values: list[ir.Value]) -> list[ir.Value]:
            here, *carried = values
            done: Sums = []
            for chain in range(steps):
                done += step(here, carried[chain * tile : (chain + 1) * tile])
                here = builder.add(here, const(lanes * size))
            return [here, *done]

        end, *result = carried_loop(builder, count, [offset, *sums], body)
        return end, result

    vectors = builder.udiv(k, const(lanes))
    sums = [zero] * (tile * chains)
    offset, sums = rounds(const(0), builder.udiv(vectors, const(chains)), sums, chains)
    if chains > 1:
        left = builder.urem(vectors, const(chains))
        offset, first = rounds(offset, left, sums[:tile], 1)
        sums = first + sums[tile:]
    sums = add_chains(builder, sums, tile)

    left = builder.urem(k, const(lanes))
    if masked:
        mask = lanes_below(builder, left, lanes)
        a_k = [masked_load(builder, at(builder, p, offset), vector, size, mask) for p in rows]
        b_k = [masked_load(builder, at(builder, p, offset), vector, size, mask) for p in columns]
        sums = _multiply(builder, a_k, b_k, sums, fused)
        return [_total(builder, value) for value in sums]

    def scalar_step(values: list[ir.Value]) -> list[ir.Value]:
        here, *carried = values
        a_k = [builder.load(at(builder, p, here), typ=element, align=size) for p in rows]
        b_k = [builder.load(at(builder, p, here), typ=element, align=size) for p in columns]
        done = _multiply(builder, a_k, b_k, carried, fused)
        return [builder.add(here, const(size)), *done]

    totals = [_total(builder, value) for value in sums]
    return carried_loop(builder, left, [offset, *totals], scalar_step)[1:]


def _multiply(
    builder: ir.IRBuilder,
    a_k: Sequence[ir.Value],
    b_k: Sequence[ir.Value],
    sums: Sums,
    fused: bool,
) -> Sums:
    pairs = [(x, y) for x in a_k for y in b_k]
    return [multiply_add(builder, x, y, z, fused) for (x, y), z in zip(pairs, sums, strict=True)]


def _total(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The sum of a vector's lanes, in whatever order is fastest."""
    element = value.type.element
    name = f"llvm.vector.reduce.fadd.{type_suffix(value.type)}"
    function = intrinsic(builder.module, name, element, [element, value.type])
    return builder.call(function, [ir.Constant(element, -0.0), value], fastmath=("reassoc",))
