"""What functions of elements cost: cycles of a vector of them, by their instructions.

Throughput of code without branches: multiply-adds over their ports, all else over as many ports,
divisions over the divider. Latencies hide behind the vectors before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.expr import Binary, Constant, Expr, Operand, Unary, flatten
from ftuner.core.functions import COMPOSED
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning


class Instructions(NamedTuple):
    """Vector instructions of one elementary function."""

    multiply_adds: tuple[int, int]
    """Of float32 and of float64, whose polynomials are longer."""
    others: int
    divisions: int = 0
    splits: int = 0
    """More of them where the target has no fused multiply-add, besides the two that each
    multiply-add is: what gives the rest of a rounded product."""


ELEMENTARY: Mapping[str, Instructions] = {
    "exp": Instructions((9, 14), 16),
    "exp2_flushed": Instructions((6, 11), 9),
    "expm1": Instructions((10, 15), 14),
    "log": Instructions((4, 8), 27, 1),
    "tanh": Instructions((10, 15), 12, 1),
    "sigmoid": Instructions((9, 14), 18, 1),
    "erf": Instructions((30, 53), 21, 1, 4),
    "erfc": Instructions((23, 41), 19, 1, 4),
    "gelu": Instructions((25, 43), 18, 1, 5),
    "gelu_tanh": Instructions((18, 23), 23, 1, 30),
    "silu": Instructions((12, 17), 14, 1),
    "softplus": Instructions((16, 27), 15, 1),
    "mish": Instructions((14, 19), 20, 1),
    "swish": Instructions((12, 17), 24, 1, 9),
}
"""Derived: the instructions of the bodies that `codegen/llvm/ir/vector_math.py` writes, and which a
test counts again."""
_LIBRARY = frozenset({"sin", "cos", "power", "remainder", "fmod"})
_QUOTIENTS = frozenset({"divide", "remainder", "fmod"})
_SEVERAL: Mapping[str, int] = {
    "maximum": 3, "minimum": 3, "sign": 4, "isinf": 2, "cast": 2, "checked": 6,
}  # fmt: skip
"""Instructions of a vector, where they are more than one."""
_FREE = frozenset({"constant", "dim", "stage"})


def operation_cycles(op: str, dtype: DType, lanes: int, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of one operation of `core.functions`, or of another step of a nest than a load, on
    `lanes` elements of a dtype; one lane is a scalar."""
    if op in _FREE:
        return 0.0
    registers = max(-(-lanes * dtype.itemsize // isa.vector_bytes), 1)
    floats = dtype.kind == "float"
    if floats and op in ELEMENTARY:
        return registers * _elementary_cycles(op, dtype, isa, tuning)
    if floats and op in COMPOSED:
        body = COMPOSED[op](Operand("x", "tile"))
        return registers * expression_cycles(body, dtype, isa, tuning)
    if floats and op in ("divide", "sqrt"):
        return registers * _division_cycles(dtype, isa, tuning)
    if floats and op in _LIBRARY:
        return lanes * tuning.library_call_cycles
    if op in _QUOTIENTS:
        return lanes * tuning.integer_divide_cycles
    count = _SEVERAL.get(op, 1)
    if op == "power":
        # Four for each bit of the exponent.
        count = 4 * dtype.bits
    elif op == "multiply" and dtype.bits == 64 and not floats:
        # Of halves, before AVX-512.
        count = 3
    return registers * count / simple_per_cycle(isa)


def expression_cycles(expr: Expr, dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of an epilogue on one vector, the loads of its operands among them."""
    cycles = 0.0
    for step in flatten(expr):
        node = step.node
        if isinstance(node, Operand):
            cycles += 0.0 if node.kind == "tile" else 1.0 / isa.load_per_cycle
        elif isinstance(node, Unary | Binary) and node.op in ELEMENTARY:
            cycles += _elementary_cycles(node.op, dtype, isa, tuning)
        elif isinstance(node, Unary | Binary) and node.op in ("sqrt", "reciprocal", "div"):
            cycles += _division_cycles(dtype, isa, tuning)
        elif isinstance(node, Binary) and Constant in (type(node.x), type(node.y)):
            # An extremum too: only a second operand that may be NaN needs more than one.
            cycles += 1 / simple_per_cycle(isa)
        elif isinstance(node, Unary | Binary):
            cycles += _SEVERAL.get(node.op, 1) / simple_per_cycle(isa)
    return cycles


def expression_operations(expr: Expr) -> int:
    """Operations of an expression on one element; an elementary function counts as one."""
    return sum(isinstance(step.node, Unary | Binary) for step in flatten(expr))


def simple_per_cycle(isa: Isa) -> float:
    """Vector instructions a cycle: where a multiply-add is two instructions, twice as many as
    those."""
    return isa.fma_per_cycle if isa.fused else 2.0 * isa.fma_per_cycle


def _elementary_cycles(op: str, dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    """Of one vector."""
    found = ELEMENTARY[op]
    multiply_adds = found.multiply_adds[dtype.itemsize == 8] / isa.fma_per_cycle
    divisions = found.divisions * _division_cycles(dtype, isa, tuning)
    # The divider works beside the other ports.
    others = (found.others + (0 if isa.fused else found.splits)) / simple_per_cycle(isa)
    return max(multiply_adds + others, divisions) + tuning.call_cycles


def _division_cycles(dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    per_16_bytes = (
        tuning.float64_divide_cycles_per_16_bytes
        if dtype.itemsize == 8
        else tuning.float32_divide_cycles_per_16_bytes
    )
    return per_16_bytes * isa.vector_bytes / 16
