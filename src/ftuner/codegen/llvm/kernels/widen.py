"""Widening 8-bit integers and half precision to floats: a vector in a uKernel, or a panel before
its uKernels.

Signature of the compiled function::

    void widen(source, target, count)

where `count` is a multiple of the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, PTR, VOID, at, const, scalar_type
from ftuner.codegen.llvm.ir.half_precision import WIDENED
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.core.dtype import BFLOAT16, FLOAT16, INT8, DType

Conversion = Callable[[ir.IRBuilder, ir.Value, ir.VectorType], ir.Value]
WIDEN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64])


def _from_int8(builder: ir.IRBuilder, narrow: ir.Value, vector: ir.VectorType) -> ir.Value:
    return builder.sitofp(builder.sext(narrow, ir.VectorType(I32, vector.count)), vector)


def _from_float16(builder: ir.IRBuilder, words: ir.Value, vector: ir.VectorType) -> ir.Value:
    halves = ir.VectorType(ir.HalfType(), vector.count)
    return builder.fpext(builder.bitcast(words, halves), vector)


def _from_words(dtype: DType) -> Conversion:
    """The conversion by integer arithmetic."""

    def convert(builder: ir.IRBuilder, words: ir.Value, vector: ir.VectorType) -> ir.Value:
        found = WIDENED[dtype](builder, words)
        return found if found.type == vector else builder.fpext(found, vector)

    return convert


CONVERSIONS: Mapping[DType, Conversion] = {
    INT8: _from_int8,
    FLOAT16: _from_words(FLOAT16),
    BFLOAT16: _from_words(BFLOAT16),
}
"""How a vector of a dtype, in memory as integers, becomes one of floats."""
CONVERTING: Mapping[DType, Conversion] = {**CONVERSIONS, FLOAT16: _from_float16}
"""The same where the instruction set has a conversion of float16. Where it has none, LLVM would
call a function of a runtime library."""


def widened(
    builder: ir.IRBuilder, place: ir.Value, dtype: DType, vector: ir.VectorType,
    converts_float16: bool,
) -> ir.Value:  # fmt: skip
    """Elements of `dtype` from `place` on as a vector of floats."""
    kind = ir.VectorType(ir.IntType(dtype.bits), vector.count)
    narrow = builder.load(place, typ=kind, align=dtype.itemsize)
    conversions = CONVERTING if converts_float16 else CONVERSIONS
    return conversions[dtype](builder, narrow, vector)


def emit_widen(
    module: ir.Module, narrow: DType, dtype: DType, lanes: int, converts_float16: bool
) -> ir.Function:
    """Add the function that widens elements of `narrow` to `dtype` to a module."""
    function = ir.Function(module, WIDEN_TYPE, f"ftuner_widen_{narrow}_to_{dtype}")
    function.linkage = "internal"
    source, target, count = function.args
    source.add_attribute("noalias")
    target.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    vector = ir.VectorType(scalar_type(dtype), lanes)
    with counted_loop(builder, const(0), count, lanes) as first:
        given = at(builder, source, builder.mul(first, const(narrow.itemsize)))
        value = widened(builder, given, narrow, vector, converts_float16)
        place = at(builder, target, builder.mul(first, const(dtype.itemsize)))
        builder.store(value, place, align=dtype.itemsize)
    builder.ret_void()
    return function
