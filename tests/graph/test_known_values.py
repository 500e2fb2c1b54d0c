"""Which elements of tensors are known: integers, and floats that are ratios of dims, which become
dims again where they are rounded."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, graph_of

from ftuner.core.dim import Dim, ceil_quotient, maximum, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64
from ftuner.graph.algebra import apply, ceil, concat, constant, floor, gather, rint, scalar, sqrt
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Value
from ftuner.graph.known_values import MOST_PARTS, elements_of
from ftuner.runtime.reference import run_reference


@pytest.fixture
def builder() -> Iterator[Builder]:
    with Builder().writing() as found:
        yield found


def floats(builder: Builder, *dims: Dim) -> Value:
    return builder.dims(dims).cast(FLOAT32)


def number(value: float) -> Value:
    return scalar(value, FLOAT32)


def same_padding(x: Value) -> Value:
    """What TensorFlow pads before a window of 3 and stride 2, as exporters write it."""
    reach = (ceil(x / 2) - number(1)) * 2
    return (reach + 3 - x).at_least(0) / 2


ROUNDED: tuple[tuple[Callable[[Value], Value], Callable[[Dim], Dim]], ...] = (
    # What is done to floats, and to an extent. The result is cast to integers.
    (lambda x: ceil(x / 2), lambda n: ceil_quotient(n, 2)),
    (lambda x: floor(x / 3), lambda n: quotient(n, 3)),
    (lambda x: x / 4, lambda n: quotient(n, 4)),
    (lambda x: floor(x * 0.75), lambda n: quotient(3 * n, 4)),
    (lambda x: floor(number(2) * x), lambda n: 2 * n),
    (lambda x: floor((x - 5) / 2 + 1), lambda n: quotient(n - 3, 2)),
    (same_padding, lambda n: quotient(maximum(2 * ceil_quotient(n, 2) + 1 - n, 0), 2)),
    (lambda x: rint(apply("negative", -x)), lambda n: n),
)


@pytest.mark.parametrize(("body", "expected"), ROUNDED)
def test_rounded_ratios_are_dims(
    body: Callable[[Value], Value], expected: Callable[[Dim], Dim], builder: Builder
) -> None:
    assert body(floats(builder, B, S)).cast(INT64).dims == (expected(B), expected(S))


def test_what_is_not_certain_is_computed(builder: Builder) -> None:
    x = floats(builder, B)
    for y in (
        x * (1 / 3),  # Not a third.
        x * (1 / (2 * MOST_PARTS)),
        x / floats(builder, S),  # S may be zero.
        x / -2,
        x * np.inf,
        sqrt(x),
    ):
        assert floor(y).dims is None
    # A cast rounds towards zero, and floor does not.
    half = (x - 3) / 2
    assert floor(half).dims == (quotient(B - 3, 2),)
    assert half.cast(INT64).dims is None


def test_what_floats_round_twice_is_computed(builder: Builder) -> None:
    """`h / 49 * 49` is 26 for h = 27 in float32, and below 1 for h = 1 in float64."""
    x, y = floats(builder, B), floats(builder, S)
    part, one = x / 49, y + 1
    for unknown in (
        part * 49, part * 3.5, part * y, x / one * 3, y / (one / 49), part - y / 49,
    ):  # fmt: skip
        assert floor(unknown).dims is None
    for known, expected in (
        (part * 5, quotient(5 * B, 49)),
        (x / one * 4, quotient(4 * B, S + 1)),
        (part + 0.5, quotient(2 * B + 49, 98)),
        (part / 3, quotient(B, 147)),
    ):
        assert floor(known).dims == (expected,)


def test_ratios_are_followed_where_they_move(builder: Builder) -> None:
    ratios = floats(builder, B, S) / floats(builder, S, 3 * B)
    joined = concat([number(1.5).reshape((1,)), ratios], 0)
    wide = joined.cast(FLOAT64)
    last = gather(wide, constant(np.array([2, 0])))
    part = wide.slice(0, 1, 1)
    assert builder.known.ratios(joined) == ((3, 2), (B, S), (S, 3 * B))
    assert builder.known.ratios(last) == ((S, 3 * B), (3, 2))
    assert builder.known.ratios(part) == ((B, S),)
    # Extents may be zero: what is divided by them is no extent.
    assert floor(part).dims is None
    chosen = gather(wide, builder.input("at", INT64, (1,)))
    assert builder.known.ratios(chosen) is None
    beyond = gather(wide, constant(np.array([3])))
    assert builder.known.ratios(beyond) is None
    # Neither is a number that is no ratio, nor one of which another one is made.
    third = concat([ratios, constant(np.float32([1 / 3]))], 0)
    assert builder.known.ratios(third) is None
    assert builder.known.ratios(sqrt(ratios)) is None


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_parts_times_their_number_are_as_floats_have_them(dtype: Any) -> None:
    def body(g: Maker) -> Value:
        g.given("x", B)
        number_of_parts = g.constant(np.array(49, dtype.name))
        return floor(g.dims([B]).cast(dtype) / number_of_parts * number_of_parts).cast(INT64)

    graph = graph_of(body)
    for b in (1, 27, 49):
        (found,) = run_reference(graph, [np.zeros(b, np.float32)])
        array = np.array(b, dtype.name)
        assert found == np.floor(array / array.dtype.type(49) * array.dtype.type(49))


def test_large_floats_are_no_integers(builder: Builder) -> None:
    assert floats(builder, B).at_most(float(np.finfo(np.float32).max)).dims is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "subtract", "multiply", "divide", "maximum", "minimum"]),
            st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["ceil", "floor", "cast"]),
    st.sampled_from([FLOAT32, FLOAT64]),
    st.integers(0, 40),
    st.integers(1, 3000),
)  # fmt: skip
def test_followed_or_computed_the_result_is_the_same(
    steps: list[tuple[str, float, bool]], rounding: str, dtype: Any, b: int, s: int
) -> None:
    maker = Maker()
    maker.given("x", B, S)
    value = maker.add("cast", maker.dims([B, S]), to=dtype)
    array = np.array([b, s], dtype.name)
    of_numpy: dict[str, Any] = {name: getattr(np, name) for name, *_ in steps}
    for op, given_number, left in steps:
        constant = np.array(given_number, dtype.name)
        operands = [maker.constant(constant), value] if left else [value, maker.constant(constant)]
        arrays = [constant, array] if left else [array, constant]
        if op == "divide" and not np.all(arrays[1]):
            continue
        value, array = maker.add(op, *operands), of_numpy[op](*arrays)
    if rounding != "cast":
        value, array = maker.add(rounding, value), getattr(np, rounding)(array)
    graph = maker.made(maker.add("cast", value, to=INT64))
    (found,) = run_reference(graph, [np.zeros((b, s), np.float32)])
    assert np.array_equal(found, array.astype(np.int64)), (steps, b, s)


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float16, 2048), (np.float32, 1 << 24), (np.float64, 1 << 24)]
)
def test_floats_are_followed_as_far_as_their_arithmetic_is_exact(
    dtype: type[np.floating], most: int
) -> None:
    def followed(number: float) -> list[object] | None:
        found = elements_of(Builder().constant(np.array([number], dtype)))
        return None if found is None else found.tolist()

    assert followed(-most) == [-most]
    beyond = [most * 1.5, np.inf, -np.inf, np.nan, np.finfo(dtype).max, 0.5]
    assert [followed(number) for number in beyond] == [None] * len(beyond)
