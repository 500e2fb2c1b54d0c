"""Every operator that has a definition, as one Triton kernel in the interpreter, equals its
reference.

The cases are those of the CPU's general schedule. Each runs by the schedule that its extents
choose, and by blocks so small that there are several along every axis. Outputs lie between guards,
and there are fewer programs than tiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.codegen.nest_cases import CASES
from tests.codegen.nest_running import (
    LARGE,
    A,
    Array,
    B,
    Bindings,
    C,
    Case,
    Guarded,
    assert_equal,
    before_a_wall,
    below,
    extreme,
    near_one,
    values,
    values_of,
)

from ftuner.core.affine import Kernel, kernel_of
from ftuner.core.block_schedule import BlockSchedule, block_schedules
from ftuner.core.definition import Nest, Operand, Stage, Store, Writer
from ftuner.core.dim import evaluate, minimum
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, GPU_DTYPES, INT64, TENSOR_DTYPES, DType
from ftuner.errors import UnsupportedKernelError
from ftuner.graph.ir import TensorType
from ftuner.graph.operators import OPERATORS

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.codegen.triton.nest_launching import buffer, chosen, launch, small  # noqa: E402

from ftuner.codegen.triton.nest import nest_kernel  # noqa: E402

FEW = ({"A": 1, "B": 7, "C": 13}, {"A": 3, "B": 2, "C": 0})
"""What small blocks are run on."""
OTHERS = frozenset({"float64", "int8", "int16", "uint8", "uint64"})
"""Dtypes of cases that are those of another dtype again, but for what is done to elements: they run
on one set of extents."""


def check(case: Case, kernel: Kernel, schedule: BlockSchedule, bindings: Bindings, seed: int = 0
          ) -> None:  # fmt: skip
    arrays = case.arrays(bindings, seed)
    (result,) = case.results()
    out = Guarded(tuple(evaluate(n, bindings) for n in result.shape), result.dtype.name)
    made = nest_kernel(kernel, schedule)
    assert launch(made, [buffer(x) for x in arrays], [buffer(out.array)], bindings) == 0
    assert out.untouched, f"{case} {bindings} {schedule}"
    assert_equal(case, out.array, arrays, bindings)


def is_slow(case: Case) -> bool:
    """Whether the interpreter takes a reduction element by element."""
    return case.op == "reduce" and case.attributes["kind"] == "product"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", CASES)
def test_operator(op: str) -> None:
    for number, case in enumerate(CASES[op]):
        kernel = case.kernel()
        again = any(dtype in OTHERS for dtype, _ in case.operands)
        for seed, bindings in enumerate(case.extents[: 1 if again else None]):
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
    for schedule in block_schedules(kernel):
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


# Floats of two bytes.


class HalfCase(Case):
    """A case on float16 or bfloat16; arrays of the latter are float32 that it holds exactly."""

    @property
    def types(self) -> Any:
        return tuple(TensorType((TENSOR_DTYPES | GPU_DTYPES)[d], s) for d, s in self.operands)

    def arrays(self, bindings: Bindings, seed: int) -> list[Array]:
        held = tuple(("float32" if d == "bfloat16" else d, s) for d, s in self.operands)
        found = Case(self.op, held, makes=self.makes).arrays(bindings, seed)
        cut = [d == "bfloat16" for d, _ in self.operands]
        return [_cut(x) if c else x for x, c in zip(found, cut, strict=True)]


def _cut(x: Array) -> Array:
    """float32 with the significand of bfloat16."""
    return np.asarray(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _halved(op: str, half: str) -> HalfCase | None:
    """The first case of an operator on float32, on a half instead."""
    for case in CASES[op]:
        dtypes = [d for d, _ in case.operands]
        if "float32" in dtypes and "float64" not in dtypes and op != "cast":
            operands = tuple((half if d == "float32" else d, s) for d, s in case.operands)
            makes = tuple(values if make is extreme else make for make in case.makes)
            return HalfCase(op, operands, case.attributes, makes, case.roundings, case.size)
    return None


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    return buffer(array).to(torch.bfloat16) if dtype == "bfloat16" else buffer(array)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", [op for op in CASES if _halved(op, "float16")])
def test_halves_are_computed_in_float32(op: str, half: DType) -> None:
    """Results are rounded once, when they are stored: cut, for bfloat16 in the interpreter."""
    case = _halved(op, half.name)
    assert case is not None
    kernel = case.kernel()
    (result,) = case.results()
    blocks_are_small = half == FLOAT16 or is_slow(case)
    bindings = FEW[0] if blocks_are_small else case.extents[0]
    schedule = small(kernel) if blocks_are_small else chosen(kernel, bindings)
    arrays = case.arrays(bindings, 5)
    tensors = [_tensor(x, d) for x, (d, _) in zip(arrays, case.operands, strict=True)]
    shape = tuple(evaluate(n, bindings) for n in result.shape)
    stored = {BOOL: torch.uint8, INT64: torch.int64, half: getattr(torch, half.name)}
    out = torch.empty(shape, dtype=stored[result.dtype])
    assert launch(nest_kernel(kernel, schedule), tensors, [out], bindings) == 0
    _assert_near(case, half, out, arrays, bindings)


def _assert_near(
    case: Case, half: DType, out: torch.Tensor, arrays: list[Array], bindings: Bindings
) -> None:
    attributes = case.bound(bindings)
    floats = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays]
    with np.errstate(all="ignore"):
        wide = np.asarray(OPERATORS[case.op].reference(*floats, **attributes))
        size = np.abs(wide) if case.size is None else np.abs(case.size(*floats, **attributes))
    if out.dtype in (torch.uint8, torch.int64):
        assert np.array_equal(out.numpy(), wide.astype(np.int64)), case
        return
    found, rounded = out.double().numpy(), torch.tensor(wide).to(out.dtype).double().numpy()
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True), case
    allowed = 2 * half.unit_roundoff * np.abs(wide) + case.roundings * 2.0**-24 * size + 2.0**-24
    with np.errstate(invalid="ignore"):
        assert np.all((np.abs(found - wide) <= allowed)[finite]), case


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "int8", "uint64", "bool"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float64", "int32", "bool"])
def test_casts_of_halves(source: str, target: str) -> None:
    """Also within an expression, where the register stays float32: what is cast is rounded."""
    x = np.array([0, 1, 2.5, 100, 63.75, 3.999, 0.1] * 3)
    if source in ("int32", "bool"):
        x = x.astype(source).astype(np.float64)
    given = torch.tensor(x).to(getattr(torch, source))
    types = (TENSOR_DTYPES | GPU_DTYPES)[source], (TENSOR_DTYPES | GPU_DTYPES)[target]
    writer = Writer()
    value = writer.cast(writer.step("load", types[0], writer.index(0), payload=0), types[1])
    wide = writer.cast(value, TENSOR_DTYPES["float64"])
    shape = (len(x),)
    operands = (Operand(types[0], shape, (1,)),)
    nest = Nest(shape, (), operands, tuple(writer.steps), (), (Store(wide, (0,)),))
    out = torch.empty(shape, dtype=torch.float64)
    kernel = nest_kernel(kernel_of(nest, [Operand(TENSOR_DTYPES["float64"], shape, (1,))]))
    launch(kernel, [given.view(torch.uint8) if source == "bool" else given], [out], {})
    expected = given.to(getattr(torch, target)).double()
    roundoff = types[1].unit_roundoff if types[1].kind == "float" else 0.0
    assert torch.all((out - expected).abs() <= 2 * roundoff * expected.abs())
    # Nothing is left of what the format does not hold.
    assert torch.equal(out, out.to(getattr(torch, target)).double())


# Elements written where data tells.


@pytest.mark.parametrize("kind", ["none", "add", "multiply", "maximum", "minimum"])
def test_scatter(kind: str) -> None:
    """Into a copy of the first operand, element by element: of equal indices the last decides."""
    cases = [
        Case("scatter_elements", ((dtype, (B, C)), ("int64", (A, C)), (dtype, (A, C))),
             {"axis": 0, "kind": kind}, (values_of, below(B), values_of))
        for dtype in ("float32", "int8", "uint64")
    ]  # fmt: skip
    cases += [
        Case("scatter_elements", (("float32", (A, C)), ("int32", (A, B)), ("float32", (A, B))),
             {"axis": 1, "kind": kind}, (values_of, below(C), values_of)),
        Case("scatter_nd", (("int32", (B, C, 3)), ("int32", (A, 2)), ("int32", (A, 3))),
             {"kind": kind}, (values_of, below(minimum(B, C)), values_of)),
        Case("scatter_nd", (("float32", (B,)), ("int64", (A, 1)), ("float32", (A,))),
             {"kind": kind}, (values_of, below(B), values_of)),
    ]  # fmt: skip
    for case in cases:
        kernel = case.kernel()
        for bindings in ({"A": 7, "B": 5, "C": 11}, {"A": 1, "B": 1, "C": 1},
                         {"A": 0, "B": 2, "C": 3}):  # fmt: skip
            for schedule in (chosen(kernel, bindings), small(kernel)):
                arrays = case.arrays(bindings, 3)
                out = Guarded(arrays[0].shape, arrays[0].dtype.name)
                out.array[...] = arrays[0]
                made = nest_kernel(kernel, schedule)
                given = [buffer(x) for x in arrays]
                assert launch(made, given, [buffer(out.array)], bindings) == 0
                assert out.untouched
                expected = OPERATORS[case.op].reference(*arrays, **case.attributes)
                assert np.allclose(out.array, expected, rtol=1e-5), case


# Indices out of range.


def test_indices_out_of_range_are_told() -> None:
    """The status says which check failed; all others are carried out, and what is read or written
    by a wrong one is nothing: not even of an operand without elements."""
    case = Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 0, "node": "here"})
    elements = Case("gather_elements", (("float32", (A, C)), ("int64", (A, C))),
                    {"axis": 1, "node": "there"})  # fmt: skip
    made, along_rows = nest_kernel(case.kernel()), nest_kernel(elements.kernel())
    assert (made.checks, along_rows.checks) == (("here",), ("there",))
    bindings = {"A": 5, "B": 9, "C": 37}
    x, indices = case.arrays(bindings, 0)
    for wrong in (5, -6, 2**62, -(2**63)):
        for position in (0, 4, 8):
            at = np.abs(indices) % 5
            at[position] = wrong
            out = Guarded((9, 37), "float32")
            status = launch(made, [buffer(x), buffer(at)], [buffer(out.array)], bindings)
            assert status == 1
            right = np.arange(9) != position
            assert np.array_equal(out.array[right], x[at[right]])
            assert not out.array[position].any()
            assert out.untouched
    at = np.zeros((5, 37), np.int64)
    for wrong, told in ((37, 1), (-38, 1), (-37, 0)):
        at[3, 36] = wrong
        out = Guarded((5, 37), "float32")
        given = [buffer(x), buffer(at)]
        assert launch(along_rows, given, [buffer(out.array)], bindings) == told
    none = {"A": 0, "B": 9, "C": 37}
    nowhere = torch.empty(0, dtype=torch.float32)
    out = Guarded((9, 37), "float32")
    assert launch(made, [nowhere, buffer(indices)], [buffer(out.array)], none) == 1
    assert not out.array.any()


def test_nothing_is_written_at_wrong_indices() -> None:
    case = Case("scatter_nd", (("float32", (B, C)), ("int64", (A, 1)), ("float32", (A, C))),
                {"kind": "add", "node": "scatter"})  # fmt: skip
    made = nest_kernel(case.kernel())
    x, updates = np.ones((4, 5), np.float32), np.full((3, 5), 2, np.float32)
    at = np.array([[1], [4], [-5]])
    out = Guarded((4, 5), "float32")
    out.array[...] = x
    given = [buffer(x), buffer(at), buffer(updates)]
    assert launch(made, given, [buffer(out.array)], {"A": 3, "B": 4, "C": 5}) == 1
    assert out.untouched
    x[1] += 2
    assert np.array_equal(out.array, x)


def test_the_number_of_a_check() -> None:
    """Two indices, the second of which is wrong."""
    shape = (4,)
    writer = Writer()
    found = []
    for operand, text in ((0, "alpha"), (1, "beta")):
        index = writer.step("load", INT64, writer.index(0), payload=operand)
        found.append(writer.step("checked", INT64, index, writer.integer(8), payload=text))
    operands = (Operand(INT64, shape, (1,)),) * 2
    total = writer.add(*found)
    nest = Nest(shape, (), operands, tuple(writer.steps), (), (Store(total, (0,)),))
    made = nest_kernel(kernel_of(nest, [Operand(INT64, shape, (1,))]))
    assert made.checks == ("alpha", "beta")
    right, wrong = torch.tensor([1, 2, -1, 7]), torch.tensor([1, 8, 2, 3])
    out = torch.empty(4, dtype=torch.int64)
    assert launch(made, [right, right], [out], {}) == 0
    assert out.tolist() == [2, 4, 14, 14]
    assert launch(made, [right, wrong], [out], {}) == 2


def test_lanes_beyond_the_edge_and_elements_that_nobody_takes_are_not_checked() -> None:
    """An index that is not loaded, up to the extent and beyond; and then only as far as it is
    taken."""
    for taken, extent, status in ((8, 8, 0), (3, 3, 0), (4, 3, 1)):
        writer = Writer()
        index = writer.index(0)
        at = writer.step("checked", INT64, index, writer.integer(extent), payload="here")
        value = writer.step("load", INT64, at, payload=0)
        if taken < 8:
            inside = writer.compare("less", index, writer.integer(taken))
            value = writer.where(inside, value, writer.integer(-1))
        operand = Operand(INT64, (extent,), (1,))
        steps = tuple(writer.steps)
        nest = Nest((A,), (), (operand,), steps, (), (Store(value, (0,)),))
        made = nest_kernel(kernel_of(nest, [Operand(INT64, (A,), (1,))]))
        x, out = torch.arange(10, 10 + extent), torch.zeros(8, dtype=torch.int64)
        assert launch(made, [x], [out], {"A": 8}) == status
        expected = [10 + i if i < extent else 0 for i in range(taken)] + [-1] * (8 - taken)
        assert out.tolist() == expected


# Corners of single functions.


def run_one(case: Case, arrays: list[Array], schedule: Callable[[Kernel], BlockSchedule] = small
            ) -> Array:  # fmt: skip
    (result,) = case.results()
    out = Guarded(tuple(evaluate(n, {}) for n in result.shape), result.dtype.name)
    kernel = case.kernel()
    made = nest_kernel(kernel, schedule(kernel))
    assert launch(made, [buffer(x) for x in arrays], [buffer(out.array)], {}) == 0
    assert out.untouched
    return out.array


def whole(kernel: Kernel) -> BlockSchedule:
    return block_schedules(kernel)[0]


@pytest.mark.parametrize("target", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_that_no_integer_holds_become_the_nearest(source: str, target: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 127.9, -0.5, 3.99] * 5, source)
    case = Case("cast", ((source, x.shape),), {"to": TENSOR_DTYPES[target]})
    info = np.iinfo(np.dtype(target))
    nearest = [0, info.max, info.min, info.max, info.min, 127, 0, 3] * 5
    assert run_one(case, [x]).tolist() == nearest


@pytest.mark.parametrize("op", ["divide", "remainder", "fmod", "power"])
def test_integers_at_the_ends(op: str) -> None:
    """All pairs of int8 and of uint8: no zero and no overflow. Exponents are natural."""
    for dtype in ("int8", "uint8"):
        every = np.arange(256, dtype=np.uint8).view(dtype)
        exponents = every[:128] if op == "power" and dtype == "int8" else every
        x, y = np.repeat(every, len(exponents)), np.tile(exponents, 256)
        case = Case(op, ((dtype, x.shape), (dtype, y.shape)))
        found = run_one(case, [x, y], whole)
        with np.errstate(all="ignore"):
            assert np.array_equal(found, OPERATORS[op].reference(x, y))


def test_negative_exponents_of_integers_count_as_zero() -> None:
    x, y = np.array([-3, 0, 1, 2], np.int32), np.array([-1, -5, -2, -(2**31)], np.int32)
    found = run_one(Case("power", (("int32", (4,)), ("int32", (4,)))), [x, y])
    assert found.tolist() == [1, 1, 1, 1]


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


@pytest.mark.parametrize("schedule", [small, whole])
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_nan_is_the_extremum(dtype: str, axis: int, kind: str, schedule: Any) -> None:
    case = Case("reduce", ((dtype, (37, 37)),), {"kind": kind, "axes": (axis,)})
    x = np.zeros((37, 37), dtype)
    np.fill_diagonal(x, np.nan)
    assert np.isnan(run_one(case, [x], schedule)).all()


@pytest.mark.parametrize("schedule", [small, whole])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_is_found_before_infinities(axis: int, kind: str, schedule: Any) -> None:
    """Rows of a NaN among infinities, in each place; of nothing but NaN; and of what no element is
    better than."""
    infinity = np.inf if kind == "argmax" else -np.inf
    x = np.full((39, 37), infinity, np.float32)
    np.fill_diagonal(x, np.nan)
    x[37] = np.nan
    x[38] = -infinity
    for last, position in ((False, 0), (True, 36)):
        attributes = {"kind": kind, "axis": axis, "last": last}
        operand = np.ascontiguousarray(x if axis == 1 else x.T)
        case = Case("arg_reduce", (("float32", operand.shape),), attributes)
        found = run_one(case, [operand], schedule)
        assert found.tolist() == [*range(37), position, position]


def test_exclusive_sums_do_not_see_their_own_element() -> None:
    """Subtracting it again would leave NaN of an infinity, and rounding errors."""
    x = np.array([[1e8, np.inf, 1, 2, 3, 4, 5, 6, 7, 8, 9]], np.float32)
    attributes = {"axis": 1, "exclusive": True, "reverse": False}
    found = run_one(Case("cumulative_sum", (("float32", x.shape),), attributes), [x])
    assert found.tolist() == [[0, 1e8, *[np.inf] * 9]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_nothing_behind_an_operand_is_read() -> None:
    """Operands and results end where a page ends; nobody may touch the next one. In a child,
    because who does ends there."""
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
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for case in cases:
                kernel = case.kernel()
                for c in (1, 15, 16, 63):
                    bindings = {"A": 3, "B": 5, "C": c}
                    arrays = [before_a_wall(x) for x in case.arrays(bindings, c)]
                    (result,) = case.results()
                    shape = tuple(evaluate(n, bindings) for n in result.shape)
                    out = before_a_wall(np.zeros(shape, result.dtype.name))
                    for schedule in (chosen(kernel, bindings), small(kernel)):
                        made = nest_kernel(kernel, schedule)
                        launch(made, [buffer(x) for x in arrays], [buffer(out)], bindings)
                        assert_equal(case, out, arrays, bindings)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_pad_reads_nothing_of_an_operand_without_elements() -> None:
    case = Case("pad", (("float32", (A, C)), ("float32", ())), {
        "before": (1, 2), "after": (1, 0), "mode": "constant"})  # fmt: skip
    nowhere = torch.empty(0, dtype=torch.float32)
    out = torch.empty((2, 5), dtype=torch.float32)
    launch(nest_kernel(case.kernel()), [nowhere, torch.tensor(3.0)], [out], {"A": 0, "C": 3})
    assert torch.equal(out, torch.full((2, 5), 3.0))


# What a launcher is told.


def test_arguments() -> None:
    case = Case("gather", (("bfloat16", (A, 48)), ("int32", (B,))), {"axis": 0, "node": "embed"})
    made = nest_kernel(HalfCase(case.op, case.operands, case.attributes).kernel())
    assert (made.operands, made.results, made.checks) == ((0, 1), 1, ("embed",))
    assert made.parameters == (B, A)
    assert [(a.type, a.divisor) for a in made.source.arguments] == [
        ("*bf16", 16), ("*i32", 16), ("*bf16", 16), ("*i32", 1), ("i64", 1), ("i64", 1)
    ]  # fmt: skip
    apart = nest_kernel(made.kernel, made.schedule, aligned=False)
    assert [a.divisor for a in apart.source.arguments] == [1] * 6
    assert apart.source.key != made.source.key


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


# What cannot be made.


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
