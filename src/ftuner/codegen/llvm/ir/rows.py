"""Copies of rows of elements.

They are done by one internal function for each element type of a module: in whole vectors, then
in halves down to one element. There are no masks, so that every ISA can do it.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, scalar_type
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
    function = _copy_function(builder.module, *types)
    builder.call(function, [*source, *target, rows, columns])


def _copy_function(module: ir.Module, dtype: DType, lanes: int) -> ir.Function:
    name = f"copy_rows_{dtype}_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, I64])
    builder, (*both, rows, columns) = begun(module, kind, name, internal=True)
    builder.function.attributes.add("noinline")
    source, source_stride, target, target_stride = both
    element = scalar_type(dtype)
    whole = builder.udiv(columns, lanes)
    with builder.counted_loop(0, rows) as row:
        from_row = builder.at(source, row, source_stride)
        to_row = builder.at(target, row, target_stride)
        vector = ir.VectorType(element, lanes)
        with builder.counted_loop(0, whole) as i:
            offset = builder.mul(i, lanes * dtype.itemsize)
            _move(builder, dtype, vector, builder.at(from_row, offset), builder.at(to_row, offset))
        offset = builder.mul(whole, lanes * dtype.itemsize)
        part = lanes // 2
        while part >= 1:
            bit = builder.and_(columns, part)
            kind = ir.VectorType(element, part) if part > 1 else element
            with builder.if_then(builder.icmp_signed("!=", bit, 0)):
                _move(
                    builder, dtype, kind, builder.at(from_row, offset), builder.at(to_row, offset)
                )
            offset = builder.add(offset, builder.mul(bit, dtype.itemsize))
            part //= 2
    builder.ret_void()
    return builder.function


def _move(
    builder: IRBuilder, dtype: DType, kind: ir.Type, source: ir.Value, target: ir.Value
) -> None:
    value = builder.load(source, typ=kind, align=dtype.itemsize)
    builder.store(value, target, align=dtype.itemsize)
