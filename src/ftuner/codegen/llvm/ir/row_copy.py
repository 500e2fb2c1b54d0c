"""Copies rows of any number of elements, without touching memory beyond them.

One internal function a module and element type. A row is copied in whole vectors, then in halves
down to one element: no masks, so that every ISA can do it.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, at, const, scalar_type
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.core.dtype import DType


def copy_rows(
    builder: ir.IRBuilder,
    dtype: DType,
    lanes: int,
    source: ir.Value,
    source_stride: ir.Value,
    target: ir.Value,
    target_stride: ir.Value,
    rows: ir.Value,
    columns: ir.Value,
) -> None:
    """Copy `rows` rows of `columns` elements; strides in bytes."""
    function = _copy_function(builder.module, dtype, lanes)
    builder.call(function, [source, source_stride, target, target_stride, rows, columns])


def _copy_function(module: ir.Module, dtype: DType, lanes: int) -> ir.Function:
    name = f"copy_rows_{dtype}_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, I64]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    source, source_stride, target, target_stride, rows, columns = function.args
    element = scalar_type(dtype)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    whole = builder.udiv(columns, const(lanes))
    with counted_loop(builder, const(0), rows) as row:
        from_row = at(builder, source, builder.mul(row, source_stride))
        to_row = at(builder, target, builder.mul(row, target_stride))
        vector = ir.VectorType(element, lanes)
        with counted_loop(builder, const(0), whole) as i:
            offset = builder.mul(i, const(lanes * dtype.itemsize))
            _move(
                builder, dtype, vector, at(builder, from_row, offset), at(builder, to_row, offset)
            )
        offset = builder.mul(whole, const(lanes * dtype.itemsize))
        part = lanes // 2
        while part >= 1:
            bit = builder.and_(columns, const(part))
            kind = ir.VectorType(element, part) if part > 1 else element
            with builder.if_then(builder.icmp_signed("!=", bit, const(0))):
                _move(
                    builder, dtype, kind, at(builder, from_row, offset), at(builder, to_row, offset)
                )
            offset = builder.add(offset, builder.mul(bit, const(dtype.itemsize)))
            part //= 2
    builder.ret_void()
    return function


def _move(
    builder: ir.IRBuilder, dtype: DType, kind: ir.Type, source: ir.Value, target: ir.Value
) -> None:
    value = builder.load(source, typ=kind, align=dtype.itemsize)
    builder.store(value, target, align=dtype.itemsize)
