"""Vectors of fewer elements than lanes: what lies behind the last element is not touched."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from llvmlite import ir
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, const
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.objects.jit import compile_object, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject

LANES = 8
WIDE = ir.VectorType(I64, LANES)


def narrowing(isa: str, count: int, bits: int, constant: bool, twice: bool) -> LoadedObject:
    """`void f(source, target, count)`: 64-bit integers narrowed; `constant`: their number is in the
    code; `twice`: as of `by_vectors`."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, PTR, I64]), "f")
    source, target, given = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    narrow = ir.VectorType(ir.IntType(bits), LANES)

    def vector(base: ir.Value, left: ir.Value | None) -> None:
        mask = mask_of(builder, left, LANES)
        place = builder.gep(source, [base], source_etype=I64)
        value = builder.trunc(load_lanes(builder, place, WIDE, 8, mask), narrow)
        place = builder.gep(target, [base], source_etype=narrow.element)
        store_lanes(builder, value, place, bits // 8, mask)

    by_vectors(builder, const(0), const(count) if constant else given, LANES, vector, twice)
    builder.ret_void()
    return LoadedObject([compile_object(module, host_target(isa))], ["f"])


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_narrowed_integers_end_where_they_end(isa: str, bits: int) -> None:
    for count in (0, 1, 2, 7, 8, 9, 15, 17):
        for constant, twice in itertools.product((True, False), repeat=2):
            code = narrowing(isa, count, bits, constant, twice)
            source = np.arange(1, count + 1, dtype=np.int64)
            target = np.full(count + 16, -1, f"int{bits}")
            run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
            run(code.addresses["f"])(source.ctypes.data, target.ctypes.data, count)
            assert target.tolist() == [*range(1, count + 1), *[-1] * 16], (count, constant, twice)
