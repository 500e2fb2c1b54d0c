"""Functions and expressions on vectors, compiled for an ISA and run where the machine has it."""

from dataclasses import dataclass

import numpy as np
import pytest
from llvmlite import ir
from tests.codegen.llvm.objects import loaded

from ftuner.codegen.llvm.ir.builder import IRBuilder
from ftuner.codegen.llvm.ir.functions import emit

FUNCTIONS = (
    "exp", "expm1", "log", "tanh", "sigmoid", "erf", "erfc", "gelu", "gelu_tanh", "silu",
    "softplus", "mish", "atan",
)  # fmt: skip
PERIODIC = ("sin", "cos")
ELEMENT = {"float32": ir.FloatType(), "float64": ir.DoubleType()}


@dataclass(frozen=True)
class Case:
    """A vector type on an ISA; zero lanes is a scalar."""

    isa: str
    dtype: str
    lanes: int

    @property
    def fused(self) -> bool:
        return self.isa != "sse2"

    @property
    def type(self) -> ir.Type:
        element = ELEMENT[self.dtype]
        return ir.VectorType(element, self.lanes) if self.lanes else element

    def __str__(self) -> str:
        return f"{self.isa}-{self.dtype}x{self.lanes}"


# The registers of each ISA, vectors wider than them, an odd length and a scalar.
CASES = [
    Case("sse2", "float32", 4),
    Case("sse2", "float32", 16),
    Case("sse2", "float64", 2),
    Case("avx2", "float32", 8),
    Case("avx2", "float32", 16),
    Case("avx2", "float32", 3),
    Case("avx2", "float32", 0),
    Case("avx2", "float64", 4),
    Case("avx2", "float64", 8),
    Case("avx512", "float32", 16),
    Case("avx512", "float64", 8),
    Case("neon", "float32", 4),
    Case("neon", "float64", 2),
]
all_cases = pytest.mark.parametrize("case", CASES, ids=str)


def module_of(body, case, inputs):
    """A module with `void f(ptr in..., ptr out, i64 vectors)`, applying `body` vector by vector."""
    module = ir.Module()
    i64 = ir.IntType(64)
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * (inputs + 1) + [i64])
    function = ir.Function(module, signature, "f")
    *sources, destination, vectors = function.args
    entry = function.append_basic_block("entry")
    loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
    IRBuilder(entry).branch(loop)
    builder = IRBuilder(loop)
    i = builder.phi(i64)
    i.add_incoming(i64(0), entry)
    first = builder.mul(i, i64(max(case.lanes, 1)))
    align = np.dtype(case.dtype).itemsize

    def address(base):
        return builder.gep(base, [first], source_etype=ELEMENT[case.dtype])

    loaded = [builder.load(address(s), typ=case.type, align=align) for s in sources]
    builder.store(body(builder, *loaded), address(destination), align=align)
    following = builder.add(i, i64(1))
    i.add_incoming(following, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, vectors), loop, done)
    IRBuilder(done).ret_void()
    return module


def run(body, case, *arrays):
    """`body` of the arrays, elementwise, compiled for the case; skips if the host lacks the ISA."""
    module = module_of(body, case, len(arrays))
    try:
        (function,) = loaded(module, case.isa, ["f"], len(arrays) + 1, 1)
    except AssertionError as lacking:
        pytest.skip(str(lacking))
    lanes = max(case.lanes, 1)
    count = arrays[0].size
    vectors = -(-count // lanes)
    padded = [np.pad(a.astype(case.dtype), (0, vectors * lanes - count)) for a in arrays]
    out = np.empty_like(padded[0])
    function(*(a.ctypes.data for a in (*padded, out)), vectors)
    return out[:count]


def run_expression(expr, case, **arrays):
    def body(builder, *values):
        return emit(builder, expr, dict(zip(arrays, values, strict=True)), case.fused)

    return run(body, case, *arrays.values())
