"""Which outputs can append to an input in place, and why others cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dim import Dim, maximum, minimum
from ftuner.core.dtype import FLOAT16, FLOAT32, INT64
from ftuner.graph.appending import Copied, appended_outputs, grown_outputs
from ftuner.graph.ir import Value

Body = Callable[[Maker], "Value | Sequence[Value]"]


def appended(g: Maker, name: str = "x", axis: int = 1) -> Value:
    past, new = g.given(name, B, S, 8), g.given(f"{name}_new", B, T, 8)
    return g.add("concat", past, new, axis=axis)


def alone(g: Maker) -> Value:
    return appended(g)


def two_of_three(g: Maker) -> list[Value]:
    x, y = appended(g), appended(g, "y")
    return [x, g.add("add", x, g.number(1)), y]


def twice(g: Maker) -> list[Value]:
    x = appended(g)
    return [x, x]


def several_rows(g: Maker) -> Value:
    x, y = g.given("x", B, S, 8), g.given("y", B, T, 8)
    return g.add("concat", x, y, g.add("exp", y), axis=1)


def widened_too(g: Maker) -> list[Value]:
    x, y = g.given("x", B, S, dtype=FLOAT16), g.given("y", B, T, dtype=FLOAT16)
    return [g.add("concat", x, y, axis=1), g.add("cast", x, to=FLOAT32)]


def after_itself(g: Maker) -> Value:
    x = g.given("x", B, S)
    return g.add("concat", x, x, axis=1)


def last(g: Maker, x: Value, rows: int) -> Value:
    """The last rows of a tensor (batch, rows, 8), at most so many."""
    extent = minimum(x.shape[1], rows)
    starts, shape = (0, x.shape[1] - extent, 0), (x.shape[0], extent, x.shape[2])
    return g.add("slice", x, starts=starts, steps=(1, 1, 1), shape=shape)


def window(g: Maker, before: bool = True, after: bool = True) -> list[Value]:
    """Rows of a window, and a value that is read from all of them."""
    past, new = g.given("x", B, S, 8), g.given("x_new", B, T, 8)
    whole = g.add("concat", last(g, past, 5) if before else past, new, axis=1)
    return [g.add("reduce", whole, kind="sum", axes=(1,)), last(g, whole, 5) if after else whole]


def first_of_window(g: Maker) -> list[Value]:
    return window(g, after=False)


def last_of_all(g: Maker) -> list[Value]:
    return window(g, before=False)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (window, [(0, 1, 1)]), (first_of_window, [(0, 1, 1)]), (last_of_all, [(0, 1, 1)]),
        (alone, [(0, 0, 1)]), (two_of_three, [(0, 0, 1), (2, 2, 1)]), (twice, [(0, 0, 1)]),
        (several_rows, [(0, 0, 1)]), (widened_too, [(0, 0, 1)]), (after_itself, [(0, 0, 1)]),
    ],
)  # fmt: skip
def test_found(body: Body, wanted: list[tuple[int, int, int]]) -> None:
    found = appended_outputs(graph_of(body))
    assert [(pair.input, pair.output, pair.axis) for pair in found] == wanted
    slides = body in (window, first_of_window, last_of_all)
    assert all(pair.slides == slides for pair in found)


def second(g: Maker) -> Value:
    x, y = g.given("x", B, S), g.given("y", B, T)
    return g.add("concat", g.add("exp", y), x, axis=1)


def no_output(g: Maker) -> Value:
    return g.add("exp", appended(g))


def fixed(g: Maker) -> Value:
    return g.add("concat", g.given("x", B, 5), g.given("y", B, T), axis=1)


def read_elsewhere(g: Maker) -> list[Value]:
    x, y = g.given("x", B, S), g.given("y", B, T)
    return [g.add("concat", x, y, axis=1), g.add("exp", x)]


def begins_two(g: Maker) -> list[Value]:
    x, y = g.given("x", B, S), g.given("y", B, T)
    return [g.add("concat", x, y, axis=1), g.add("concat", x, g.add("exp", y), axis=1)]


def computed(g: Maker) -> Value:
    x, y = g.given("x", B, S), g.given("y", B, T)
    return g.add("add", g.add("concat", x, y, axis=1), g.number(1))


def another_axis(g: Maker) -> Value:
    x, y = g.given("x", B, S, 8), g.given("y", B, S, T)
    starts, shape = (0, S - minimum(S, 5), 0), (B, minimum(S, 5), 8 + T)
    whole = g.add("concat", x, y, axis=2)
    return g.add("slice", whole, starts=starts, steps=(1, 1, 1), shape=shape)


def beginning(g: Maker) -> Value:
    whole = appended(g)
    return g.add("slice", whole, starts=(0, 0, 0), steps=(1, 1, 1), shape=(B, S, 8))


def reads_the_window(g: Maker) -> list[Value]:
    past, new = g.given("x", B, S, 8), g.given("x_new", B, T, 8)
    kept = last(g, past, 5)
    return [g.add("concat", kept, new, axis=1), g.add("exp", kept)]


def reads_beside_the_window(g: Maker) -> list[Value]:
    past, new = g.given("x", B, S, 8), g.given("x_new", B, T, 8)
    return [g.add("concat", last(g, past, 5), new, axis=1), g.add("cast", past, to=FLOAT16)]


@pytest.mark.parametrize(
    "body",
    [
        another_axis,
        beginning,
        reads_the_window,
        reads_beside_the_window,
        second,
        no_output,
        fixed,
        read_elsewhere,
        begins_two,
        computed,
    ],
)
def test_not_found(body: Body) -> None:
    assert appended_outputs(graph_of(body)) == ()


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (read_elsewhere, [(0, 0, "also read by: exp")]),
        (begins_two, [(0, 0, "also read by: concat"), (0, 1, "also read by: concat")]),
        (reads_the_window, [(0, 0, "also read by: exp")]),
        (fixed, [(0, 0, "it has 5 rows in every run")]), (another_axis, [(0, 0, "another axis")]),
        (twice, [(0, 1, "output y0 has the same rows")]), (second, []), (no_output, []),
        (computed, []), (alone, []),
    ],
)  # fmt: skip
def test_why_not(body: Body, wanted: list[tuple[int, int, str]]) -> None:
    found = [pair for pair in grown_outputs(graph_of(body)) if isinstance(pair, Copied)]
    assert [(pair.input, pair.output) for pair in found] == [(n, m) for n, m, _ in wanted]
    assert all(why in pair.why for pair, (*_, why) in zip(found, wanted, strict=True))


def cache(g: Maker, rows: Dim = S) -> tuple[Value, Value, Value]:
    """A cache (batch, rows, 8), the position of each sequence, and new rows."""
    return g.given("x", B, rows, 8), g.given("at", B, dtype=INT64), g.given("new", B, T, 8)


def written(g: Maker) -> Value:
    return write(g, *cache(g))


def write(g: Maker, x: Value, at: Value, new: Value) -> Value:
    return g.add("write_rows", x, at, new, axis=1, circular=False)


def written_to_a_number_of_rows(g: Maker) -> Value:
    return write(g, *cache(g, 64))


def padded(
    g: Maker, x: Value, before: int = 0, fill: float = 0, columns: int = 0, rows: Dim | None = None
) -> Value:
    """A cache with more rows: as many as there are tokens."""
    rows = maximum(T - x.shape[1], 0) if rows is None else rows
    ends = {"before": (0, before, 0), "after": (0, rows, columns)}
    return g.add("pad", x, g.number(fill), mode="constant", **ends)


def written_to_more_rows(g: Maker) -> Value:
    x, at, new = cache(g)
    return write(g, padded(g, x), at, new)


def written_and_widened(g: Maker) -> list[Value]:
    """The widened cache has the same rows written over."""
    x = g.given("x", B, S, 8, dtype=FLOAT16)
    at, new = g.given("at", B, dtype=INT64), g.given("new", B, T, 8)
    wide = write(g, padded(g, g.add("cast", x, to=FLOAT32)), at, new)
    zero = g.add("cast", g.number(0), to=FLOAT16)
    ends = {"before": (0, 0, 0), "after": (0, maximum(T - S, 0), 0)}
    room = g.add("pad", x, zero, mode="constant", **ends)
    half = write(g, room, at, g.add("cast", new, to=FLOAT16))
    return [half, g.add("reduce", wide, kind="sum", axes=(1,))]


def scattered(g: Maker) -> Value:
    x, at, new = g.given("x", S, 8), g.given("at", T, 1, dtype=INT64), g.given("new", T, 8)
    return g.add("scatter_nd", x, at, new, kind="add")


@pytest.mark.parametrize(
    "body",
    [written, written_to_a_number_of_rows, written_to_more_rows, written_and_widened, scattered],
)
def test_what_is_written_over_is_found(body: Body) -> None:
    (pair,) = appended_outputs(graph_of(body))
    assert (pair.input, pair.output) == (0, 0)
    assert pair.writes
    keeps_its_length = body not in (written_to_more_rows, written_and_widened)
    assert (pair.room == pair.whole.shape) == keeps_its_length


def written_and_read(g: Maker) -> list[Value]:
    x, at, new = cache(g)
    return [write(g, x, at, new), g.add("reduce", x, kind="sum", axes=(1,))]


def written_and_widened_elsewhere(g: Maker) -> list[Value]:
    x = g.given("x", B, S, 8, dtype=FLOAT16)
    at, new = g.given("at", B, dtype=INT64), g.given("new", B, T, 8, dtype=FLOAT16)
    return [write(g, x, at, new), g.add("cast", x, to=FLOAT32)]


def written_and_given(g: Maker) -> list[Value]:
    x, at, new = cache(g)
    return [write(g, x, at, new), x]


def written_to_itself(g: Maker) -> Value:
    x, at, _ = cache(g)
    return write(g, x, at, x)


def written_twice(g: Maker) -> list[Value]:
    x, at, new = cache(g)
    return [write(g, x, at, new), write(g, x, at, g.add("exp", new))]


def written_after_ones(g: Maker) -> Value:
    x, at, new = cache(g)
    return write(g, padded(g, x, fill=1), at, new)


def written_later(g: Maker) -> Value:
    x, at, new = cache(g)
    return write(g, padded(g, x, before=1), at, new)


def written_to_perhaps_fewer_rows(g: Maker) -> Value:
    x, at, new = cache(g)
    return write(g, padded(g, x, rows=T - S), at, new)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (written_and_read, ["also read by: reduce"]), (written_and_given, ["also an output"]),
        (written_and_widened_elsewhere, ["also read by: cast"]),
        (written_to_itself, ["also read by: write_rows"]),
        (written_twice, ["also read by: write_rows"] * 2), (written_after_ones, []),
        (written_later, []), (written_to_perhaps_fewer_rows, []),
    ],
)  # fmt: skip
def test_what_cannot_be_written_over(body: Body, wanted: list[str]) -> None:
    found = grown_outputs(graph_of(body))
    assert all(isinstance(pair, Copied) for pair in found)
    for pair, why in zip(found, wanted, strict=True):
        assert isinstance(pair, Copied)
        assert why in pair.why


def element(g: Maker, x: Value, at: int, keep: bool) -> Value:
    """An element along the first axis."""
    starts, shape = (at, *(0,) * (x.rank - 1)), (1, *x.shape[1:])
    found = g.add("slice", x, starts=starts, steps=(1,) * x.rank, shape=shape)
    return found if keep else g.add("reshape", found, shape=x.shape[1:])


def stacked(
    g: Maker, order: Sequence[int] = (0, 1), keep: bool = False, elements: int = 2
) -> list[Value]:
    """Keys and values as they are read, and both in one tensor. `keep`: with the axis of the
    stack."""
    past = g.given("past", elements, B, S, 8)
    pieces, parts = [], []
    for number, at in enumerate(order):
        new = g.given(f"new.{number}", *((1,) if keep else ()), B, T, 8)
        rows = g.add("concat", element(g, past, at, keep), new, axis=2 if keep else 1)
        parts.append(g.add("exp", rows))
        pieces.append(rows if keep else g.add("reshape", rows, shape=(1, *rows.shape)))
    return [g.add("concat", *pieces, axis=0), *parts]


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_stacked_is_found(keep: bool) -> None:
    graph = graph_of(lambda g: stacked(g, keep=keep))
    (pair,) = appended_outputs(graph)
    assert (pair.input, pair.output, pair.axis, pair.stacked) == (0, 0, 2, 0)
    first, second = (pair.layouts[part] for part in pair.parts)
    whole = pair.layout
    assert (first.offset, second.offset) == (0, whole.strides[0])
    for layout in (first, second):
        assert layout.strides == (whole.strides if keep else whole.strides[1:])
    assert pair.layouts[graph.inputs[0]].strides == whole.strides


def stacked_and_read(g: Maker) -> list[Value]:
    found = stacked(g)
    return [*found, g.add("reduce", g.inputs[0], kind="sum", axes=(0,))]


@pytest.mark.parametrize(
    "body",
    [
        lambda g: stacked(g, (1, 0)), lambda g: stacked(g, (0, 0)), lambda g: stacked(g, (0,)),
        lambda g: stacked(g, elements=3),
    ],
)  # fmt: skip
def test_other_stacks_are_not_found(body: Body) -> None:
    assert grown_outputs(graph_of(body)) == ()


def test_a_stack_that_is_read_elsewhere() -> None:
    (found,) = grown_outputs(graph_of(stacked_and_read))
    assert isinstance(found, Copied)
    assert found.why == "it is also read by: reduce"
