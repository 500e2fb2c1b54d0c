"""Rotary positions: the operator, and its spellings."""

from __future__ import annotations

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
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.passes.rotary import rotary
from ftuner.runtime.cpu.backend import CpuBackend

D, H = 8, 3
HALVES, NEIGHBOURS = False, True


def part(g: Maker, x: Value, start: int, extent: int, step: int = 1) -> Value:
    rest = x.rank - 1
    return g.add("slice", x, starts=(0,) * rest + (start,), steps=(1,) * rest + (step,),
                 shape=(*x.shape[:-1], extent))  # fmt: skip


def halves(g: Maker, x: Value) -> tuple[Value, Value]:
    return part(g, x, 0, D // 2), part(g, x, D // 2, D // 2)


def neighbours(g: Maker, x: Value) -> tuple[Value, Value]:
    return part(g, x, 0, D // 2, 2), part(g, x, 1, D // 2, 2)


def taken(g: Maker, x: Value, axis: int, pairs: Shape) -> tuple[Value, Value]:
    """By an index along one of two axes that the last one was split in."""
    split = g.add("reshape", x, shape=(*x.shape[:-1], *pairs))
    found = []
    for which in range(2):
        starts = [0] * split.rank
        starts[axis] = which
        shape = tuple(1 if i == axis % split.rank else n for i, n in enumerate(split.shape))
        one = g.add("slice", split, starts=tuple(starts), steps=(1,) * split.rank, shape=shape)
        found.append(g.add("reshape", one, shape=(*x.shape[:-1], D // 2)))
    return found[0], found[1]


def joined(g: Maker, first: Value, second: Value, interleaved: bool) -> Value:
    rank = first.rank
    if not interleaved:
        return g.add("concat", first, second, axis=rank - 1)
    columns = [g.add("reshape", v, shape=(*first.shape, 1)) for v in (first, second)]
    return g.add("reshape", g.add("concat", *columns, axis=rank), shape=(*first.shape[:-1], D))


def turned(g: Maker, x: Value, interleaved: bool) -> Value:
    first, second = (neighbours if interleaved else halves)(g, x)
    return joined(g, g.add("negative", second), first, interleaved)


def by_elements(g: Maker, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    straight = g.add("multiply", x, cosine)
    return g.add("add", straight, g.add("multiply", turned(g, x, interleaved), sine))


def by_pairs(g: Maker, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    return of_pairs(g, (neighbours if interleaved else halves)(g, x), cosine, sine, interleaved)


def of_pairs(
    g: Maker, pairs: tuple[Value, Value], cosine: Value, sine: Value, interleaved: bool
) -> Value:
    first, second = pairs
    real = g.add("subtract", g.add("multiply", first, cosine), g.add("multiply", second, sine))
    imaginary = g.add("add", g.add("multiply", second, cosine), g.add("multiply", first, sine))
    return joined(g, real, imaginary, interleaved)


def tables(g: Maker, *shape: Dim) -> tuple[Value, Value]:
    return g.given("cos", *shape), g.given("sin", *shape)


def rotated(
    write: Callable[..., Value], table: Shape, interleaved: bool, shape: Shape = (B, H, S, D)
) -> Body:
    return lambda g: write(g, g.given("x", *shape), *tables(g, *table), interleaved)


FULL: tuple[Shape, ...] = ((B, 1, S, D), (S, D), (1, 1, S, D), (D,), (B, H, S, 1), (B, H, S, D))
HALF: tuple[Shape, ...] = ((B, 1, S, D // 2), (S, D // 2), (D // 2,), (S, 1))
WRITTEN = [
    rotated(write, shape, interleaved)
    for write, shapes in ((by_elements, FULL), (by_pairs, HALF))
    for shape in shapes
    for interleaved in (HALVES, NEIGHBOURS)
]


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_rotary(number: int) -> None:
    graph = applied(rotary, graph_of(WRITTEN[number]))
    assert [op for op in ops(graph) if op != "reshape"] == ["rotary"]
    assert titles(graph) == ["rotary"]
    assert ops(rotary(graph)) == ops(graph)


def other_orders(g: Maker) -> Value:
    x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D)
    first, second = halves(g, x)
    other = joined(g, g.add("multiply", second, g.number(-1)), first, HALVES)
    return g.add("add", g.add("multiply", sine, other), g.add("multiply", cosine, x))


def other_orders_of_pairs(g: Maker) -> Value:
    x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D // 2)
    first, second = halves(g, x)
    real = g.add("subtract", g.add("multiply", cosine, first), g.add("multiply", sine, second))
    imaginary = g.add("add", g.add("multiply", sine, first), g.add("multiply", cosine, second))
    return joined(g, real, imaginary, HALVES)


def test_rotary_with_a_product_before_its_transposition() -> None:
    """As ONNX Runtime moves the transposition of heads."""

    def body(g: Maker) -> Value:
        x, (cosine, sine) = g.given("x", B, S, H, D), tables(g, 1, 1, S, D)
        there = g.add("transpose", x, perm=(0, 2, 1, 3))
        straight = g.add("multiply", x, g.add("transpose", cosine, perm=(0, 2, 1, 3)))
        straight = g.add("transpose", straight, perm=(0, 2, 1, 3))
        return g.add("add", straight, g.add("multiply", turned(g, there, NEIGHBOURS), sine))

    graph = applied(rotary, graph_of(body))
    assert [op for op in ops(graph) if op != "reshape"] == ["transpose", "rotary"]


def back_by_elements(g: Maker, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    first, second = (neighbours if interleaved else halves)(g, x)
    other = joined(g, second, g.add("negative", first), interleaved)
    return g.add("add", g.add("multiply", x, cosine), g.add("multiply", other, sine))


def back_by_pairs(g: Maker, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    first, second = (neighbours if interleaved else halves)(g, x)
    real = g.add("add", g.add("multiply", first, cosine), g.add("multiply", second, sine))
    imaginary = g.add("subtract", g.add("multiply", second, cosine), g.add("multiply", first, sine))
    return joined(g, real, imaginary, interleaved)


@pytest.mark.parametrize("interleaved", [HALVES, NEIGHBOURS])
@pytest.mark.parametrize(
    ("write", "table"), [(back_by_elements, (S, D)), (back_by_pairs, (S, D // 2))]
)
def test_rotary_the_other_way(write: Callable[..., Value], table: Shape, interleaved: bool) -> None:
    """Queries and keys share the negated sines."""

    def body(g: Maker) -> list[Value]:
        angles = tables(g, *table)
        q, k = g.given("q", B, H, S, D), g.given("k", B, H, S, D)
        return [write(g, x, *angles, interleaved) for x in (q, k)]

    graph = applied(rotary, graph_of(body))
    assert [n for n in ops(graph) if n != "reshape"] == ["negative", "rotary", "rotary"]


def test_rotary_the_other_way_after_one_that_is_refused() -> None:
    """The first is broadcast over a batch, the second reads the same sines."""

    def body(g: Maker) -> list[Value]:
        angles = tables(g, B, 1, S, D)
        given = g.given("q", S, D), g.given("k", B, H, S, D)
        return [back_by_elements(g, x, *angles, HALVES) for x in given]

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
        parts = taken(g, g.given("x", B, H, S, D), axis, pairs)
        return of_pairs(g, parts, *tables(g, S, D // 2), interleaved)

    graph = applied(rotary, graph_of(body))
    assert ("rotary" in ops(graph)) == expected
    assert (titles(graph) == ["rotary"]) == expected


def test_part_of_each_head() -> None:
    """The rest is put behind what was turned."""

    def body(g: Maker) -> Value:
        x = g.given("x", B, H, S, 12)
        whole = by_elements(g, part(g, x, 0, D), *tables(g, S, D), HALVES)
        return g.add("concat", whole, part(g, x, D, 4), axis=3)

    assert "rotary" in ops(applied(rotary, graph_of(body)))


def added(*, sign: str = "add", negate: bool = True, swap: bool = False, start: int = D // 2,
          interleaved: bool = HALVES, other: bool = False) -> Body:  # fmt: skip
    """What by_elements gives, with one thing otherwise."""

    def body(g: Maker) -> Value:
        x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D)
        first, second = part(g, x, 0, D // 2), part(g, x, start, D // 2)
        second = g.add("negative", second) if negate else second
        pair = (first, second) if swap else (second, first)
        straight = g.add("multiply", g.given("y", B, S, D) if other else x, cosine)
        return g.add(sign, straight, g.add("multiply", joined(g, *pair, interleaved), sine))

    return body


def pairs_with(*, sums: tuple[str, str] = ("subtract", "add"), swap: bool = False) -> Body:
    """What by_pairs gives, with one thing otherwise."""

    def body(g: Maker) -> Value:
        x, (cosine, sine) = g.given("x", B, S, D), tables(g, S, D // 2)
        first, second = halves(g, x)
        real = g.add(sums[0], g.add("multiply", first, cosine), g.add("multiply", second, sine))
        tables_ = (sine, cosine) if swap else (cosine, sine)
        imaginary = g.add(sums[1], g.add("multiply", second, tables_[0]),
                          g.add("multiply", first, tables_[1]))  # fmt: skip
        return joined(g, real, imaginary, HALVES)

    return body


@pytest.mark.parametrize(
    "body",
    [added(sign="subtract"), added(negate=False), added(swap=True), added(start=D // 2 - 1),
     added(interleaved=NEIGHBOURS), added(other=True), pairs_with(sums=("add", "add")),
     pairs_with(sums=("subtract", "subtract")), pairs_with(swap=True)],
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
        found = [g.add("gather", g.weight(3, width), positions, axis=0) for _ in range(2)]
        angles = [g.add("reshape", v, shape=(B, 1, T, width)) for v in found]
        keys = g.add("transpose", g.given("k", B, H, T, D), perm=(0, 1, 3, 2))
        y = write(g, g.add("slice", x, starts=(0,) * 4, steps=(1,) * 4, shape=(B, H, T, D)),
                  *angles, interleaved)  # fmt: skip
        return g.add("matmul", y, keys)

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
