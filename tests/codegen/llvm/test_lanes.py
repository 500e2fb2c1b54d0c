"""Vectors of fewer elements than lanes: what lies behind the last element is not touched."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from tests.codegen.llvm.objects import loaded
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, begun, const
from ftuner.codegen.llvm.ir.lanes import (
    LEAST_ALIGNED,
    by_vectors,
    by_whole_vectors,
    load_lanes,
    mask_of,
    store_lanes,
)

LANES = 8
WIDE = ir.VectorType(I64, LANES)


def narrowing(isa: str, count: int, bits: int, constant: bool, twice: bool) -> Callable[..., Any]:
    """`void f(source, target, count)`: 64-bit integers narrowed; `constant`: their number is in the
    code; `twice`: as of `by_vectors`."""
    module = ir.Module()
    builder, (source, target, given) = begun(module, ir.FunctionType(VOID, [PTR, PTR, I64]), "f")
    narrow = ir.VectorType(ir.IntType(bits), LANES)

    def vector(base: ir.Value, left: ir.Value | None) -> None:
        mask = mask_of(builder, left, LANES)
        place = builder.gep(source, [base], source_etype=I64)
        value = builder.trunc(load_lanes(builder, place, WIDE, 8, mask), narrow)
        place = builder.gep(target, [base], source_etype=narrow.element)
        store_lanes(builder, value, place, bits // 8, mask)

    by_vectors(builder, const(0), const(count) if constant else given, LANES, vector, twice)
    builder.ret_void()
    return loaded(module, isa, ["f"], 2, 1)[0]


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_narrowed_integers_end_where_they_end(isa: str, bits: int) -> None:
    for count in (0, 1, 2, 7, 8, 9, 15, 17):
        for constant, twice in itertools.product((True, False), repeat=2):
            run = narrowing(isa, count, bits, constant, twice)
            source = np.arange(1, count + 1, dtype=np.int64)
            target = np.full(count + 16, -1, f"int{bits}")
            run(source.ctypes.data, target.ctypes.data, count)
            assert target.tolist() == [*range(1, count + 1), *[-1] * 16], (count, constant, twice)


def test_vectors_begin_where_stores_are_aligned() -> None:
    """All but the first and the last one of many; fewer overlap at the first alone."""
    module = ir.Module()
    builder, (bases, count, ahead) = begun(module, ir.FunctionType(I64, [PTR, I64, I64]), "f")
    vectors = builder.reserve(I64)
    builder.store(0, vectors)

    def vector(base: ir.Value) -> None:
        number = builder.load(vectors, typ=I64)
        builder.store(base, builder.gep(bases, [number], source_etype=I64))
        builder.store(builder.add(number, 1), vectors)

    by_whole_vectors(builder, const(0), count, LANES, vector, ahead)
    builder.ret(builder.load(vectors, typ=I64))
    (run,) = loaded(module, HOST_ISAS[0], ["f"], 1, 2, ctypes.c_int64)
    found = np.empty(100, np.int64)
    for count, ahead in itertools.product(range(LANES, 20 * LANES), range(1, LANES + 1)):
        number = run(found.ctypes.data, count, ahead)
        begins = found[:number].tolist()
        steps = np.diff(begins)
        assert (begins[0], begins[-1]) == (0, count - LANES)
        assert ((steps >= 0) & (steps <= LANES)).all()
        assert number <= -(-count // LANES) + 1
        inner = begins[1:-1]
        if count >= LEAST_ALIGNED * LANES:
            assert {begin % LANES for begin in inner} == {ahead % LANES}
        else:
            assert {(count - begin) % LANES for begin in inner} <= {0}
