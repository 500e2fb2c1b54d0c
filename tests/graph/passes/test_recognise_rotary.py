"""Rotary positions: the operator, and its spellings."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    S,
    T,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
    titles,
)

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import INT64
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.algebra import concat, gather
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.passes.rotary import rotary
from ftuner.runtime.cpu.backend import CpuBackend

D, H = 8, 3
HALVES, NEIGHBOURS = False, True


def part(x: Value, start: int, extent: int, step: int = 1) -> Value:
    return x.slice(x.rank - 1, start, extent, step)


def halves(x: Value) -> tuple[Value, Value]:
    return part(x, 0, D // 2), part(x, D // 2, D // 2)


def pair_of(x: Value, interleaved: bool) -> tuple[Value, Value]:
    return (part(x, 0, D // 2, 2), part(x, 1, D // 2, 2)) if interleaved else halves(x)


def taken(x: Value, axis: int, pairs: Shape) -> list[Value]:
    """By an index along one of two axes that the last one was split in."""
    split = x.reshape((*x.shape[:-1], *pairs))
    shape = (*x.shape[:-1], D // 2)
    return [split.slice(split.rank + axis, which, 1).reshape(shape) for which in range(2)]


def joined(first: Value, second: Value, interleaved: bool) -> Value:
    rank = first.rank
    if not interleaved:
        return concat([first, second], rank - 1)
    columns = [v.unsqueeze([rank]) for v in (first, second)]
    return concat(columns, rank).reshape((*first.shape[:-1], D))


def turned(x: Value, interleaved: bool) -> Value:
    first, second = pair_of(x, interleaved)
    return joined(-second, first, interleaved)


def by_elements(x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    return x * cosine + turned(x, interleaved) * sine


def by_pairs(x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    return of_pairs(*pair_of(x, interleaved), cosine, sine, interleaved)


def of_pairs(first: Value, second: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    real = first * cosine - second * sine
    return joined(real, second * cosine + first * sine, interleaved)


def tables(g: Maker, *shape: Dim) -> tuple[Value, Value]:
    return g.given("cos", *shape), g.given("sin", *shape)


def rotated(
    write: Callable[..., Value], table: Shape, interleaved: bool, shape: Shape = (B, H, S, D)
) -> Body:
    return lambda g: write(g.given("x", *shape), *tables(g, *table), interleaved)


FULL: tuple[Shape, ...] = ((B, 1, S, D), (S, D), (1, 1, S, D), (D,), (B, H, S, 1), (B, H, S, D))
HALF: tuple[Shape, ...] = ((B, 1, S, D // 2), (S, D // 2), (D // 2,), (S, 1))
WRITTEN = [
    rotated(write, shape, interleaved)
    for write, shapes in ((by_elements, FULL), (by_pairs, HALF))
    for shape in shapes
    for interleaved in (HALVES, NEIGHBOURS)
]


@pytest.mark.parametrize("body", WRITTEN)
def test_rotary(body: Body) -> None:
    graph = applied(rotary, graph_of(body))
    assert [op for op in ops(graph) if op != "reshape"] == ["rotary"]
    assert titles(graph) == ["rotary"]
    assert ops(rotary(graph)) == ops(graph)


def other_orders(g: Maker) -> Value:
    x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D)
    first, second = halves(x)
    return sine * joined(second * -1, first, HALVES) + cosine * x


def other_orders_of_pairs(g: Maker) -> Value:
    (first, second), (cosine, sine) = halves(g.given("x", B, S, D)), tables(g, S, D // 2)
    real = cosine * first - sine * second
    return joined(real, sine * first + cosine * second, HALVES)


def test_rotary_with_a_product_before_its_transposition() -> None:
    """As ONNX Runtime moves the transposition of heads."""

    def body(g: Maker) -> Value:
        x, (cosine, sine) = g.given("x", B, S, H, D), tables(g, 1, 1, S, D)
        exchanged = (0, 2, 1, 3)
        straight = (x * cosine.transpose(exchanged)).transpose(exchanged)
        return straight + turned(x.transpose(exchanged), NEIGHBOURS) * sine

    graph = applied(rotary, graph_of(body))
    assert [op for op in ops(graph) if op != "reshape"] == ["transpose", "rotary"]


def back_by_elements(x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    first, second = pair_of(x, interleaved)
    return x * cosine + joined(second, -first, interleaved) * sine


def back_by_pairs(x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    first, second = pair_of(x, interleaved)
    real = first * cosine + second * sine
    return joined(real, second * cosine - first * sine, interleaved)


@pytest.mark.parametrize("interleaved", [HALVES, NEIGHBOURS])
@pytest.mark.parametrize(
    ("write", "table"), [(back_by_elements, (S, D)), (back_by_pairs, (S, D // 2))]
)
def test_rotary_the_other_way(write: Callable[..., Value], table: Shape, interleaved: bool) -> None:
    """Queries and keys share the negated sines."""

    def body(g: Maker) -> list[Value]:
        angles = tables(g, *table)
        q, k = g.given("q", B, H, S, D), g.given("k", B, H, S, D)
        return [write(x, *angles, interleaved) for x in (q, k)]

    graph = applied(rotary, graph_of(body))
    assert [n for n in ops(graph) if n != "reshape"] == ["negative", "rotary", "rotary"]


def test_rotary_the_other_way_after_one_that_is_refused() -> None:
    """The first is broadcast over a batch, the second reads the same sines."""

    def body(g: Maker) -> list[Value]:
        angles = tables(g, B, 1, S, D)
        given = g.given("q", S, D), g.given("k", B, H, S, D)
        return [back_by_elements(x, *angles, HALVES) for x in given]

    graph = applied(rotary, graph_of(body))
    assert [n for n in ops(graph) if n in ("negative", "rotary")] == 2 * ["negative"] + ["rotary"]


@pytest.mark.parametrize("body", [other_orders, other_orders_of_pairs])
def test_rotary_in_other_orders(body: Body) -> None:
    assert titles(applied(rotary, graph_of(body))) == ["rotary"]


@pytest.mark.parametrize(
    ("axis", "pairs", "interleaved", "expected"),
    [(-1, (D // 2, 2), NEIGHBOURS, True), (-2, (2, D // 2), HALVES, True),
     (-1, (D // 2, 2), HALVES, False), (-2, (2, D // 2), NEIGHBOURS, False)],
)  # fmt: skip
def test_elements_of_pairs_that_are_taken_by_an_index(
    axis: int, pairs: Shape, interleaved: bool, expected: bool
) -> None:
    def body(g: Maker) -> Value:
        parts = taken(g.given("x", B, H, S, D), axis, pairs)
        return of_pairs(*parts, *tables(g, S, D // 2), interleaved)

    graph = applied(rotary, graph_of(body))
    assert ("rotary" in ops(graph)) == expected
    assert (titles(graph) == ["rotary"]) == expected


def test_part_of_each_head() -> None:
    """The rest is put behind what was turned."""

    def body(g: Maker) -> Value:
        x = g.given("x", B, H, S, 12)
        whole = by_elements(part(x, 0, D), *tables(g, S, D), HALVES)
        return concat([whole, part(x, D, 4)], 3)

    assert "rotary" in ops(applied(rotary, graph_of(body)))


def added(*, sign: int = 1, negate: bool = True, swap: bool = False, start: int = D // 2,
          interleaved: bool = HALVES, other: bool = False) -> Body:  # fmt: skip
    """What by_elements gives, with one thing otherwise."""

    def body(g: Maker) -> Value:
        x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D)
        first, second = part(x, 0, D // 2), part(x, start, D // 2)
        second = -second if negate else second
        pair = (first, second) if swap else (second, first)
        straight = (g.given("y", B, S, D) if other else x) * cosine
        across = joined(*pair, interleaved) * sine
        return straight + across if sign == 1 else straight - across

    return body


def pairs_with(write: Callable[[Value, Value, Value, Value], tuple[Value, Value]]) -> Body:
    """What by_pairs gives, with one thing otherwise."""
    return lambda g: joined(*write(*halves(g.given("x", B, S, D)), *tables(g, S, D // 2)), HALVES)


@pytest.mark.parametrize(
    "body",
    [added(sign=-1), added(negate=False), added(swap=True), added(start=D // 2 - 1),
     added(interleaved=NEIGHBOURS), added(other=True),
     pairs_with(lambda x, y, c, s: (x * c + y * s, y * c + x * s)),
     pairs_with(lambda x, y, c, s: (x * c - y * s, y * c - x * s)),
     pairs_with(lambda x, y, c, s: (x * c - y * s, y * s + x * c))],
)  # fmt: skip
def test_what_is_no_rotary(body: Body) -> None:
    assert_left_alone(rotary, body)


def test_x_that_broadcasts_along_its_angles() -> None:
    """With more axes than x has, they are left alone."""
    assert_left_alone(rotary, rotated(by_elements, (B, S, D), HALVES, (S, D)))


@pytest.mark.each_value
@pytest.mark.parametrize("interleaved", [HALVES, NEIGHBOURS])
@pytest.mark.parametrize("write", [by_elements, by_pairs])
def test_rotary_runs(write: Callable[..., Value], interleaved: bool, backend: CpuBackend) -> None:
    """Of heads that lie in rows, by angles of positions, before a product."""

    def body(g: Maker) -> Value:
        x = g.heads(g.given("x", B, S, H * D), H, (0, 2, 1, 3))
        positions = g.given("at", B, T, dtype=INT64)
        width = D if write is by_elements else D // 2
        found = [gather(g.weight(3, width), positions) for _ in range(2)]
        angles = [v.reshape((B, 1, T, width)) for v in found]
        return write(x.slice(2, 0, T), *angles, interleaved) @ g.given("k", B, H, T, D).swapped()

    graph = applied(optimised, graph_of(body))
    assert ops(graph).count("rotary") == 1
    assert_runs(graph, backend, {"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 9, "T": 9})


def written(g: Maker, x: Value, *angles: Value, axis: int) -> Value:
    return g.add("rotary", x, *angles, axis=axis)


def test_shapes_that_are_no_pairs() -> None:
    g = Maker()
    x, angles = g.given("x", B, 3, 4), g.given("cos", 4)
    with pytest.raises(ShapeError, match="elements of a pair: 3 and 2"):
        written(g, x, angles, angles, axis=1)
    with pytest.raises(ShapeError, match="axis 3"):
        written(g, x, angles, angles, axis=3)
    with pytest.raises(GraphError, match="rotary of"):
        written(g, angles, x, x, axis=0)
    with pytest.raises(GraphError, match="one dtype"):
        written(g, x, angles, g.constant(np.zeros(4)), axis=1)
