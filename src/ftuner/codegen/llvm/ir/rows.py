"""Copies of rows of elements.

They are done by one internal function for each element type of a module: in whole vectors, then
in halves down to one element. There are no masks, so that every ISA can do it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import VOID, IRBuilder, scalar_type
from ftuner.core.dtype import DType


class Rows(NamedTuple):
    """Where rows begin, and the bytes from one to the next."""

    first: ir.Value
    stride: ir.Value


def copy_rows(
    builder: IRBuilder, types: tuple[DType, int], source: Rows, target: Rows, rows: ir.Value,
    columns: ir.Value,
) -> None:  # fmt: skip
    """Copy `rows` rows of `columns` elements. `types`: of elements, and the lanes of a vector."""
    dtype, lanes = types
    name, body = f"copy_rows_{dtype}_{lanes}", partial(_copy, dtype, lanes)
    builder.shared(name, VOID, [*source, *target, rows, columns], body, "noinline")


def _copy(dtype: DType, lanes: int, builder: IRBuilder, *given: ir.Value) -> None:
    source, source_stride, target, target_stride, rows, columns = given
    element = scalar_type(dtype)
    whole = builder.udiv(columns, lanes)
    with builder.counted_loop(0, rows) as row:
        from_row = builder.at(source, row, source_stride)
        to_row = builder.at(target, row, target_stride)

        def move(
            kind: ir.Type, offset: ir.Value, source: ir.Value = from_row, to: ir.Value = to_row
        ) -> None:
            places = builder.at(source, offset), builder.at(to, offset)
            value = builder.load(places[0], typ=kind, align=dtype.itemsize)
            builder.store(value, places[1], align=dtype.itemsize)

        with builder.counted_loop(0, whole) as i:
            move(ir.VectorType(element, lanes), builder.mul(i, lanes * dtype.itemsize))
        offset = builder.mul(whole, lanes * dtype.itemsize)
        part = lanes // 2
        while part >= 1:
            bit = builder.and_(columns, part)
            kind = ir.VectorType(element, part) if part > 1 else element
            with builder.if_then(builder.icmp_signed("!=", bit, 0)):
                move(kind, offset)
            offset = builder.add(offset, builder.mul(bit, dtype.itemsize))
            part //= 2
