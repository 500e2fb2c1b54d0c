"""Cycles of scalar functions on vectors, from the instructions that `core.functions` counts.

Throughput of code without branches: multiply-adds over their ports, everything else over as many
ports, divisions over the divider. Latencies are hidden by the vectors before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.expr import Apply, Constant, Expr, FlatStep, Operand, composed_steps, flatten
from ftuner.core.functions import SCALAR_FUNCTIONS, Instructions
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning

EXP2_FLUSHED = "exp2_flushed"
"""The weights of a softmax: a body in vector_math that is not a function of graphs."""
EXP2_FLUSHED_INSTRUCTIONS = Instructions((6, 11), (9, 9))
_QUOTIENTS = frozenset({"divide", "remainder", "fmod"})
_STEPS: Mapping[str, int] = {"cast": 2, "checked": 6, "philox": 120, "normal": 60}
"""Instructions of a vector in steps of a nest that are not scalar functions, if more than one: of
random numbers, for a vector of 64-bit words. Derived from the code; a test counts them again."""
_FREE = frozenset({"constant", "dim", "stage"})


def operation_cycles(op: str, dtype: DType, lanes: int, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of one operation of `core.functions`, or of another step of a nest than a load, on
    `lanes` elements of a dtype; one lane is a scalar."""
    if op in _FREE:
        return 0.0
    registers = max(-(-lanes * dtype.itemsize // isa.vector_bytes), 1)
    if dtype.kind == "float" and (op in SCALAR_FUNCTIONS or op == EXP2_FLUSHED):
        return registers * _function_cycles(op, dtype, max(lanes // registers, 1), isa, tuning)
    if op in _QUOTIENTS:
        return lanes * tuning.integer_divide_cycles
    row = SCALAR_FUNCTIONS.get(op)
    count = _STEPS.get(op, row.cost if row is not None and isinstance(row.cost, int) else 1)
    if op == "power":
        # Four instructions for each bit of the exponent.
        count = 4 * dtype.bits
    elif op == "multiply" and dtype.bits == 64:
        # Three multiplications of halves, before AVX-512.
        count = 3
    return registers * count / simple_per_cycle(isa)


def _function_cycles(op: str, dtype: DType, lanes: int, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of a function of floats on one vector of some lanes."""
    if op == EXP2_FLUSHED:
        return _body_cycles(EXP2_FLUSHED_INSTRUCTIONS, dtype, isa, tuning)
    row = SCALAR_FUNCTIONS[op]
    if row.composition is not None:
        return _steps_cycles(composed_steps(op), dtype, lanes, isa, tuning)
    if isinstance(row.cost, Instructions):
        return _body_cycles(row.cost, dtype, isa, tuning)
    if row.cost == "division":
        return _division_cycles(dtype, isa, tuning)
    if row.cost == "library":
        return lanes * tuning.library_call_cycles
    return row.cost / simple_per_cycle(isa)


def expression_cycles(expr: Expr, dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of an epilogue on one vector, including the loads of its operands."""
    steps = flatten(expr)
    loads = sum(isinstance(s.node, Operand) and s.node.kind != "tile" for s in steps)
    computing = _steps_cycles(steps, dtype, isa.lanes(dtype), isa, tuning)
    return loads / isa.load_per_cycle + computing


def _steps_cycles(
    steps: Sequence[FlatStep], dtype: DType, lanes: int, isa: Isa, tuning: CpuTuning
) -> float:
    """Cycles of the functions of an expression on one vector, without loads."""
    cycles = 0.0
    for step in steps:
        node = step.node
        if not isinstance(node, Apply):
            continue
        if node.function == "where":
            cycles += 1 / simple_per_cycle(isa)
        elif node.function in ("maximum", "minimum") and any(
            isinstance(a, Constant) for a in node.arguments
        ):
            # Only a second operand that may be NaN needs more than one instruction.
            cycles += 1 / simple_per_cycle(isa)
        else:
            cycles += _function_cycles(node.function, dtype, lanes, isa, tuning)
    return cycles


def expression_operations(expr: Expr) -> int:
    """Operations of an expression on one element; a function counts as one."""
    return sum(isinstance(step.node, Apply) for step in flatten(expr))


_COLUMNS: Mapping[DType, int] = {FLOAT32: 0, FLOAT64: 1}
"""Positions in pairs of numbers: of instructions in `core.functions`, of cycles of the divider."""


def simple_per_cycle(isa: Isa) -> float:
    """Vector instructions a cycle: where a multiply-add is two instructions, twice as many as
    those."""
    return isa.fma_per_cycle if isa.fused else 2.0 * isa.fma_per_cycle


def _body_cycles(found: Instructions, dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    """Cycles of a body in vector_math on one vector."""
    column = _COLUMNS[dtype]
    multiply_adds = found.multiply_adds[column] / isa.fma_per_cycle
    divisions = found.divisions * _division_cycles(dtype, isa, tuning)
    # The divider works in parallel to the other ports.
    others = (found.others[column] + (0 if isa.fused else found.splits)) / simple_per_cycle(isa)
    return max(multiply_adds + others, divisions) + tuning.call_cycles


def _division_cycles(dtype: DType, isa: Isa, tuning: CpuTuning) -> float:
    per_16_bytes = (
        tuning.float32_divide_cycles_per_16_bytes,
        tuning.float64_divide_cycles_per_16_bytes,
    )
    return per_16_bytes[_COLUMNS[dtype]] * isa.vector_bytes / 16
