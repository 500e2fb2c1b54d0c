"""Which outputs can append to an input in place, and the memory that they are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dim import minimum, symbol
from ftuner.core.dtype import FLOAT16, FLOAT32
from ftuner.core.evaluation import evaluate
from ftuner.graph.appending import ROOM_ROWS, Appended, Copied, memory_shape
from ftuner.graph.growing import appended_outputs, grown_outputs
from ftuner.graph.ir import TensorType, Value
from ftuner.graph.lowering import lower
from ftuner.graph.steps import NestStep

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


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_room(axis: int) -> None:
    """A multiple of ROOM_ROWS along the axis, at least the rows that there are and less than
    ROOM_ROWS more; it depends on nothing but the number of rows."""
    n = symbol("N")
    shape = (3, 4, 5)
    symbolic = tuple(n if i == axis else extent for i, extent in enumerate(shape))
    memory = memory_shape(symbolic, axis)
    whole = Value("whole", TensorType(FLOAT32, symbolic))
    pair, sliding = (
        Appended(0, 0, axis, 0, whole, (whole,), (whole,), slides=slides)
        for slides in (False, True)
    )
    layout = pair.layout
    assert pair.room == memory
    assert layout.shape == symbolic
    for rows in (0, 1, ROOM_ROWS - 1, ROOM_ROWS, ROOM_ROWS + 1, 5 * ROOM_ROWS):
        found = tuple(evaluate(extent, {"N": rows}) for extent in memory)
        assert [x for i, x in enumerate(found) if i != axis] == [
            x for i, x in enumerate(shape) if i != axis
        ]
        assert found[axis] % ROOM_ROWS == 0
        assert rows <= found[axis] < rows + ROOM_ROWS
        strides = [evaluate(stride, {"N": rows}) for stride in layout.strides]
        assert strides == [found[1] * found[2], found[2], 1]
        assert evaluate(sliding.room[axis], {"N": rows}) == found[axis] + ROOM_ROWS


def test_what_is_in_place_is_not_written() -> None:
    graph = graph_of(two_of_three)
    pairs = appended_outputs(graph)

    def copies(steps: Sequence[object]) -> int:
        return sum(isinstance(step, NestStep) and step.title == "copy" for step in steps)

    plain, lowered = lower(graph), lower(graph, appended=pairs)
    assert copies(plain.steps) == 4
    assert copies(lowered.steps) == 2
    assert lowered.appended == pairs
    for pair in pairs:
        assert all(b.number != pair.input for s in lowered.steps for b in s.reads
                   if b.kind == "input")  # fmt: skip
        assert not lowered.outputs[pair.output].contiguous
    assert lowered.outputs[1].contiguous
