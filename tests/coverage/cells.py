"""Cells of the coverage table: what an execution was of.

    operator    operator, number of the operand, its dtype
    variant     operator, attribute, value
    operand     operator, number of the operand, how it lay
    load        dtype, how the elements that a vector loads lie
    store       dtype, the same of what it stores
    family      dtype, kind of epilogue, name of the family of uKernels
    operands    dtype, how A of a product lies, how B does
    way         dtype, what a plan does
    epilogue    dtype, operator that ends in the stores of a product, how it reads its other operand
    attention   dtype, dtype of the mask, whether it is causal
    order       dtype, whether the largest or the smallest elements

A table is of one ISA.
"""

from collections.abc import Iterator
from typing import Any

from ftuner.core.access import Access, Kernel
from ftuner.core.cpu.common_epilogue import COMMON
from ftuner.core.cpu.schedule import schedule_of
from ftuner.core.cpu.tile import COLUMN
from ftuner.core.dim import symbols_of
from ftuner.core.dtype import DType
from ftuner.core.evaluation import evaluate
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.product import ProductTypes
from ftuner.graph.buffers import View
from ftuner.graph.placement import Form
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.plan import Plan, Problem

Cell = tuple[str, ...]

CONTIGUOUS, PERMUTED, STEPPED, REVERSED, BROADCAST = (
    "contiguous", "permuted", "stepped", "reversed", "broadcast",
)  # fmt: skip
EXPRESSION, CONSTANT = "expression", "constant"
LAYOUTS = (CONTIGUOUS, PERMUTED, STEPPED, REVERSED, BROADCAST, EXPRESSION)
"""How an operand of a graph may lie; an expression is not in memory."""
SAME, STRIDED, INDEXED, SCALAR = "same", "strided", "indexed", "scalar"
ACCESSES = (CONTIGUOUS, SAME, STRIDED, INDEXED)
"""How elements lie along vectors: one after the other, all in one place, apart, or where data
tells."""
WAYS = (
    "one worker", "cuts batch", "cuts m", "cuts n", "cuts k", "blocks of k", "packs A", "packs B",
    "packs B together", "dot", "widens", "chunks of batch", "chunks of panels",
)  # fmt: skip
PACKED_A = "packed"
"""Of an A that is contiguous along neither axis, or far apart."""


def layout_of(form: Form) -> str | None:
    """How an operand lies; None where it is a product or a reduction that is not stored yet."""
    if isinstance(form, View):
        return CONSTANT if form.buffer.array is not None else _layout_of_view(form)
    return EXPRESSION if form.fused is not None and form.fused.injective else None


def _layout_of_view(view: View) -> str:
    dims = (*view.shape, *view.layout.strides)
    # Symbols of different large values.
    values = {name: 101 + 2 * i for i, name in enumerate(symbols_of(dims))}
    numbers = [evaluate(dim, values) for dim in dims]
    rank = len(view.shape)
    pairs = zip(numbers[rank:], numbers[:rank], strict=True)
    axes = [(stride, n) for stride, n in pairs if n != 1]
    if any(stride == 0 for stride, _ in axes):
        return BROADCAST
    if any(stride < 0 for stride, _ in axes):
        return REVERSED
    expected = 1
    for stride, n in sorted(axes):
        if stride != expected:
            return STEPPED
        expected *= n
    return CONTIGUOUS if axes == sorted(axes, reverse=True) else PERMUTED


def kernel_cells(kernel: Kernel, vector_bytes: int) -> Iterator[Cell]:
    """What a nest loads and stores."""
    schedule = schedule_of(kernel, vector_bytes, CpuTuning().nest_block_elements)
    for step, access in zip(kernel.steps, kernel.accesses, strict=True):
        if access is not None:
            yield "load", str(step.dtype), _access(access, schedule.vector)
    for value, wide, target in zip(kernel.values, kernel.wide, kernel.targets, strict=True):
        by_lanes = schedule.vector is not None and (wide or schedule.vector < len(kernel.kept))
        dtype = str(kernel.steps[value].dtype)
        yield "store", dtype, _access(target, schedule.vector if by_lanes else None)


def _access(access: Access, vector: int | None) -> str:
    if access.rest:
        return INDEXED
    if vector is None:
        return SCALAR
    return {0: SAME, 1: CONTIGUOUS}.get(access.coefficients[vector], STRIDED)  # type: ignore[call-overload]


def operands_cell(problem: Problem, types: ProductTypes) -> Cell:
    """How A and B of a product lie."""
    a = PACKED_A if problem.a_must_pack and problem.a_layout == COLUMN else problem.a_layout
    return "operands", str(types.a), a, f"{types.b} panels" if types.widens else problem.b_source


def family_cell(dtype: DType, epilogue: Expr, name: str) -> Cell:
    # Plain products have the uKernels of the common epilogue, without operands.
    plain = epilogue in (ACCUMULATOR, COMMON)
    return "family", str(dtype), "plain" if plain else "with epilogue", name


def plan_cells(plan: Plan, types: ProductTypes, epilogue: Expr) -> Iterator[Cell]:
    """What a plan runs, and how."""
    problem, choice, dtype = plan.problem, plan.choice, types.a
    yield operands_cell(problem, types)
    for band in plan.bands():
        yield family_cell(dtype, epilogue, band.family.name)
    parts_b, parts_m, parts_n, parts_k = choice.grid
    done: dict[str, Any] = {
        "one worker": choice.grid == (1, 1, 1, 1), "cuts batch": parts_b > 1, "cuts m": parts_m > 1,
        "cuts n": parts_n > 1, "cuts k": parts_k > 1, "blocks of k": choice.kc < problem.k,
        "packs A": choice.pack_a, "packs B": choice.pack_b, "packs B together": choice.shared_pack,
        "dot": choice.dot, "widens": choice.widen,
        "chunks of batch": plan.chunks and not plan.chunk_by_panels,
        "chunks of panels": plan.chunks and plan.chunk_by_panels,
    }  # fmt: skip
    assert tuple(done) == WAYS
    for way, is_done in done.items():
        if is_done:
            yield "way", str(dtype), way
