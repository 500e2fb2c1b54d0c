"""What functions of elements cost is what their code has instructions."""

import re
from collections import Counter

import llvmlite.ir as ir
import pytest
from tests.conftest import recorded_cpus

from ftuner.codegen.llvm.ir import vector_arithmetic as vecbody
from ftuner.codegen.llvm.ir import vector_math as vecmath
from ftuner.codegen.llvm.ir.builder import IRBuilder
from ftuner.codegen.llvm.ir.functions import apply
from ftuner.codegen.llvm.objects.jit import Target, compile_assembly
from ftuner.core.dtype import DTYPES, FLOAT32, FLOAT64, INT64, TENSOR_DTYPES, DType
from ftuner.core.expr import (
    ACCUMULATOR,
    Apply,
    Operand,
    applied,
    composed_steps,
    composition,
    flatten,
)
from ftuner.core.functions import SCALAR_FUNCTIONS, Instructions
from ftuner.cost.functions import (
    EXP2_FLUSHED,
    EXP2_FLUSHED_INSTRUCTIONS,
    expression_cycles,
    expression_operations,
    operation_cycles,
)
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.hardware.tuning import CpuTuning

FREE = ("bitcast", "br", "phi", "ret")
BODIES: dict[str, Instructions] = {
    name: row.cost for name, row in SCALAR_FUNCTIONS.items() if isinstance(row.cost, Instructions)
} | {EXP2_FLUSHED: EXP2_FLUSHED_INSTRUCTIONS}

TUNING = CpuTuning()


def instructions(name: str, dtype: DType, fused: bool) -> Counter[str]:
    """Of the body that the code generator writes, for vectors of 32 bytes: those of vectors twice
    as wide count twice, and what is done for far arguments alone does not count."""
    module = ir.Module()
    element = ir.FloatType() if dtype == FLOAT32 else ir.DoubleType()
    vector = ir.VectorType(element, 32 // dtype.itemsize)
    arity = 1 if name == EXP2_FLUSHED else SCALAR_FUNCTIONS[name].arity
    caller = ir.Function(module, ir.FunctionType(vector, [vector] * arity), "caller")
    builder = IRBuilder(caller.append_basic_block())
    builder.ret(getattr(vecmath, name)(builder, *caller.args, fused=fused))
    (body,) = (f for f in module.functions if f.name.startswith(f"ftuner_{name}_"))
    found: Counter[str] = Counter()
    for block in (body.blocks[0], *body.blocks[2:]):
        for i in block.instructions:
            opname = i.callee.name.split(".")[1] if i.opname == "call" else i.opname
            if opname not in FREE:
                widened = any(
                    getattr(v.type, "element", None) == ir.DoubleType() for v in (i, *i.operands)
                )
                found[opname] += 1 + (widened and dtype == FLOAT32)
    return found


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_the_table_counts_the_code(name: str, dtype: DType) -> None:
    wanted = BODIES[name]
    multiply_adds = wanted.multiply_adds[dtype == FLOAT64]
    found = instructions(name, dtype, fused=True)
    assert found.pop("fma") == multiply_adds
    assert found.pop("fdiv", 0) == wanted.divisions
    assert found.total() == wanted.others[dtype == FLOAT64]
    apart = instructions(name, dtype, fused=False)
    others = wanted.others[dtype == FLOAT64] + wanted.divisions + wanted.splits
    assert apart.total() == 2 * multiply_adds + others


def compiled_instructions(name: str, dtype: DType) -> int:
    """Of a scalar function on a vector of 32 bytes, as AVX2's assembly has them, without what
    loads constants, moves registers, calls and returns."""
    arity = SCALAR_FUNCTIONS[name].arity
    module = ir.Module()
    element = ir.FloatType() if dtype == FLOAT32 else ir.DoubleType()
    vector = ir.VectorType(element, 32 // dtype.itemsize)
    function = ir.Function(module, ir.FunctionType(vector, [vector] * arity), "caller")
    builder = IRBuilder(function.append_basic_block())
    value = apply(builder, name, function.args, dtype, fused=True)
    if SCALAR_FUNCTIONS[name].result == "bool":
        zero, one = (vecbody.splat(vector, number) for number in (0.0, 1.0))
        value = builder.select(value, one, zero)
    builder.ret(value)
    target = Target("x86_64-unknown-linux-gnu", "x86-64", instruction_set("avx2").features)
    functions = re.split(r"^(?=\w+:$)", compile_assembly(module, target), flags=re.MULTILINE)
    assembly = "".join(text for text in functions if not text.startswith("ftuner_far_"))
    words = re.findall(r"^\t([a-z]\w*)\t?.*$", assembly, re.MULTILINE)
    moves = re.compile(r"v?mov|v?broadcast|vp?broadcast|call|ret|push|pop|jmp|sub$|add$")
    return sum(not moves.match(word) for word in words)


def uses_library(name: str) -> bool:
    row = SCALAR_FUNCTIONS[name]
    if row.composition is None:
        return row.cost == "library"
    nodes = (step.node for step in flatten(composition(name)))
    return any(
        uses_library(n.function) for n in nodes if isinstance(n, Apply) and n.function != "where"
    )


VECTORS = sorted(
    name
    for name, function in SCALAR_FUNCTIONS.items()
    if "float" in function.kinds and not uses_library(name)
)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_prices_follow_from_the_assembly(name: str, dtype: DType) -> None:
    """The two ports of AVX2 take the instructions of every function in the cycles of its price,
    within a third or two instructions; a division is priced for itself."""
    isa = milan("avx2")
    cycles = operation_cycles(name, dtype, 32 // dtype.itemsize, isa, TUNING)
    if name in BODIES:
        cycles -= TUNING.call_cycles
    if SCALAR_FUNCTIONS[name].composition is not None:
        for step in composed_steps(name):
            function = getattr(step.node, "function", "")
            if function in BODIES:
                cycles -= TUNING.call_cycles
            elif function in ("divide", "sqrt"):
                cycles -= operation_cycles(function, dtype, 32 // dtype.itemsize, isa, TUNING) - 0.5
    if name in ("divide", "sqrt"):
        assert compiled_instructions(name, dtype) == 1
        return
    assert 2 * cycles == pytest.approx(compiled_instructions(name, dtype), rel=1 / 3, abs=2)


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
        ("exp", FLOAT32, 8, "avx2", (9 + 16) / 2 + TUNING.call_cycles),
        ("exp", FLOAT64, 4, "avx2", (14 + 16) / 2 + TUNING.call_cycles),
        ("exp", FLOAT32, 4, "sse2", 9 / 2 + 16 / 4 + TUNING.call_cycles),
        ("erf", FLOAT32, 8, "avx2", (30 + 21) / 2 + TUNING.call_cycles),
        ("sin", FLOAT32, 8, "avx2", (12 + 20) / 2 + TUNING.call_cycles),
        ("power", FLOAT32, 8, "avx2", 8 * TUNING.library_call_cycles),
        ("constant", FLOAT32, 8, "avx2", 0.0),
    ],
)
def test_known_cycles(op: str, dtype: DType, lanes: int, isa: str, cycles: float) -> None:
    assert operation_cycles(op, dtype, lanes, milan(isa), TUNING) == pytest.approx(cycles)


def test_every_function_costs_something(recorded: CpuHardware) -> None:
    for isa in recorded.isas:
        for name, function in SCALAR_FUNCTIONS.items():
            for dtype in TENSOR_DTYPES.values():
                if dtype.kind in function.kinds:
                    lanes = isa.lanes(dtype)
                    one, two = (
                        operation_cycles(name, dtype, count * lanes, isa, TUNING)
                        for count in (1, 2)
                    )
                    assert 0 < one < two, (name, dtype)


def test_epilogues() -> None:
    isa = milan("avx2")
    assert expression_cycles(ACCUMULATOR, FLOAT32, isa, TUNING) == 0
    assert expression_operations(ACCUMULATOR) == 0
    biased = ACCUMULATOR + Operand("bias", "column")
    assert expression_cycles(biased, FLOAT32, isa, TUNING) == pytest.approx(0.5 + 0.5)
    assert expression_operations(biased) == 1
    assert expression_cycles(applied("gelu", ACCUMULATOR), FLOAT32, isa, TUNING) == pytest.approx(
        (25 + 18) / 2 + TUNING.call_cycles
    )
    assert expression_operations(applied("gelu", ACCUMULATOR)) == 1
