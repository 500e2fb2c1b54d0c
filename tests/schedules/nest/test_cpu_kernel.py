"""Every operator that has a definition, on every ISA of this machine, equals its reference.

Extents are symbols: each function is compiled once and runs at all extents. Operands and results
lie at pages that fault, tasks are run in two parts, and floats are compared in float64.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.apart import Note, apart
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.llvm.nest_running import (
    BLOCK,
    CASTS_OF_FLOATS,
    A,
    Array,
    B,
    Bindings,
    C,
    Case,
    Functions,
    Make,
    assert_equal,
    below,
    floats_out_of_range,
    nan_among_infinities,
    one_nan_a_line,
    values,
    values_of,
)
from tests.codegen.llvm.window_cases import sums_of
from tests.conftest import HOST_ISAS, share
from tests.graph.graphs import Maker, assert_runs, graph_of
from tests.guarded import Guard, Side, guarded
from tests.wild_products import assert_product, wild_matrix

from ftuner.core.cpu.schedule import looked_up, schedule_of, task_count
from ftuner.core.dim import minimum, symbol
from ftuner.core.dtype import FLOAT32, FLOAT64, INT32, INT64, TENSOR_DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.model import Model
from ftuner.schedules.nest.step import NestStep

WRITTEN_IN_PLACE = {"scatter_elements", "scatter_nd", "write_rows"}
"""Their kernels finish what a copy began: a test of their own."""
GIVEN = {"independent_loop", "trees"}
"""What is given decides the definition: `tests/frontends/test_onnx_bags.py` and
`tests/graph/ops/test_trees.py`."""

SEVERAL = {"row_levels", "row_range"}
"""They have several results: `tests/schedules/nest/test_cpu_kernel_levels.py`."""


def test_every_operator_with_a_definition_is_here() -> None:
    defined = {name for name, operator in OPERATORS.items() if operator.define is not None}
    assert defined == set(CASES) | WRITTEN_IN_PLACE | GIVEN | SEVERAL


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("op", CASES)
def test_operator(op: str, isa: str) -> None:
    """The narrower ISAs share the cases of the widest one."""
    narrower = HOST_ISAS[:-1]
    cases = CASES[op]
    if isa in narrower:
        cases = share(cases, len(narrower), narrower.index(isa)) or cases
    functions = Functions(isa, [case.kernel() for case in cases])

    def run(note: Note) -> None:
        for number, case in enumerate(cases):
            for seed, bindings in enumerate(case.extents):
                note(f"{case} {bindings}")
                check(functions, number, case, bindings, seed)

    apart(run)


def check(functions: Functions, number: int, case: Case, bindings: Bindings, seed: int = 0) -> None:
    """Operands and the result end at a page that faults, or begin at one; in turns."""
    at: Side = "begin" if seed % 2 else "end"
    arrays = [guarded(x, at, read_only=True) for x in case.arrays(bindings, seed)]
    (result,) = case.results()
    shape = tuple(evaluate(n, bindings) for n in result.shape)
    out = Guard(shape, result.dtype.name, at=at)
    assert functions.run(number, arrays, [out.address], bindings) == 0
    assert not out.damage(), f"{case} {bindings}"
    assert_equal(case, out.array, arrays, bindings)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_fixed_extents(isa: str) -> None:
    """Known extents become constants of the code."""
    cases = [
        Case("add", (("float32", (5, 1, 19)), ("float32", (3, 1)))),
        Case("transpose", (("float32", (4, 5, 37)),), {"perm": (2, 0, 1)}),
        Case("softmax", (("float32", (3, 31)),), {"axis": 1, "log": False}, (values,), 64.0,
             lambda x, **kw: np.ones(1)),
        Case("reduce", (("float32", (4, 0, 3)),), {"kind": "sum", "axes": (1,)}),
        Case("reduce", (("int32", (1, 1, 1)),), {"kind": "maximum", "axes": (0, 1, 2)}),
        Case("arg_reduce", (("float32", (7, 1)),), {"kind": "argmax", "axis": 1, "last": True}),
        Case("negative", (("int8", ()),)),
        Case("logical_not", (("bool", (131,)),)),
    ]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        check(functions, number, case, {})


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_borders_of_rows_of_all_lengths(isa: str) -> None:
    """Shorter than a vector, than a vector between the borders, and longer, also than the fewest
    vectors whose stores are aligned; borders of a few elements and of vectors."""
    rows = tuple({"A": 2, "B": 3, "C": n} for n in (*range(1, 42), 67, 131, 144, 157, 290))
    cases = []
    for mode in ("constant", "edge", "reflect", "wrap"):
        fill = (("int32", ()),) if mode == "constant" else ()
        for before, after in ((2, 3), (0, 1), (C, 2 * C), (-1, 21)):
            widths = {"before": (0, 1, before), "after": (1, 0, after), "mode": mode}
            operand = ("int32", (A, B, C + 1))
            cases.append(Case("pad", (operand, *fill), widths, extents=rows))
    for stride, kernel, begin in ((1, 3, 1), (2, 3, 1), (2, 2, 0), (3, 5, 4), (4, 3, 2)):
        for kind in ("sum", "maximum"):
            window = {
                "kernel": (3, kernel), "strides": (1, stride), "dilations": (1, 1),
                "begin": (1, begin), "extents": (B, C), "kind": kind,
            }  # fmt: skip
            picture = ("int32", (A, B, stride * (C - 1) + kernel - begin, 1))
            cases.append(Case("window_reduce", (picture,), window, extents=rows))
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        for seed, bindings in enumerate(case.extents):
            check(functions, number, case, bindings, seed)


def _near(ratio: float, most: int) -> Callable[[Bindings], Make]:
    """Positions that grow by a ratio, each up to `most` elements off; some are outside."""

    def made(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        found: Array = (ratio * np.arange(shape[-1])).astype(dtype)
        return found + random.integers(-most, most + 1, shape).astype(dtype)

    return lambda bindings: made


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_lines_that_are_looked_up(isa: str) -> None:
    """Lanes in one, two, four and more vectors of memory, in any order, in more lines than are
    walked together; by all sizes of elements, with another axis looked up, too."""
    lines = ((3, 13, 1), (3, 13, 3), (3, 13, 8), (3, 13, 17), (3, 13, 64), (3, 13, 67), (1, 1, 40),
             (1, 16, 16), (2, 0, 9))  # fmt: skip
    rows = tuple(dict(zip("ABC", n, strict=True)) for n in lines)
    positions = tuple(
        _near(ratio, most) for ratio, most in ((0.5, 1), (1, 0), (-1, 0), (2, 2), (3.3, 1), (9, 3))
    )
    cases = []
    for number, make in enumerate(positions):
        for dtype in ("float32", "int32", "float64", "int8")[: 4 if number == 3 else 1]:
            x = (dtype, (A, B, 3 * C + 1))
            at = ("int64", (2 if dtype.startswith("f") else 1, C))
            weights = ((dtype, at[1]),) if dtype.startswith("f") else ()
            makes = (values, make, values)
            cases.append(Case("resample", (x, at, *weights), {"axes": (2,)}, makes, 64.0,
                              sums_of("resample"), rows))  # fmt: skip
    both = (("float32", (A, B, 2 * C)), *[("int64", (2, n)) for n in (B, C)],
            *[("float32", (2, n)) for n in (B, C)])  # fmt: skip
    some = tuple(e for e in rows if all(e.values()))
    makes = (values, _near(1, 1), _near(2, 1), values)
    cases.append(Case("resample", both, {"axes": (1, 2)}, makes, 64.0, sums_of("resample"), some))
    functions = Functions(isa, [case.kernel() for case in cases])

    def run(note: Note) -> None:
        for number, case in enumerate(cases):
            assert looked_up(functions.kernels[number], functions.schedules[number])
            for seed, bindings in enumerate(case.extents):
                note(f"{case} {bindings}")
                check(functions, number, case, bindings, seed)

    apart(run)


# Products of floats.


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_do_not_depend_on_the_order_of_factors(dtype: str, isa: str) -> None:
    """Factors of wild magnitudes along lanes, across vectors of rows, apart in memory and along
    several axes; lengths with all tails of vectors."""
    layouts = {(B, C): (1,), (C, B): (0,), (C, B, 1): (0,), (B, A, C): (1, 2), (A, B, C): (0, 2)}
    cases = [Case("reduce", ((dtype, shape),), {"kind": "product", "axes": axes})
             for shape, axes in layouts.items()]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    for length in (*range(1, 34), 4096):
        outer = 4 if length % 4 == 0 else 1
        rows = wild_matrix(dtype, length)
        bindings = {"A": outer, "B": len(rows), "C": length // outer}
        flat = {**bindings, "C": length}
        parts = rows.reshape(len(rows), outer, length // outer)
        operands = [(rows, flat), (rows.T, flat), (rows.T[:, :, None], flat), (parts, bindings),
                    (parts.swapaxes(0, 1), bindings)]  # fmt: skip
        for number, (x, at) in enumerate(operands):
            out = Guard((len(rows), 1)[: 1 + (number == 2)], dtype)
            assert functions.run(number, [np.ascontiguousarray(x)], [out.address], at) == 0
            assert not out.damage()
            for value, row in zip(out.array.ravel().tolist(), rows, strict=True):
                assert_product(value, row)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_exponents_of_products_never_wrap(isa: str) -> None:
    """The exponents of so many factors do not fit 32 bits."""
    length = 20_000_000
    case = Case("reduce", (("float32", (C,)),), {"kind": "product", "axes": (0,)})
    column = Case("reduce", (("float32", (C, B)),), {"kind": "product", "axes": (0,)})
    functions = Functions(isa, [case.kernel(), column.kernel()])
    for factor, wanted in ((1e-45, 0.0), (3e38, np.inf)):
        x = np.full(length, factor, np.float32)
        for number in (0, 1):
            out = Guard((1,)[:number], "float32")
            functions.run(number, [x], [out.address], {"B": 1, "C": length})
            assert out.array.item() == wanted


# Scattering.


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("kind", ["none", "add", "multiply", "maximum", "minimum"])
def test_scatter(kind: str, isa: str) -> None:
    """Into a copy of the first operand, element by element: of equal indices the last decides."""
    cases = [
        Case("scatter_elements", ((dtype, (B, C)), ("int64", (A, C)), (dtype, (A, C))),
             {"axis": 0, "kind": kind}, (values_of, below(B), values_of))
        for dtype in ("float32", "int8", "uint64")
    ]  # fmt: skip
    cases.append(
        Case("scatter_nd", (("int32", (B, C, 3)), ("int32", (A, 2)), ("int32", (A, 3))),
             {"kind": kind}, (values_of, below(minimum(B, C)), values_of))
    )  # fmt: skip
    # Rows, by vectors.
    cases += [
        Case("scatter_nd", ((dtype, (B, C)), ("int32", (A, 1)), (dtype, (A, C))),
             {"kind": kind}, (values_of, below(B), values_of))
        for dtype in ("float32", "float64", "uint8")
    ]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        for bindings in ({"A": 7, "B": 5, "C": 11}, {"A": 1, "B": 1, "C": 1},
                         {"A": 0, "B": 2, "C": 3}, {"A": 5, "B": 3, "C": 67}):  # fmt: skip
            arrays = case.arrays(bindings, 3)
            out = Guard(arrays[0].shape, arrays[0].dtype.name)
            out.array[...] = arrays[0]
            assert functions.run(number, arrays, [out.address], bindings) == 0
            assert not out.damage()
            expected = OPERATORS[case.op].reference(*arrays, **case.attributes)
            assert np.allclose(out.array, expected, rtol=1e-5), case


# Indices out of range.


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_indices_out_of_range_are_told(isa: str) -> None:
    """The status says which check failed; all others are carried out, within the operand."""
    case = Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 0, "node": "here"})
    elements = Case("gather_elements", (("float32", (A, C)), ("int64", (A, C))),
                    {"axis": 1, "node": "there"})  # fmt: skip
    functions = Functions(isa, [case.kernel(), elements.kernel()])
    assert [k.checks() for k in functions.kernels] == [("here",), ("there",)]
    bindings = {"A": 5, "B": 9, "C": 37}
    x, indices = case.arrays(bindings, 0)
    for wrong in (5, -6, 2**62, -(2**63)):
        for position in (0, 4, 8):
            at = np.abs(indices) % 5
            at[position] = wrong
            out = Guard((9, 37), "float32")
            assert functions.run(0, [x, at], [out.address], bindings) == 1
            right = np.arange(9) != position
            assert np.array_equal(out.array[right], x[at[right]])
            assert not out.damage()
        along = np.zeros((5, 37), np.int64)
        along[3, 36] = wrong if abs(wrong) > 6 else 37
        out = Guard((5, 37), "float32")
        assert functions.run(1, [x, along], [out.address], bindings) == 1
        assert functions.run(1, [x, along * 0 - 37], [out.address], bindings) == 0
        assert np.array_equal(out.array, np.repeat(x[:, :1], 37, 1))


@pytest.mark.parametrize("dtype", [INT32, INT64])
def test_lanes_beyond_the_last_element_are_not_checked(dtype: DType) -> None:
    """Their index, computed of nothing, may be out of range."""
    builder = Builder()
    x, i = builder.input("x", FLOAT32, (3,)), builder.input("i", dtype, (symbol("n"),))
    at = builder.add("subtract", i, builder.constant(100, dtype))
    graph = builder.graph([x, i], [("y", builder.add("gather", x, at, axis=0))])
    model = Model(graph, default_backend())
    numbers = np.arange(3, dtype=np.float32)
    for count in range(1, 20):
        at_run = np.arange(count) % 3
        (y,) = model.run({"x": numbers, "i": (at_run + 100).astype(dtype.name)})
        assert y.tolist() == at_run.tolist()


# Corners of single functions.


def run_one(case: Case, isa: str, arrays: Sequence[Array]) -> Array:
    (result,) = case.results()
    shape = tuple(evaluate(n, {}) for n in result.shape)
    out = Guard(shape, result.dtype.name)
    functions = Functions(isa, [case.kernel()])
    assert functions.run(0, list(arrays), [out.address], {}) == 0
    assert not out.damage()
    return out.array


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("target", CASTS_OF_FLOATS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_become_integers_as_in_onnxruntime(source: str, target: str, isa: str) -> None:
    case, x, wanted = floats_out_of_range(source, target)
    assert run_one(case, isa, [x]).tolist() == wanted


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("op", ["divide", "remainder", "fmod", "power"])
def test_integers_at_the_ends(op: str, isa: str) -> None:
    """All pairs of int8 and of uint8: no zero and no overflow traps."""
    for dtype in ("int8", "uint8"):
        every = np.arange(256, dtype=np.uint8).view(dtype)
        x, y = np.repeat(every, 256), np.tile(every, 256)
        found = run_one(Case(op, ((dtype, x.shape), (dtype, y.shape))), isa, [x, y])
        with np.errstate(all="ignore"):
            assert np.array_equal(found, OPERATORS[op].reference(x, y))


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_tiny_and_huge_numbers(dtype: str, isa: str) -> None:
    """The product of a remainder and its divisor may underflow or overflow."""
    tiny, huge = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max) / 2
    sizes = np.array([tiny, 3 * tiny, 1.0, 2.5, huge, np.inf], dtype)
    every = np.concatenate([sizes, -sizes])
    x, y = np.repeat(every, len(every)), np.tile(every, len(every))
    found = run_one(Case("remainder", ((dtype, x.shape), (dtype, y.shape))), isa, [x, y])
    with np.errstate(all="ignore"):
        assert np.array_equal(found, np.mod(x, y), equal_nan=True)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_any_byte_but_zero_is_true(isa: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(bool)
    found = run_one(Case("logical_not", (("bool", x.shape),)), isa, [x])
    assert found.view(np.uint8).tolist() == [1] + [0] * 255


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_nan_is_the_extremum(dtype: str, axis: int, kind: str, isa: str) -> None:
    case, x = one_nan_a_line(dtype, axis, kind)
    assert np.isnan(run_one(case, isa, [x])).all()


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_is_found_before_infinities(axis: int, kind: str, isa: str) -> None:
    for case, operand, places in nan_among_infinities(axis, kind):
        assert run_one(case, isa, [operand]).tolist() == places


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_nothing_beside_an_operand_is_read(isa: str) -> None:
    """At extents around those of vectors."""
    cases = [
        Case("add", (("float32", (C,)), ("float32", (C,)))),
        Case("logical_not", (("bool", (C,)),)),
        Case("cast", (("int8", (C,)),), {"to": TENSOR_DTYPES["float64"]}),
        Case("reduce", (("float32", (A, C)),), {"kind": "sum", "axes": (1,)}, roundings=256.0),
        Case("transpose", (("float32", (A, C)),), {"perm": (1, 0)}),
        Case("softmax", (("float64", (A, C)),), {"axis": 1, "log": False}, roundings=64.0),
        Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 1},
             (values_of, below(C))),
        Case("slice", (("float32", (A, C)),), {
            "starts": (0, C - 1), "steps": (1, -1), "shape": (A, C)}),
        Case("pad", (("float32", (C,)), ("float32", ())), {
            "before": (3,), "after": (2,), "mode": "constant"}),
    ]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])

    def run(note: Note) -> None:
        for number, case in enumerate(cases):
            for seed, c in itertools.product((0, 1), (1, 3, 15, 16, 17, 63)):
                note(f"{case}, C = {c}")
                check(functions, number, case, {"A": 3, "B": 5, "C": c}, seed)

    apart(run)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_a_pad_reads_nothing_of_an_operand_without_elements(isa: str) -> None:
    """Whichever axis has none, and however long the other one is."""
    operands = (("float32", (A, C)), ("float32", ()))
    cases = [
        Case("pad", operands, {"before": before, "after": after, "mode": "constant"})
        for before, after in (((1, 0), (1, 0)), ((0, 2), (0, 1)), ((1, 2), (2, 0)))
    ]
    functions = Functions(isa, [case.kernel() for case in cases])

    def pad(note: Note) -> None:
        for number, case in enumerate(cases):
            for a, c in ((0, 100_000), (100_000, 0), (0, 0), (0, 1), (3, 17)):
                bindings = {"A": a, "C": c}
                note(f"{case} {bindings}")
                arrays = [guarded(x) for x in case.arrays(bindings, c)]
                shape = tuple(evaluate(n, bindings) for n in case.results()[0].shape)
                out = np.zeros(shape, np.float32)
                assert functions.run(number, arrays, [out.ctypes.data], bindings) == 0
                assert_equal(case, out, arrays, bindings)

    apart(pad)


# Schedules: what is walked by vectors.

_FLOATS: tuple[tuple[Any, Any, Any], ...] = (
    # Kernel, vector axis, lanes of 64 bytes.
    (Case("add", (("float32", (A, B, C)), ("float32", (A, B, C)))), 0, 16),
    (Case("add", (("float32", (A, B, C)), ("float32", (C,)))), 1, 16),
    (Case("cast", (("int8", (C,)),), {"to": INT64}), 0, 8),
    (Case("cast", (("int64", (C,)),), {"to": TENSOR_DTYPES["float32"]}), 0, 16),
    (Case("logical_not", (("bool", (C,)),)), 0, 64),
    (Case("reduce", (("float32", (B, C)),), {"kind": "sum", "axes": (1,)}), 1, 16),
    (Case("reduce", (("float32", (B, C)),), {"kind": "sum", "axes": (0,)}), 0, 16),
    (Case("arg_reduce", (("float32", (B, C)),), {"kind": "argmax", "axis": 1, "last": False}),
     None, 8),
    (Case("scatter_nd", (("float32", (B,)), ("int64", (A, 1)), ("float32", (A,))),
          {"kind": "none"}), None, 1),
    (Case("scatter_nd", (("float32", (B, C)), ("int64", (A, 1)), ("float32", (A, C))),
          {"kind": "none"}), 1, 16),
    (Case("window_reduce", (("float32", (A, B, C, 1)),), {
        "kind": "sum", "kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "begin": (0, 0),
        "extents": (B, C)}), 2, 16),
)  # fmt: skip


@pytest.mark.parametrize(("case", "vector", "lanes"), _FLOATS)
def test_schedules(case: Case, vector: int | None, lanes: int) -> None:
    schedule = schedule_of(case.kernel(), 64, BLOCK)
    assert schedule.vector == vector
    if vector is not None:
        assert schedule.lanes == lanes


def test_few_channels_are_interleaved() -> None:
    """Where vectors of each channel are read, and results have channels side by side."""
    for few, interleaved in ((2, 2), (4, 2), (5, None)):
        case = Case("transpose", (("float32", (A, few, C)),), {"perm": (0, 2, 1)})
        schedule = schedule_of(case.kernel(), 64, BLOCK)
        assert (schedule.interleaved, schedule.vector == 1) == (interleaved, few < 5)
    back = Case("transpose", (("float32", (A, C, 3)),), {"perm": (0, 2, 1)})
    assert schedule_of(back.kernel(), 64, BLOCK).interleaved is None


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_functions_of_what_is_transposed(dtype: DType, widest: CpuBackend) -> None:
    """With operands along both axes and of one place each: squares and their borders."""

    def body(g: Maker) -> Value:
        x, y = g.given("x", A, B, C, dtype=dtype), g.given("y", A, C, B, dtype=dtype)
        of_place, of_row = g.given("p", B, 1, dtype=dtype), g.given("r", C, dtype=dtype)
        with g.writing():
            turned = (x * of_place - of_row).transpose((0, 2, 1))
            return abs(turned + 0.5) * y

    graph = graph_of(body)
    (step,) = lower(graph).steps
    assert isinstance(step, NestStep)
    assert schedule_of(step.kernel, 64, BLOCK).across is not None
    extents = ((1, 8, 8), (2, 70, 33), (1, 5, 40), (3, 130, 1), (1, 1, 1), (2, 16, 64), (0, 9, 9))
    assert_runs(graph, widest, *(dict(zip("ABC", n, strict=True)) for n in extents))


def test_few_repeated_elements_are_interleaved() -> None:
    for times, split in ((2, True), (4, True), (5, False)):
        case = Case("repeat", (("float32", (A, B, C)),), {"repeats": (1, 3, times)})
        kernel = case.kernel()
        assert kernel.axes == ((A, 3 * B, C, times) if split else (A, 3 * B, times * C))
        assert (schedule_of(kernel, 64, BLOCK).interleaved == 3) == split


def test_tasks_are_blocks_of_the_only_axis() -> None:
    kernel = Case("negative", (("float32", (A, B)),)).kernel()
    tasks = task_count(kernel, schedule_of(kernel, 64, BLOCK))
    for elements, count in ((0, 0), (1, 1), (BLOCK, 1), (BLOCK + 1, 2)):
        assert evaluate(tasks, {"A": elements, "B": 1}) == count
