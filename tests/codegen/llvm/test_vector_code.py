"""The code of elementary functions and expressions: what it calls, and what is emitted once."""

import re

import pytest
from tests.codegen.llvm.objects import target_of
from tests.codegen.llvm.vector_running import ELEMENT, FUNCTIONS, PERIODIC, Case, module_of

from ftuner.codegen.llvm.ir import vector_math as vecmath
from ftuner.codegen.llvm.ir.functions import emit
from ftuner.codegen.llvm.objects.jit import compile_assembly
from ftuner.core.expr import ACCUMULATOR, Constant, Operand, applied, relu
from ftuner.errors import ExpressionError

AVX2 = Case("avx2", "float32", 8)


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("dtype", ELEMENT)
def test_no_isa_needs_a_c_library(isa, dtype):
    case = Case(isa, dtype, 8)

    def body(builder, x):
        for name in FUNCTIONS:
            x = getattr(vecmath, name)(builder, x, fused=case.fused)
        return vecmath.swish(builder, x, x, fused=case.fused)

    assembly = compile_assembly(module_of(body, case, 1), target_of(isa))
    called = set(re.findall(r"^\s+(?:callq?|bl|jmp|b)\s+([A-Za-z_]\w*)", assembly, re.MULTILINE))
    names = {re.sub("^ftuner_(.*?)_(v8)?f(32|64)(_unfused)?$", r"\1", c) for c in called}
    assert names == {*FUNCTIONS, "swish"}
    assert all(c.startswith("ftuner_") for c in called), called


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("name", PERIODIC)
def test_only_far_arguments_need_a_c_library(name, dtype):
    """The call is out of line, where no other function is inlined."""
    module = module_of(
        lambda b, x: getattr(vecmath, name)(b, x, fused=True), Case("avx2", dtype, 8), 1
    )
    functions = re.split(
        r"^(?=\w+:)", compile_assembly(module, target_of("avx2")), flags=re.MULTILINE
    )
    called = {
        text.split(":")[0]: set(re.findall(r"callq?\s+([A-Za-z_]\w*)", text))
        for text in functions
        if "call" in text
    }
    bits = ELEMENT[dtype].intrinsic_name
    far = f"ftuner_far_{name}_v8{bits}"
    assert called[far] == {f"{name}f" if bits == "f32" else name}
    assert called[f"ftuner_{name}_v8{bits}"] == {far}


def test_one_function_a_module_however_often_it_is_called():
    def body(builder, x):
        for _ in range(3):
            x = vecmath.erfc(builder, x, fused=True)
        return vecmath.exp(builder, x, fused=True)

    text = str(module_of(body, AVX2, 1))
    assert text.count("define internal") == 2


def test_equal_subexpressions_are_emitted_once():
    expr = applied("gelu", ACCUMULATOR + 1.0) + applied("gelu", ACCUMULATOR + 1.0)
    text = str(module_of(lambda b, x: emit(b, expr, {"acc": x}, True), AVX2, 1))
    assert len(re.findall(r"call <8 x float> @\"?ftuner_gelu", text)) == 1


def test_relu_is_one_instruction():
    module = module_of(lambda b, x: emit(b, relu(ACCUMULATOR), {"acc": x}, True), AVX2, 1)
    assembly = compile_assembly(module, target_of("avx2"))
    assert len(re.findall(r"vmaxps", assembly)) == 1
    assert not re.findall(r"vcmp|vblend", assembly)


def test_missing_operands_are_named():
    expr = ACCUMULATOR + Operand("bias", "column")
    with pytest.raises(ExpressionError, match="'bias' was not given"):
        module_of(lambda b, x: emit(b, expr, {"acc": x}, True), AVX2, 1)
    with pytest.raises(ExpressionError, match="no operand was given"):
        module_of(lambda b, x: emit(b, Constant(1.0), {}, True), AVX2, 1)
