"""Every operator that has a definition, as one Triton kernel in the interpreter, equals its
reference.

The cases are those of the CPU's general schedule. Each runs by the schedule that its extents
choose, and by blocks so small that there are several along every axis. Outputs lie between guards,
and there are fewer programs than tiles.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.llvm.nest_running import (
    LARGE,
    A,
    B,
    Bindings,
    C,
    Case,
    assert_equal,
    near_one,
    values,
)
from tests.codegen.triton.nest_launching import FEW, buffer, chosen, is_slow, launch, small
from tests.gpu_kernels import BLOCK_SIZES
from tests.guarded import Guard

from ftuner.core.access import Kernel, kernel_of
from ftuner.core.dtype import BOOL
from ftuner.core.evaluation import evaluate
from ftuner.core.gpu.schedule import Schedule, schedules_of, splits
from ftuner.core.index_expr import Nest, Operand, Stage, Store, Writer
from ftuner.errors import UnsupportedKernelError
from ftuner.schedules.nest.gpu_kernel import nest_kernel

OTHERS = frozenset({"float64", "int8", "int16", "uint8", "uint64"})
"""Dtypes of cases that are those of another dtype again, but for what is done to elements: they run
on one set of extents."""


def check(
    case: Case, kernel: Kernel, schedule: Schedule, bindings: Bindings, seed: int = 0,
    parts: int = 2,
) -> None:  # fmt: skip
    arrays = case.arrays(bindings, seed)
    (result,) = case.results()
    out = Guard(tuple(evaluate(n, bindings) for n in result.shape), result.dtype.name)
    made = nest_kernel(kernel, schedule)
    tensors = [buffer(x) for x in arrays]
    assert launch(made, tensors, [buffer(out.array)], bindings, parts=parts) == 0
    assert not out.damage(), f"{case} {bindings} {schedule}"
    assert_equal(case, out.array, arrays, bindings)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_a_reduction_are_combined(kind: str, parts: int) -> None:
    """Also where there are more parts than blocks, where results are scalars, and of no elements
    if the reduction has a result for these."""
    found = 0
    for case in CASES["reduce"]:
        kernel = case.kernel()
        schedule = small(kernel)
        if case.attributes["kind"] != kind or not splits(kernel, schedule):
            continue
        for bindings in [*case.extents[:2], *FEW]:
            check(case, kernel, replace(schedule, split=True), bindings, parts=parts)
            found += 1
    assert found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
@pytest.mark.parametrize("op", CASES)
def test_operator(op: str, third: int) -> None:
    """Every third case of an operator is in the core, at all extents; others are at the first ones,
    which are odd, one and whole vectors."""
    for number, case in enumerate(CASES[op]):
        if number % 3 != third:
            continue
        kernel = case.kernel()
        again = any(dtype in OTHERS for dtype, _ in case.operands)
        for seed, bindings in enumerate(case.extents[: 1 if again else 3 if third else None]):
            if not is_slow(case) and (bindings != LARGE or number % 3 == 0):
                check(case, kernel, chosen(kernel, bindings), bindings, seed)
        for bindings in FEW:
            if bindings in case.extents and (is_slow(case) or not again):
                check(case, kernel, small(kernel), bindings)


@pytest.mark.parametrize("kind", ["sum", "maximum", "product"])
def test_every_schedule_holds_what_it_says(kind: str) -> None:
    """Rows as long as a block, one shorter and one longer, of one element and of none."""
    make = near_one if kind == "product" else values
    case = Case("reduce", (("float32", (A, C)),), {"kind": kind, "axes": (1,)}, (make,),
                2.0**13, lambda x, **_: np.max(np.abs(x), initial=1.0))  # fmt: skip
    kernel = case.kernel()
    for schedule in schedules_of(kernel, BLOCK_SIZES):
        if is_slow(case):
            schedule = replace(schedule, block=(schedule.block[0], 16))
        columns = schedule.block[1]
        for count in (0, 1, columns - 1, columns, columns + 1, 2 * columns):
            if count <= columns or not schedule.whole:
                check(case, kernel, schedule, {"A": 3, "C": count})


def test_known_extents() -> None:
    """Extents of the text itself: masks only where blocks do not end with the axis."""
    cases = [
        Case("add", (("float32", (5, 1, 19)), ("float32", (3, 1)))),
        Case("transpose", (("float32", (4, 5, 37)),), {"perm": (2, 0, 1)}),
        Case("transpose", (("float32", (40, 2, 64)),), {"perm": (2, 1, 0)}),
        Case("softmax", (("float32", (3, 31)),), {"axis": 1, "log": False}, (values,), 64.0,
             lambda x, **kw: np.ones(1)),
        Case("softmax", (("float64", (5, 64)),), {"axis": 1, "log": True}, (values,), 64.0,
             lambda x, **kw: np.full(1, 20.0)),
        Case("softmax", (("float32", (2, 9, 64)),), {"axis": 1, "log": False}, (values,), 64.0,
             lambda x, **kw: np.ones(1)),
        Case("reduce", (("float32", (4, 0, 3)),), {"kind": "sum", "axes": (1,)}),
        Case("reduce", (("int32", (1, 1, 1)),), {"kind": "maximum", "axes": (0, 1, 2)}),
        Case("reduce", (("int8", (3, 5, 7, 2)),), {"kind": "sum", "axes": (0, 2)}),
        Case("reduce", (("float32", (3, 9000)),), {"kind": "minimum", "axes": (1,)}),
        Case("arg_reduce", (("float32", (7, 1)),), {"kind": "argmax", "axis": 1, "last": True}),
        Case("arg_reduce", (("int8", (7, 64)),), {"kind": "argmin", "axis": 1, "last": True}),
        Case("cumulative_sum", (("int32", (7, 1)),),
             {"axis": 1, "exclusive": True, "reverse": False}),
        Case("negative", (("int8", ()),)),
        Case("logical_not", (("bool", (131,)),)),
        Case("iota", (), {"shape": (3, 4), "axis": 0}),
    ]  # fmt: skip
    for case in cases:
        check(case, case.kernel(), chosen(case.kernel(), {}), {})


@pytest.mark.parametrize(("dim", "divisor"), [(A * 48, 16), (A * 24, 8), (A * 16 + 4, 4), (A, 1)])
def test_what_an_extent_is_a_multiple_of(dim: Any, divisor: int) -> None:
    """Threads load vectors where the text says that none ends at the edge."""
    made = nest_kernel(Case("negative", (("float32", (dim,)),)).kernel())
    assert made.parameters == (dim,)
    assert made.source.arguments[-1].divisor == divisor


def test_the_text_is_that_of_the_structure() -> None:
    """The same for all extents of run time, and in every process."""
    case = Case("softmax", (("float32", (B, C)),), {"axis": 1, "log": False})
    again = Case("softmax", (("float32", (A, C)),), {"axis": 1, "log": False})
    assert nest_kernel(case.kernel()).source == nest_kernel(again.kernel()).source


def test_golden(golden: Callable[[str, str], None]) -> None:
    case = Case("norm", (("float32", (A, 768)), ("float32", (768,))),
                {"axis": 1, "epsilon": 1e-5, "rms": True})  # fmt: skip
    golden("nest_norm.py", nest_kernel(case.kernel()).source.text)


def test_what_has_no_schedule_is_listed() -> None:
    writer = Writer()
    index = [writer.index(axis) for axis in range(3)]
    value = writer.step("load", BOOL, *index, payload=0)
    total = writer.step("stage", BOOL, payload=1)
    operand = Operand(BOOL, (2, 3, 4), (12, 4, 1))
    stages = (Stage("scan", value), Stage("median", value))
    nest = Nest((2,), (3, 4), (operand,), tuple(writer.steps), stages, (Store(total, (0,)),))
    with pytest.raises(UnsupportedKernelError) as raised:
        nest_kernel(kernel_of(nest, [Operand(BOOL, (2,), (1,))]))
    assert str(raised.value) == (
        "no GPU schedule for a scan beside other reductions; scan over several axes; reduction "
        "'median'; a reduction of bool"
    )
