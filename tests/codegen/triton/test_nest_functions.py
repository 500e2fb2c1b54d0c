"""Corners of single functions, in kernels of nests."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.apart import Note, apart
from tests.codegen.llvm.nest_running import (
    CASTS_OF_FLOATS,
    A,
    Array,
    B,
    C,
    Case,
    assert_equal,
    below,
    floats_out_of_range,
    nan_among_infinities,
    one_nan_a_line,
    values_of,
)
from tests.codegen.triton.nest_launching import buffer, chosen, launch, small
from tests.gpu_kernels import BLOCK_SIZES
from tests.guarded import Guard, guarded
from tests.wild_products import assert_product, wild_matrix

from ftuner.core.access import Kernel
from ftuner.core.evaluation import evaluate
from ftuner.core.gpu.schedule import Schedule, schedules_of
from ftuner.graph.operators import OPERATORS
from ftuner.schedules.nest.gpu_kernel import nest_kernel


def run_one(case: Case, arrays: list[Array], schedule: Callable[[Kernel], Schedule] = small
            ) -> Array:  # fmt: skip
    (result,) = case.results()
    out = Guard(tuple(evaluate(n, {}) for n in result.shape), result.dtype.name)
    kernel = case.kernel()
    made = nest_kernel(kernel, schedule(kernel))
    assert launch(made, [buffer(x) for x in arrays], [buffer(out.array)], {}) == 0
    assert not out.damage()
    return out.array


def whole(kernel: Kernel) -> Schedule:
    return schedules_of(kernel, BLOCK_SIZES)[0]


@pytest.mark.parametrize("target", CASTS_OF_FLOATS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_become_integers_as_in_onnxruntime(source: str, target: str) -> None:
    case, x, wanted = floats_out_of_range(source, target)
    assert run_one(case, [x]).tolist() == wanted


@pytest.mark.parametrize("op", ["divide", "remainder", "fmod", "power"])
def test_integers_at_the_ends(op: str) -> None:
    """All pairs of int8 and of uint8: no zero and no overflow."""
    for dtype in ("int8", "uint8"):
        every = np.arange(256, dtype=np.uint8).view(dtype)
        x, y = np.repeat(every, 256), np.tile(every, 256)
        case = Case(op, ((dtype, x.shape), (dtype, y.shape)))
        found = run_one(case, [x, y], whole)
        with np.errstate(all="ignore"):
            assert np.array_equal(found, OPERATORS[op].reference(x, y))


@pytest.mark.parametrize("op", ["remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_tiny_and_huge_numbers(dtype: str, op: str) -> None:
    """Exact, however far apart the two are, and of numbers that are not normal too."""
    info: Any = np.finfo(dtype)
    tiny, huge, smallest = float(info.tiny), float(info.max) / 2, float(info.smallest_subnormal)
    sizes = np.array([0, smallest, 3 * smallest, tiny, 3 * tiny, 1.0, 2.5, 0.1, huge,
                      float(info.max), np.inf, np.nan], dtype)  # fmt: skip
    every = np.concatenate([sizes, -sizes, np.random.default_rng(0).normal(size=8).astype(dtype)])
    x, y = np.repeat(every, len(every)), np.tile(every, len(every))
    found = run_one(Case(op, ((dtype, x.shape), (dtype, y.shape))), [x, y], whole)
    with np.errstate(all="ignore"):
        assert np.array_equal(found, OPERATORS[op].reference(x, y), equal_nan=True)


def test_any_byte_but_zero_is_true() -> None:
    x = np.arange(256, dtype=np.uint8).view(bool)
    found = run_one(Case("logical_not", (("bool", x.shape),)), [x])
    assert found.view(np.uint8).tolist() == [1] + [0] * 255


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [small, whole])
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_nan_is_the_extremum(dtype: str, axis: int, kind: str, schedule: Any) -> None:
    case, x = one_nan_a_line(dtype, axis, kind)
    assert np.isnan(run_one(case, [x], schedule)).all()


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [small, whole])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_is_found_before_infinities(axis: int, kind: str, schedule: Any) -> None:
    for case, operand, places in nan_among_infinities(axis, kind):
        assert run_one(case, [operand], schedule).tolist() == places


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [small, whole])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_do_not_depend_on_the_order_of_factors(
    dtype: str, axis: int, schedule: Any
) -> None:
    for length in (1, 2, 7, 37):
        rows = wild_matrix(dtype, length)
        x = np.ascontiguousarray(rows if axis == 1 else rows.T)
        case = Case("reduce", ((dtype, x.shape),), {"kind": "product", "axes": (axis,)})
        with np.errstate(all="ignore"):
            found = run_one(case, [x], schedule).tolist()
        for value, row in zip(found, rows, strict=True):
            assert_product(value, row)


def test_exclusive_sums_do_not_see_their_own_element() -> None:
    """Subtracting it again would leave NaN of an infinity, and rounding errors."""
    x = np.array([[1e8, np.inf, 1, 2, 3, 4, 5, 6, 7, 8, 9]], np.float32)
    attributes = {"axis": 1, "exclusive": True, "reverse": False}
    found = run_one(Case("cumulative_sum", (("float32", x.shape),), attributes), [x])
    assert found.tolist() == [[0, 1e8, *[np.inf] * 9]]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_products(axis: int, exclusive: bool) -> None:
    rng = np.random.default_rng(0)
    attributes = {"axis": axis, "exclusive": exclusive, "reverse": False}
    for x in (rng.uniform(0.9, 1.1, (3, 70)).astype(np.float32), rng.integers(-3, 4, (5, 9))):
        case = Case("cumulative_product", ((x.dtype.name, x.shape),), attributes)
        wanted = OPERATORS["cumulative_product"].reference(x, **attributes)
        np.testing.assert_allclose(run_one(case, [x]), wanted, rtol=1e-5)


def test_nothing_behind_an_operand_is_read() -> None:
    """Operands and results end at a page that faults."""
    cases = [
        Case("add", (("float32", (C,)), ("float32", (C,)))),
        Case("logical_not", (("bool", (C,)),)),
        Case("reduce", (("float32", (A, C)),), {"kind": "sum", "axes": (1,)}, roundings=256.0),
        Case("transpose", (("float32", (A, C)),), {"perm": (1, 0)}),
        Case("softmax", (("float64", (A, C)),), {"axis": 1, "log": False}, roundings=64.0),
        Case("cumulative_sum", (("int64", (A, C)),),
             {"axis": 1, "exclusive": True, "reverse": True}),
        Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 1},
             (values_of, below(C))),
        Case("slice", (("float32", (A, C)),), {
            "starts": (0, C - 1), "steps": (1, -1), "shape": (A, C)}),
        Case("pad", (("float32", (C,)), ("float32", ())), {
            "before": (3,), "after": (2,), "mode": "constant"}),
    ]  # fmt: skip

    def run(note: Note) -> None:
        for case in cases:
            kernel = case.kernel()
            for c in (1, 15, 16, 63):
                note(f"{case}, C = {c}")
                bindings = {"A": 3, "B": 5, "C": c}
                arrays = [guarded(x) for x in case.arrays(bindings, c)]
                (result,) = case.results()
                shape = tuple(evaluate(n, bindings) for n in result.shape)
                out = guarded(np.zeros(shape, result.dtype.name))
                for schedule in (chosen(kernel, bindings), small(kernel)):
                    made = nest_kernel(kernel, schedule)
                    launch(made, [buffer(x) for x in arrays], [buffer(out)], bindings)
                    assert_equal(case, out, arrays, bindings)

    apart(run)


def test_a_pad_reads_nothing_of_an_operand_without_elements() -> None:
    case = Case("pad", (("float32", (A, C)), ("float32", ())), {
        "before": (1, 2), "after": (1, 0), "mode": "constant"})  # fmt: skip
    nowhere = torch.empty(0, dtype=torch.float32)
    out = torch.empty((2, 5), dtype=torch.float32)
    launch(nest_kernel(case.kernel()), [nowhere, torch.tensor(3.0)], [out], {"A": 0, "C": 3})
    assert torch.equal(out, torch.full((2, 5), 3.0))
