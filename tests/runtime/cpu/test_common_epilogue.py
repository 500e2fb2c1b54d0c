"""Products share uKernels whose epilogue is a sum, limited or not, and have functions of their own
for other epilogues: results are to the bit those of the expression."""

from itertools import product

import numpy as np
import pytest
from tests.reference import Array, uniform

from ftuner.core.cpu.common_epilogue import COMMON, LIMITS, has_shared_code, shared
from ftuner.core.dtype import DTYPES, DType
from ftuner.core.expr import ACCUMULATOR, Expr, Operand, applied, clip, operands, relu
from ftuner.core.expr_values import evaluate
from ftuner.core.product import product_types
from ftuner.planner.cpu.plan import Choice, Grid
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.packed_weights import pack
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import words
from ftuner.ukernels.cpu.library import LAYERS, families_of_calls

BIAS, ADDED = Operand("bias", "column"), Operand("added", "matrix")
SUMS: dict[str, Expr] = {
    "sum": ACCUMULATOR,
    "bias": ACCUMULATOR + BIAS,
    "bias first": BIAS + ACCUMULATOR,
    "matrix": ADDED + ACCUMULATOR,
    "both": ACCUMULATOR + BIAS + ADDED,
    "both, matrix first": ADDED + (BIAS + ACCUMULATOR),
}
LIMITED = {
    "free": lambda x: x,
    "relu": relu,
    "clip": lambda x: clip(x, -0.25, 0.5),
    "below": lambda x: applied("minimum", x, 0.125),
}
OTHERS: list[Expr] = [
    ACCUMULATOR * BIAS,
    relu(ACCUMULATOR + BIAS) + ADDED,
    ACCUMULATOR * BIAS + Operand("rows", "row"),
]


@pytest.mark.each_value
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("m", [1, 2, 5, 23])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_to_the_bit_what_the_expression_gives(
    backend: CpuBackend, dtype: DType, m: int, parts: int
) -> None:
    """`parts`: of k, whose sums are added up before the epilogue."""
    n, k, name = 37, 50, dtype.name
    types = product_types(dtype)
    library = backend.kernels.library(types, COMMON)
    width = library.widths[0]
    products = backend.products(types, COMMON, library.families(LAYERS, n, width))
    x, weight = uniform(1, (m, k), name), uniform(2, (n, k), name)
    arrays = {"bias": uniform(3, (n,), name), "added": uniform(4, (m, n), name)}
    arrays["rows"] = uniform(5, (m, 1), name)
    x[-1, 0], arrays["added"][0, -1] = np.nan, np.inf
    panels = pack(products, weight, width)
    choice = Choice(Grid(1, 1, 1, parts), width, 25, False, False, False)
    problem = panels.problem(m, parts)
    plan = products.planner.lay_out(problem, products.planner.candidate(problem, choice))

    def result(expr: Expr) -> Array:
        epilogue, read = shared(expr), [arrays[operand.name] for operand in operands(expr)]
        used = products
        if epilogue.epilogue != COMMON:
            own = backend.kernels.library(types, expr)
            used = backend.products(types, expr, own.families(LAYERS, n, width))
            assert used.compiled.kernels is products.compiled.kernels
        given = dict(zip(epilogue.places, read, strict=True))
        given |= enumerate(np.array(epilogue.limits, name)[:, None], LIMITS)
        placed = epilogue.placed([0 if one.ndim == 1 else one.strides[0] for one in read])
        y, table = np.full((m, n), 99, name), words(given)
        strides = Strides(*x.strides, 0, 0, y.strides[0], (), placed, False)
        used.launch(used.encode(plan, strides), x, panels.packed, y, table.address)
        return y

    sums = result(ACCUMULATOR)
    for expr, limited in product(SUMS.values(), LIMITED.values()):
        wanted = limited(expr)
        expected = evaluate(wanted, {"acc": sums, **arrays})
        np.testing.assert_array_equal(result(wanted), expected)
    # Halves are rounded when they are stored: their uKernels apply the epilogue to sums before.
    for wanted in OTHERS if has_shared_code(types, OTHERS[0]) else ():
        expected = evaluate(wanted, {"acc": sums, **arrays})
        np.testing.assert_array_equal(result(wanted), expected)


def test_calls_have_the_ukernels_of_layers(backend: CpuBackend) -> None:
    """What `tune` compiles for `matmul` serves layers and models, too."""
    types = product_types(DTYPES["float32"])
    own, common = (
        {kernel.symbol for family in families_of_calls(library) for kernel in family.kernels}
        for library in (backend.kernels.library(types, e) for e in (ACCUMULATOR, COMMON))
    )
    assert common < own


@pytest.mark.parametrize(
    "expr",
    [
        ACCUMULATOR * BIAS,
        ACCUMULATOR + ADDED + BIAS,
        ACCUMULATOR + BIAS + Operand("other", "column"),
        relu(ACCUMULATOR + BIAS) + ADDED,
        applied("maximum", 0.0, ACCUMULATOR),
        applied("maximum", applied("minimum", ACCUMULATOR, 1.0), 0.0),
        ACCUMULATOR + Operand("rows", "row"),
        ACCUMULATOR + 1.0,
        BIAS + ADDED,
        applied("gelu", ACCUMULATOR + BIAS),
    ],
    ids=str,
)
def test_others_are_not_common(expr: Expr) -> None:
    assert shared(expr).epilogue == expr
