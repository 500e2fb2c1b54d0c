"""What functions of elements cost is what their code has instructions."""

from __future__ import annotations

from collections import Counter

import llvmlite.ir as ir
import pytest
from tests.conftest import recorded_cpus

from ftuner.codegen.llvm import vecmath
from ftuner.core.dtype import DTYPES, FLOAT32, FLOAT64, INT64, TENSOR_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR, Operand, gelu
from ftuner.core.scalar import SCALAR_FUNCTIONS
from ftuner.cost.elementary import (
    CALL_CYCLES,
    ELEMENTARY,
    LIBRARY_CYCLES,
    expression_cycles,
    expression_operations,
    operation_cycles,
)
from ftuner.hardware.model import CpuHardware, Isa

FREE = ("bitcast", "ret")


def instructions(name: str, dtype: DType, fused: bool) -> Counter[str]:
    """Of the body that the code generator writes, for vectors of 32 bytes."""
    module = ir.Module()
    element = ir.FloatType() if dtype == FLOAT32 else ir.DoubleType()
    vector = ir.VectorType(element, 32 // dtype.itemsize)
    caller = ir.Function(module, ir.FunctionType(vector, [vector]), "caller")
    builder = ir.IRBuilder(caller.append_basic_block())
    builder.ret(getattr(vecmath, name)(builder, caller.args[0], fused))
    (body,) = (f for f in module.functions if f.name.startswith("ftuner_"))
    (block,) = body.blocks
    names = (
        i.callee.name.split(".")[1] if i.opname == "call" else i.opname for i in block.instructions
    )
    return Counter(name for name in names if name not in FREE)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_the_table_counts_the_code(name: str, dtype: DType) -> None:
    wanted = ELEMENTARY[name]
    multiply_adds = wanted.multiply_adds[dtype == FLOAT64]
    found = instructions(name, dtype, fused=True)
    assert found.pop("fma") == multiply_adds
    assert found.pop("fdiv", 0) == wanted.divisions
    assert found.total() == wanted.others
    # Without fused multiply-adds, each is two; erf splits a square in another way.
    apart = instructions(name, dtype, fused=False)
    assert apart.total() == pytest.approx(
        2 * multiply_adds + wanted.others + wanted.divisions, abs=4
    )


def milan(isa: str) -> Isa:
    return next(m for m in recorded_cpus() if m.name == "epyc-milan-2").isa(isa)


@pytest.mark.parametrize(
    ("op", "dtype", "lanes", "isa", "cycles"),
    [
        ("add", FLOAT32, 8, "avx2", 0.5),
        ("add", FLOAT32, 1, "avx2", 0.5),
        ("add", FLOAT32, 4, "sse2", 0.25),
        ("add", INT64, 8, "avx2", 1.0),
        ("multiply", INT64, 4, "avx2", 1.5),
        ("maximum", FLOAT32, 8, "avx2", 1.5),
        ("divide", FLOAT32, 8, "avx2", 5.0),
        ("divide", FLOAT64, 4, "avx2", 8.0),
        ("divide", INT64, 4, "avx2", 40.0),
        ("exp", FLOAT32, 8, "avx2", (9 + 16) / 2 + CALL_CYCLES),
        ("exp", FLOAT64, 4, "avx2", (14 + 16) / 2 + CALL_CYCLES),
        ("exp", FLOAT32, 4, "sse2", 9 / 2 + 16 / 4 + CALL_CYCLES),
        ("erf", FLOAT32, 8, "avx2", (30 + 21) / 2 + CALL_CYCLES),
        ("sin", FLOAT32, 8, "avx2", 8 * LIBRARY_CYCLES),
        ("constant", FLOAT32, 8, "avx2", 0.0),
    ],
)
def test_known_cycles(op: str, dtype: DType, lanes: int, isa: str, cycles: float) -> None:
    assert operation_cycles(op, dtype, lanes, milan(isa)) == pytest.approx(cycles)


def test_every_function_costs_something(recorded: CpuHardware) -> None:
    for isa in recorded.isas:
        for name, function in SCALAR_FUNCTIONS.items():
            for dtype in TENSOR_DTYPES.values():
                if dtype.kind in function.kinds:
                    lanes = isa.lanes(dtype)
                    one = operation_cycles(name, dtype, lanes, isa)
                    assert 0 < one < operation_cycles(name, dtype, 2 * lanes, isa), (name, dtype)


def test_epilogues() -> None:
    isa = milan("avx2")
    assert expression_cycles(ACCUMULATOR, FLOAT32, isa) == 0
    assert expression_operations(ACCUMULATOR) == 0
    biased = ACCUMULATOR + Operand("bias", "column")
    assert expression_cycles(biased, FLOAT32, isa) == pytest.approx(0.5 + 0.5)
    assert expression_operations(biased) == 1
    # Three products around an erfc.
    assert expression_cycles(gelu(ACCUMULATOR), FLOAT32, isa) == pytest.approx(
        3 * 0.5 + (23 + 19) / 2 + CALL_CYCLES
    )
    assert expression_operations(gelu(ACCUMULATOR)) == 4
