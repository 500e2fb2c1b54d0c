"""Which outputs can append to an input in place, and why others cannot."""

from collections.abc import Callable, Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dim import Dim, maximum, minimum
from ftuner.core.dtype import FLOAT16, FLOAT32, INT64, DType
from ftuner.graph.algebra import apply, concat, exp, scalar
from ftuner.graph.appending import Copied, appended_outputs, grown_outputs
from ftuner.graph.ir import Value

Body = Callable[[Maker], "Value | Sequence[Value]"]


def past_and_new(g: Maker, name: str = "x", *columns: int, dtype: DType = FLOAT32) -> list[Value]:
    """Rows of a past and those that follow them."""
    return [
        g.given(n, B, rows, *columns, dtype=dtype) for n, rows in ((name, S), (name + "_new", T))
    ]


def appended(g: Maker, name: str = "x") -> Value:
    return concat(past_and_new(g, name, 8), 1)


def two_of_three(g: Maker) -> list[Value]:
    x, y = appended(g), appended(g, "y")
    return [x, x + 1, y]


def several_rows(g: Maker) -> Value:
    x, y = past_and_new(g, "x", 8)
    return concat([x, y, exp(y)], 1)


def and_read(read: Callable[[Value], Value], dtype: DType = FLOAT32) -> Body:
    """Rows that are appended to a past, and what else reads that."""

    def body(g: Maker) -> list[Value]:
        x, y = past_and_new(g, dtype=dtype)
        return [concat([x, y], 1), read(x)]

    return body


def last(g: Maker, x: Value, rows: int) -> Value:
    """The last rows of a tensor (batch, rows, 8), at most so many."""
    extent = minimum(x.shape[1], rows)
    return apply(
        "slice", x, starts=(0, x.shape[1] - extent, 0), steps=(1, 1, 1),
        shape=(x.shape[0], extent, x.shape[2]),
    )  # fmt: skip


def window(g: Maker, before: bool = True, after: bool = True) -> list[Value]:
    """Rows of a window, and a value that is read from all of them."""
    past, new = past_and_new(g, "x", 8)
    whole = concat([last(g, past, 5) if before else past, new], 1)
    total = whole.reduce("sum", (1,), keep=False)
    return [total, last(g, whole, 5) if after else whole]


FOUND: dict[str, tuple[Body, list[tuple[int, int, int]]]] = {
    "window": (window, [(0, 1, 1)]),
    "first of a window": (lambda g: window(g, after=False), [(0, 1, 1)]),
    "last of all": (lambda g: window(g, before=False), [(0, 1, 1)]),
    "alone": (appended, [(0, 0, 1)]),
    "two of three": (two_of_three, [(0, 0, 1), (2, 2, 1)]),
    "twice": (lambda g: [appended(g)] * 2, [(0, 0, 1)]),
    "several rows": (several_rows, [(0, 0, 1)]),
    "widened too": (and_read(lambda x: x.cast(FLOAT32), FLOAT16), [(0, 0, 1)]),
    "after itself": (lambda g: concat([g.given("x", B, S)] * 2, 1), [(0, 0, 1)]),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    body, wanted = FOUND[name]
    found = appended_outputs(graph_of(body))
    assert [(pair.input, pair.output, pair.axis) for pair in found] == wanted
    slides = name in ("window", "first of a window", "last of all")
    assert all(pair.slides == slides for pair in found)


def second(g: Maker) -> Value:
    x, y = past_and_new(g)
    return concat([exp(y), x], 1)


def begins_two(g: Maker) -> list[Value]:
    x, y = past_and_new(g)
    return [concat([x, y], 1), concat([x, exp(y)], 1)]


def another_axis(g: Maker) -> Value:
    whole = concat([g.given("x", B, S, 8), g.given("y", B, S, T)], 2)
    return whole.slice(1, S - minimum(S, 5), minimum(S, 5))


def and_read_beside_the_window(read: Callable[[Value, Value], Value]) -> Body:
    """A window that slides, and what else reads it or its past."""

    def body(g: Maker) -> list[Value]:
        past, new = past_and_new(g, "x", 8)
        kept = last(g, past, 5)
        return [concat([kept, new], 1), read(kept, past)]

    return body


NOT_FOUND: dict[str, Body] = {
    "another axis": another_axis,
    "beginning": lambda g: appended(g).slice(1, 0, S),
    "reads the window": and_read_beside_the_window(lambda kept, past: exp(kept)),
    "reads beside the window": and_read_beside_the_window(lambda kept, past: past.cast(FLOAT16)),
    "second": second,
    "no output": lambda g: exp(appended(g)),
    "fixed": lambda g: concat([g.given("x", B, 5), g.given("y", B, T)], 1),
    "read elsewhere": and_read(exp),
    "begins two": begins_two,
    "computed": lambda g: concat(past_and_new(g), 1) + 1,
}


@pytest.mark.parametrize("body", NOT_FOUND.values(), ids=NOT_FOUND)
def test_not_found(body: Body) -> None:
    assert appended_outputs(graph_of(body)) == ()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("read elsewhere", [(0, 0, "also read by: exp")]),
        ("begins two", [(0, 0, "also read by: concat"), (0, 1, "also read by: concat")]),
        ("reads the window", [(0, 0, "also read by: exp")]),
        ("fixed", [(0, 0, "it has 5 rows in every run")]),
        ("another axis", [(0, 0, "another axis")]),
        ("twice", [(0, 1, "output y0 has the same rows")]),
        *((name, []) for name in ("second", "no output", "computed", "alone")),
    ],
)
def test_why_not(name: str, wanted: list[tuple[int, int, str]]) -> None:
    body = NOT_FOUND[name] if name in NOT_FOUND else FOUND[name][0]
    found = [pair for pair in grown_outputs(graph_of(body)) if isinstance(pair, Copied)]
    assert [(pair.input, pair.output) for pair in found] == [(n, m) for n, m, _ in wanted]
    assert all(why in pair.why for pair, (*_, why) in zip(found, wanted, strict=True))


def cache(g: Maker, rows: Dim = S) -> tuple[Value, Value, Value]:
    """A cache (batch, rows, 8), the position of each sequence, and new rows."""
    return g.given("x", B, rows, 8), g.given("at", B, dtype=INT64), g.given("new", B, T, 8)


def write(x: Value, at: Value, new: Value) -> Value:
    return apply("write_rows", x, at, new, axis=1, circular=False)


def padded(
    x: Value, before: int = 0, fill: float = 0, columns: int = 0, rows: Dim | None = None
) -> Value:
    """A cache with more rows: as many as there are tokens."""
    rows = maximum(T - x.shape[1], 0) if rows is None else rows
    ends = {"before": (0, before, 0), "after": (0, rows, columns)}
    return apply("pad", x, scalar(fill, FLOAT32).cast(x.dtype), mode="constant", **ends)


def written(function: Callable[[Value, Value, Value], Value | list[Value]], rows: Dim = S) -> Body:
    """What a function makes of a cache, positions and new rows."""
    return lambda g: function(*cache(g, rows))


def written_and_widened(g: Maker) -> list[Value]:
    """The widened cache has the same rows written over."""
    x = g.given("x", B, S, 8, dtype=FLOAT16)
    at, new = g.given("at", B, dtype=INT64), g.given("new", B, T, 8)
    wide = write(padded(x.cast(FLOAT32)), at, new)
    half = write(padded(x), at, new.cast(FLOAT16))
    return [half, wide.reduce("sum", (1,), keep=False)]


def scattered(g: Maker) -> Value:
    x, at, new = g.given("x", S, 8), g.given("at", T, 1, dtype=INT64), g.given("new", T, 8)
    return apply("scatter_nd", x, at, new, kind="add")


@pytest.mark.parametrize(
    ("body", "keeps_its_length"),
    [
        (written(write), True),
        (written(write, 64), True),
        (written(lambda x, at, new: write(padded(x), at, new)), False),
        (written_and_widened, False),
        (scattered, True),
    ],
)
def test_what_is_written_over_is_found(body: Body, keeps_its_length: bool) -> None:
    (pair,) = appended_outputs(graph_of(body))
    assert (pair.input, pair.output) == (0, 0)
    assert pair.writes
    assert (pair.room == pair.whole.shape) == keeps_its_length


def written_and_widened_elsewhere(g: Maker) -> list[Value]:
    x = g.given("x", B, S, 8, dtype=FLOAT16)
    at, new = g.given("at", B, dtype=INT64), g.given("new", B, T, 8, dtype=FLOAT16)
    return [write(x, at, new), x.cast(FLOAT32)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (written(lambda x, at, new: [write(x, at, new), x.reduce("sum", (1,), keep=False)]),
         ["also read by: reduce"]),
        (written(lambda x, at, new: [write(x, at, new), x]), ["also an output"]),
        (written_and_widened_elsewhere, ["also read by: cast"]),
        (written(lambda x, at, _: write(x, at, x)), ["also read by: write_rows"]),
        (written(lambda x, at, new: [write(x, at, new), write(x, at, exp(new))]),
         ["also read by: write_rows"] * 2),
        # After ones, later, and to perhaps fewer rows.
        (written(lambda x, at, new: write(padded(x, fill=1), at, new)), []),
        (written(lambda x, at, new: write(padded(x, before=1), at, new)), []),
        (written(lambda x, at, new: write(padded(x, rows=T - S), at, new)), []),
    ],
)  # fmt: skip
def test_what_cannot_be_written_over(body: Body, wanted: list[str]) -> None:
    found = grown_outputs(graph_of(body))
    assert all(isinstance(pair, Copied) for pair in found)
    for pair, why in zip(found, wanted, strict=True):
        assert isinstance(pair, Copied)
        assert why in pair.why


def stacked(
    g: Maker, order: Sequence[int] = (0, 1), keep: bool = False, elements: int = 2
) -> list[Value]:
    """Keys and values as they are read, and both in one tensor. `keep`: with the axis of the
    stack."""
    past = g.given("past", elements, B, S, 8)
    pieces, parts = [], []
    for number, at in enumerate(order):
        new = g.given(f"new.{number}", *((1,) if keep else ()), B, T, 8)
        element = past.slice(0, at, 1) if keep else past[at]
        rows = concat([element, new], 2 if keep else 1)
        parts.append(exp(rows))
        pieces.append(rows if keep else rows[None])
    return [concat(pieces, 0), *parts]


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
    def body(g: Maker) -> list[Value]:
        return [*stacked(g), g.inputs[0].reduce("sum", (0,), keep=False)]

    (found,) = grown_outputs(graph_of(body))
    assert isinstance(found, Copied)
