"""Widening 8-bit integers to floats: a vector in a uKernel, or a panel before its uKernels.

Signature of the compiled function::

    void widen(source, target, count)

where `count` is a multiple of the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, PTR, VOID, at, const, scalar_type
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.core.dtype import INT8, DType

WIDEN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64])


def _from_int8(builder: ir.IRBuilder, narrow: ir.Value, vector: ir.VectorType) -> ir.Value:
    return builder.sitofp(builder.sext(narrow, ir.VectorType(I32, vector.count)), vector)


CONVERSIONS: Mapping[DType, Callable[[ir.IRBuilder, ir.Value, ir.VectorType], ir.Value]] = {
    INT8: _from_int8
}
"""How a vector of a dtype becomes one of floats."""


def widened(
    builder: ir.IRBuilder, place: ir.Value, dtype: DType, vector: ir.VectorType
) -> ir.Value:
    """Elements of `dtype` from `place` on as a vector of floats."""
    kind = ir.VectorType(scalar_type(dtype), vector.count)
    narrow = builder.load(place, typ=kind, align=dtype.itemsize)
    return CONVERSIONS[dtype](builder, narrow, vector)


def emit_widen(module: ir.Module, dtype: DType, lanes: int) -> ir.Function:
    """Add the widening function of an element type to a module."""
    function = ir.Function(module, WIDEN_TYPE, f"ftuner_widen_{dtype}")
    function.linkage = "internal"
    source, target, count = function.args
    source.add_attribute("noalias")
    target.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    vector = ir.VectorType(scalar_type(dtype), lanes)
    with counted_loop(builder, const(0), count, lanes) as first:
        value = widened(builder, at(builder, source, first), INT8, vector)
        place = at(builder, target, builder.mul(first, const(dtype.itemsize)))
        builder.store(value, place, align=dtype.itemsize)
    builder.ret_void()
    return function
