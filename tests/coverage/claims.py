"""What the code claims to do on an ISA, as cells: from the table of operators, the library of
uKernels, and what may end in the stores of a product."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

from tests.coverage.cells import (
    ACCESSES,
    BROADCAST,
    CONSTANT,
    CONTIGUOUS,
    INDEXED,
    LAYOUTS,
    PACKED_A,
    PERMUTED,
    REVERSED,
    SCALAR,
    STEPPED,
    STRIDED,
    WAYS,
    Cell,
    family_cell,
)
from tests.coverage.templates import TEMPLATES, VARIANTS, Template

from ftuner.core.cpu.tile import COLUMN, ROW, WINDOW
from ftuner.core.dtype import BOOL, DTYPES, NARROW_DTYPES, TENSOR_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.product import product_types
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops import control, text
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.ops.layer import layer_epilogue
from ftuner.ukernels.cpu.library import ANY_MATRICES, LAYERS, Operands, build_library

EPILOGUE = layer_epilogue(True, "relu", True)
"""The epilogue whose library is covered, beside the one of plain products."""
NARROW = Operands((ROW,), ("panels",))
"""Of products with narrow weights, whose rows a graph makes contiguous."""
WINDOWS = Operands((WINDOW,), ("panels",))
"""Of convolutions, whose weights are packed."""
SERVED = ((ACCUMULATOR, None, (ANY_MATRICES, LAYERS, WINDOWS)), (EPILOGUE, None, (LAYERS,)),
          *((ACCUMULATOR, dtype, (NARROW,)) for dtype in NARROW_DTYPES))  # fmt: skip
"""What products are made of: by epilogue and the dtype of B, if that is not A's."""


def claimed(hardware: CpuHardware, isa: str) -> set[Cell]:
    """All cells of an ISA of this machine."""
    return {*_of_operators(), *_of_nests(), *_of_products(hardware, isa), *_of_steps()}


@cache
def signatures(template: Template) -> tuple[tuple[DType, ...], ...]:
    """The dtypes of operands that an operator's shape rule takes."""
    operator = OPERATORS[template.op]
    found = []
    for dtypes in itertools.product(TENSOR_DTYPES.values(), repeat=len(template.shapes)):
        pairs = zip(dtypes, template.shapes, strict=True)
        types = [TensorType(dtype, shape) for dtype, shape in pairs]
        try:
            operator.infer(types, template.attributes, lambda *_, **__: None)
        except (GraphError, ShapeError):
            continue
        found.append(dtypes)
    return tuple(found)


def layouts(template: Template, number: int) -> tuple[str, ...]:
    """How an operand may lie: any way that its axes allow."""
    if number in template.weights:
        return (CONSTANT,)
    free = [n for n in template.shapes[number] if n != 1]
    left_out = {0: {PERMUTED, STEPPED, REVERSED, BROADCAST}, 1: {PERMUTED}}.get(len(free), set())
    found = tuple(layout for layout in LAYOUTS if layout not in left_out)
    # Operators of nothing but constants are folded.
    return (*found, CONSTANT) if may_be_constant(template) else found


def may_be_constant(template: Template) -> bool:
    """Whether one operand may be a constant while others are not."""
    return len(template.shapes) > 1 and not template.weights


def _of_operators() -> Iterator[Cell]:
    # Those that run graphs have no code of their own; no kernel reads or gives strings or maps.
    of_objects = {"translated", "maps", *(operator.name for operator in text.OPERATORS)}
    computed = set(OPERATORS) - {operator.name for operator in control.OPERATORS} - of_objects
    # Programs of users, of which `tests/tasks` covers graphs.
    computed -= {"scheduled"}
    # Some CPUs have no instruction for them: `test_word_products` and `test_word_attention` cover
    # those that do. Blocks are no dtype of tensors: `test_narrow_weights`.
    computed -= {"word_matmul", "word_convolution", "word_attention", "block_matmul"}
    # Two results a row, of layouts that nests of one have: `test_cpu_kernel_levels`.
    computed -= {"row_levels", "row_range"}
    assert set(TEMPLATES) == computed, set(TEMPLATES) ^ computed
    for op, templates in TEMPLATES.items():
        for name, values in VARIANTS.get(op, {}).items():
            yield from (("variant", op, name, str(value)) for value in values)
        for template in templates:
            for dtypes in signatures(template):
                yield from (("operator", op, str(i), str(t)) for i, t in enumerate(dtypes))
            if OPERATORS[op].on_host:
                continue  # Computed by NumPy, between two programs.
            for number in range(len(template.shapes)):
                yield from (("operand", op, str(number), x) for x in layouts(template, number))


def _of_nests() -> Iterator[Cell]:
    for dtype in TENSOR_DTYPES:
        yield from (("load", dtype, access) for access in (*ACCESSES, SCALAR))
        yield from (("store", dtype, x) for x in (CONTIGUOUS, STRIDED, INDEXED, SCALAR))


def _of_products(hardware: CpuHardware, isa: str) -> Iterator[Cell]:
    for dtype in DTYPES.values():
        for epilogue, b, served in SERVED:
            library = build_library(hardware, isa, product_types(dtype, b), epilogue)
            for operands in served:
                for family in library.families(operands):
                    yield family_cell(dtype, epilogue, family.name)
                sources = (f"{b} panels",) if b is not None else operands.b_sources
                packed = (PACKED_A,) if COLUMN in operands.a_layouts else ()
                for a, source in itertools.product((*operands.a_layouts, *packed), sources):
                    yield "operands", str(dtype), a, source
        yield from (("way", str(dtype), way) for way in WAYS)
        for op in epilogue_functions(1):
            yield "epilogue", str(dtype), op, "alone"
        for op in epilogue_functions(2):
            for how, side in itertools.product(("a number", "column", "matrix"), SIDES):
                yield "epilogue", str(dtype), op, f"{how} {side}"


SIDES = ("behind", "in front")
"""Of the operator, where its other operand is."""


def epilogue_functions(arity: int) -> list[str]:
    """Returns the scalar functions of so many operands that an epilogue of floats may hold: `rint`
    is in those of products of levels alone, which `runtime/cpu/test_word_products.py` runs."""
    rows = SCALAR_FUNCTIONS.items()
    return [n for n, row in rows if row.epilogue and row.arity == arity and n != "rint"]


def _of_steps() -> Iterator[Cell]:
    for dtype in DTYPES:
        for mask, causal in itertools.product(("none", dtype, str(BOOL)), ("plain", "causal")):
            yield "attention", dtype, mask, causal
    for dtype, which in itertools.product(TENSOR_DTYPES, ("largest", "smallest")):
        if dtype != str(BOOL):
            yield "order", dtype, which
