"""Dims evaluated by native code: each operation is that of Python, or fails."""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.core.test_dim import BINDINGS, NAMES, Tree, dim_of, trees

from ftuner.codegen.llvm.native.binding_records import OPERATIONS, Deciding
from ftuner.core.dim import Dim, quotient, remainder, symbol
from ftuner.core.evaluation import evaluate
from ftuner.core.ranges import coarse_middle, fine_start, middle
from ftuner.core.symbolic import WORDS, atom_of, bits_of_float32
from ftuner.errors import ShapeError
from ftuner.graph.ir import Constraint
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.task_groups import DecisionTable
from ftuner.runtime.shapes.instructions import Instructions

KINDS = ("quotient", "remainder", *WORDS)
RANGES = {"fine_start": fine_start, "middle": middle, "coarse_middle": coarse_middle}
LARGEST = (1 << 63) - 1
EDGES = [-LARGEST - 1, -LARGEST, -1, 0, 1, 31, 32, 1023, 1024, 1 << 24, LARGEST]
WORD = st.one_of(st.integers(-LARGEST - 1, LARGEST), st.integers(-40, 40), st.sampled_from(EDGES))
ANY_MACHINE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def ran(
    backend: CpuBackend, words: Sequence[int], rows: Sequence[Sequence[int]],
    rounded: Sequence[Sequence[int]] = (), coarse: int = 0, dims: int = 0,
) -> list[int] | None:  # fmt: skip
    """The words after some instructions; None if one fails. `rounded`, `coarse`, `dims`: of the
    middles of coarse ranges, as of `Deciding`."""
    held = [np.array(x, np.int64) for x in (rows, rounded)]
    deciding = np.zeros(Deciding.SIZE, np.int64)
    deciding[[Deciding.DIMS, Deciding.ROUNDED]] = [*map(address_of, held)]
    deciding[[Deciding.DIM_COUNT, Deciding.ROUNDED_COUNT]] = len(rows), len(rounded)
    deciding[[Deciding.COARSE, Deciding.COARSE_COUNT]] = coarse, dims
    for area in (Deciding.FOUND, Deciding.OWNERS, Deciding.SUMMARY):
        deciding[area] = len(words)
    memory = array("q", [*words, *[0] * 8])
    find = backend.kernels.runtime.find
    known = DecisionTable(1).now
    failed = find(address_of(deciding), memory.buffer_info()[0], known.address, 0)
    return None if failed else memory[: len(words)].tolist()


def native(
    backend: CpuBackend, dims: Sequence[Dim], values: Mapping[str, int],
    bounds: Sequence[tuple[int, int]] = (), demanded: Sequence[Constraint] = (),
) -> list[int] | None:  # fmt: skip
    found = Instructions(dims, [*values])
    found.bound(bounds)
    found.demand(demanded)
    found.words[found.first_symbol : found.first_symbol + found.symbols] = values.values()
    words = ran(backend, found.words, found.rows)
    return None if words is None else words[: len(dims)]


def expected(dims: Sequence[Dim], values: Mapping[str, int]) -> list[int] | None:
    try:
        return [evaluate(dim, values) for dim in dims]
    except (ZeroDivisionError, ShapeError):
        return None


@ANY_MACHINE
@given(st.sampled_from(KINDS), WORD, WORD)
@example("quotient", -LARGEST - 1, -1)
@example("remainder", -LARGEST - 1, -1)
@example("whole", -LARGEST - 1, 0)
def test_an_operation_is_that_of_python(widest: CpuBackend, kind: str, x: int, y: int) -> None:
    operand: Dim = symbol("B")
    if kind == "scaled":
        y = abs(y) % 0x7F000000 or 1
        operand = y
    dim, values = atom_of(kind, symbol("A"), operand), {"A": x, "B": y}
    found, wanted = native(widest, [dim], values), expected([dim], values)
    if wanted is not None and not -LARGEST - 1 <= wanted[0] <= LARGEST:
        wanted = None
    if found is None and kind in ("quotient", "remainder"):
        assert wanted is None or (x, y) == (-LARGEST - 1, -1)
    else:
        assert found == wanted


@ANY_MACHINE
@given(st.sampled_from([0.5, 1.0, 1.1, 2.0, 1e-6, 3e38, 1e30]), WORD)
def test_scaled_extents(widest: CpuBackend, factor: float, x: int) -> None:
    dim = atom_of("scaled", symbol("A"), bits_of_float32(float(np.float32(factor))))
    found, wanted = native(widest, [dim], {"A": x}), expected([dim], {"A": x})
    if wanted is not None and abs(wanted[0]) > LARGEST:
        wanted = None
    assert found == wanted


@ANY_MACHINE
@given(st.lists(trees(leaves=8), min_size=1, max_size=6), BINDINGS)
def test_dims_have_the_values_that_python_finds(
    widest: CpuBackend, given_trees: list[Tree], bindings: Mapping[str, int]
) -> None:
    """What they have in common, and dims that are equal, included."""
    dims = [dim_of(tree) for tree in given_trees]
    dims += [dim * dim + 3 for dim in dims] + dims[:2]
    values = {name: bindings[name] for name in NAMES}
    assert native(widest, dims, values) == expected(dims, values)


@ANY_MACHINE
@given(trees(leaves=12), st.tuples(WORD, WORD, WORD))
def test_values_of_more_than_a_word_fail(
    widest: CpuBackend, tree: Tree, words: tuple[int, int, int]
) -> None:
    """On the way, too."""
    dim, values = dim_of(tree), dict(zip(NAMES, words, strict=True))
    found = native(widest, [dim], values)
    assert found is None or found == expected([dim], values)


@ANY_MACHINE
@given(st.sampled_from([*RANGES]), st.one_of(st.integers(0, LARGEST), st.sampled_from(EDGES[3:])))
def test_ranges_are_those_of_python(widest: CpuBackend, kind: str, x: int) -> None:
    found = ran(widest, [x, 0], [(OPERATIONS.index(kind), 1, 0, 0)])
    assert found == [x, RANGES[kind](x)]


@pytest.mark.parametrize(("value", "fits"), [(-1, False), (0, True), (7, True), (8, False)])
def test_a_bounded_dim(widest: CpuBackend, value: int, fits: bool) -> None:
    found = native(widest, [symbol("A") - 10], {"A": value + 10}, [(0, 7)])
    assert found == ([value] if fits else None)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63), 1 << 200])
def test_a_number_of_more_than_a_word_fails(widest: CpuBackend, number: int) -> None:
    assert native(widest, [number, 3], {}) is None
    assert native(widest, [symbol("A") * number], {"A": 0}) is None


@pytest.mark.parametrize("or_one", [False, True])
@pytest.mark.parametrize("values", [(3, 3), (3, 4), (1, 4), (4, 1), (2, 1)])
def test_a_constraint(widest: CpuBackend, values: tuple[int, int], or_one: bool) -> None:
    """Its sides may be operations of their own."""
    x, y = symbol("A") + quotient(symbol("B"), 100), symbol("B")
    demanded = Constraint(x, y, or_one, "a sum")
    found = native(widest, [x], dict(zip("AB", values, strict=True)), demanded=[demanded])
    assert found == ([values[0]] if demanded.holds(*values) else None)


def middles(backend: CpuBackend, found: Instructions, value: int) -> list[int]:
    """The dims, and the symbol, in the middle of the coarse range of the symbol."""
    at, coarse = found.first_symbol, len(found.words)
    words = found.words * 2
    words[at] = value
    rounded = [(OPERATIONS.index("coarse_middle"), coarse + at, at, at)]
    after = ran(backend, words, found.rows, rounded, coarse, found.dims)
    assert after is not None
    return after[coarse : coarse + at + 1]


def test_values_in_the_middle_of_coarse_ranges(widest: CpuBackend) -> None:
    """What inputs must fulfil is not asked of middles."""
    dims = [quotient(symbol("A") - 32, 8), symbol("A") * 3]
    found = Instructions(dims, ["A"])
    found.demand([Constraint(remainder(symbol("A"), 32), 0, False, "a multiple")])
    assert middles(widest, found, 96) == [10, 336, 112]
    assert middles(widest, found, 224) == [24, 672, 224]


def test_where_the_middle_has_no_extents_the_given_ones_stand(widest: CpuBackend) -> None:
    found = Instructions([quotient(symbol("A"), symbol("A") - 112)], ["A"])
    assert middles(widest, found, 96) == [-6, 96]
    assert middles(widest, found, 224) == [2, 224]
