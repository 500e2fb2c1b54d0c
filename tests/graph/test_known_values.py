"""Which elements of tensors are known: integers, and floats that are ratios of dims, which become
dims again where they are rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S

from ftuner.core.dim import Dim, ceil_quotient, maximum, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Value
from ftuner.graph.known_values import MOST_PARTS, elements_of
from ftuner.runtime.reference import run_reference


def floats(builder: Builder, *dims: Dim) -> Value:
    return builder.add("cast", builder.dims(dims), to=FLOAT32)


def number(builder: Builder, value: float) -> Value:
    return builder.constant(np.float32(value))


def same_padding(b: Builder, x: Value) -> Value:
    """What TensorFlow pads before a window of 3 and stride 2, as exporters write it."""
    count = b.add("ceil", b.add("divide", x, number(b, 2)))
    reach = b.add("multiply", b.add("subtract", count, number(b, 1)), number(b, 2))
    pad = b.add("subtract", b.add("add", reach, number(b, 3)), x)
    return b.add("divide", b.add("maximum", pad, number(b, 0)), number(b, 2))


ROUNDED: tuple[tuple[Callable[[Builder, Value], Value], Callable[[Dim], Dim]], ...] = (
    # What is done to floats, and to an extent. The result is cast to integers.
    (lambda b, x: b.add("ceil", b.add("divide", x, number(b, 2))), lambda n: ceil_quotient(n, 2)),
    (lambda b, x: b.add("floor", b.add("divide", x, number(b, 3))), lambda n: quotient(n, 3)),
    (lambda b, x: b.add("divide", x, number(b, 4)), lambda n: quotient(n, 4)),
    (lambda b, x: b.add("floor", b.add("multiply", x, number(b, 0.75))),
     lambda n: quotient(3 * n, 4)),
    (lambda b, x: b.add("floor", b.add("multiply", number(b, 2), x)), lambda n: 2 * n),
    (lambda b, x: b.add("floor", b.add("add", b.add("divide", b.add("subtract", x, number(b, 5)),
                                                    number(b, 2)), number(b, 1))),
     lambda n: quotient(n - 3, 2)),
    (same_padding, lambda n: quotient(maximum(2 * ceil_quotient(n, 2) + 1 - n, 0), 2)),
    (lambda b, x: b.add("rint", b.add("negative", b.add("negative", x))), lambda n: n),
)  # fmt: skip


@pytest.mark.parametrize("row", range(len(ROUNDED)))
def test_rounded_ratios_are_dims(row: int) -> None:
    body, expected = ROUNDED[row]
    builder = Builder()
    found = builder.add("cast", body(builder, floats(builder, B, S)), to=INT64)
    assert found.dims == (expected(B), expected(S))


def test_what_is_not_certain_is_computed() -> None:
    builder = Builder()
    x = floats(builder, B)
    third = number(builder, 1 / 3)
    parts = number(builder, 1 / (2 * MOST_PARTS))
    for y in (
        builder.add("multiply", x, third),  # Not a third.
        builder.add("multiply", x, parts),
        builder.add("divide", x, floats(builder, S)),  # S may be zero.
        builder.add("divide", x, number(builder, -2)),
        builder.add("multiply", x, number(builder, np.inf)),
        builder.add("sqrt", x),
    ):
        assert builder.add("floor", y).dims is None
    # A cast rounds towards zero, and floor does not.
    half = builder.add("divide", builder.add("subtract", x, number(builder, 3)), number(builder, 2))
    assert builder.add("floor", half).dims == (quotient(B - 3, 2),)
    assert builder.add("cast", half, to=INT64).dims is None


def test_what_floats_round_twice_is_computed() -> None:
    """`h / 49 * 49` is 26 for h = 27 in float32, and below 1 for h = 1 in float64."""
    builder = Builder()
    x, y = floats(builder, B), floats(builder, S)
    part = builder.add("divide", x, number(builder, 49))
    one = builder.add("add", y, number(builder, 1))
    for unknown in (
        builder.add("multiply", part, number(builder, 49)),
        builder.add("multiply", part, number(builder, 3.5)),
        builder.add("multiply", part, y),
        builder.add("multiply", builder.add("divide", x, one), number(builder, 3)),
        builder.add("divide", y, builder.add("divide", one, number(builder, 49))),
        builder.add("subtract", part, builder.add("divide", y, number(builder, 49))),
    ):
        assert builder.add("floor", unknown).dims is None
    for known, expected in (
        (builder.add("multiply", part, number(builder, 5)), quotient(5 * B, 49)),
        (builder.add("multiply", builder.add("divide", x, one), number(builder, 4)),
         quotient(4 * B, S + 1)),
        (builder.add("add", part, number(builder, 0.5)), quotient(2 * B + 49, 98)),
        (builder.add("divide", part, number(builder, 3)), quotient(B, 147)),
    ):  # fmt: skip
        assert builder.add("floor", known).dims == (expected,)


def test_ratios_are_followed_where_they_move() -> None:
    builder = Builder()
    ratios = builder.add("divide", floats(builder, B, S), floats(builder, S, 3 * B))
    one = number(builder, 1.5)
    joined = builder.add("concat", builder.add("reshape", one, shape=(1,)), ratios, axis=0)
    wide = builder.add("cast", joined, to=FLOAT64)
    last = builder.add("gather", wide, builder.constant(np.array([2, 0])), axis=0)
    part = builder.add("slice", wide, starts=(1,), steps=(1,), shape=(1,))
    assert builder.known.ratios(joined) == ((3, 2), (B, S), (S, 3 * B))
    assert builder.known.ratios(last) == ((S, 3 * B), (3, 2))
    assert builder.known.ratios(part) == ((B, S),)
    # Extents may be zero: what is divided by them is no extent.
    assert builder.add("floor", part).dims is None
    chosen = builder.add("gather", wide, builder.input("at", INT64, (1,)), axis=0)
    assert builder.known.ratios(chosen) is None
    beyond = builder.add("gather", wide, builder.constant(np.array([3])), axis=0)
    assert builder.known.ratios(beyond) is None
    # Neither is a number that is no ratio, nor one of which another one is made.
    third = builder.add("concat", ratios, builder.constant(np.float32([1 / 3])), axis=0)
    assert builder.known.ratios(third) is None
    assert builder.known.ratios(builder.add("sqrt", ratios)) is None


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_parts_times_their_number_are_as_floats_have_them(dtype: Any) -> None:
    maker = Maker()
    maker.given("x", B)
    x = maker.add("cast", maker.dims([B]), to=dtype)
    number_of_parts = maker.constant(np.array(49, dtype.name))
    value = maker.add("multiply", maker.add("divide", x, number_of_parts), number_of_parts)
    graph = maker.made(maker.add("cast", maker.add("floor", value), to=INT64))
    for b in (1, 27, 49):
        (found,) = run_reference(graph, [np.zeros(b, np.float32)])
        array = np.array(b, dtype.name)
        assert found == np.floor(array / array.dtype.type(49) * array.dtype.type(49))


def test_large_floats_are_no_integers() -> None:
    builder = Builder()
    most = number(builder, np.finfo(np.float32).max)
    assert builder.add("minimum", floats(builder, B), most).dims is None


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
