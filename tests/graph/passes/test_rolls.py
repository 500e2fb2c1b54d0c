"""Parts of an axis in exchanged order become one read."""

from collections.abc import Callable

import pytest
from tests.graph.graphs import (
    B,
    Maker,
    S,
    T,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
)

from ftuner.core.dim import Dim, minimum
from ftuner.graph.ir import Value
from ftuner.graph.rewrite import rules
from ftuner.runtime.cpu.backend import CpuBackend


def part(g: Maker, x: Value, axis: int, start: Dim, extent: Dim) -> Value:
    starts: list[Dim] = [0] * x.rank
    shape = list(x.shape)
    starts[axis], shape[axis] = start, extent
    return g.add("slice", x, starts=tuple(starts), steps=(1,) * x.rank, shape=tuple(shape))


def rolled(g: Maker, x: Value, axis: int, start: Dim, by: Dim) -> Value:
    """`by` is what is left of `start` on a short axis."""
    extent = x.shape[axis]
    late, early = part(g, x, axis, start, extent - by), part(g, x, axis, 0, by)
    return g.add("concat", late, early, axis=axis)


def forwards(g: Maker) -> Value:
    x = g.given("x", B, S, T, 4)
    x = rolled(g, x, 1, 3, minimum(3, S))
    return g.add("exp", rolled(g, x, 2, 2, minimum(2, T)))


def backwards(g: Maker) -> Value:
    x = g.given("x", B, S, T, 4)
    first, second = S - minimum(3, S), T - minimum(2, T)
    return rolled(g, rolled(g, x, 1, first, first), 2, second, second)


def of_what_is_padded(g: Maker) -> Value:
    """What is rolled is read where it is rolled."""
    widths = {"before": (0, 0, 0), "after": (0, 2, 0)}
    x = g.add("pad", g.given("x", B, S, 4), g.number(0), mode="constant", **widths)
    return rolled(g, x, 1, 2, 2)


@pytest.mark.parametrize("body", [forwards, backwards, of_what_is_padded])
def test_rolled(body: Callable[[Maker], Value], widest: CpuBackend) -> None:
    found = applied(rules.roll, graph_of(body))
    assert not {"slice", "concat"} & set(ops(found))
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (3, 2), (2, 1), (1, 7), (0, 4))]
    assert_runs(found, widest, *runs)


def in_order(g: Maker) -> Value:
    x = g.given("x", B, S, 4)
    parts = (part(g, x, 1, 0, minimum(3, S)), part(g, x, 1, minimum(3, S), S - minimum(3, S)))
    return g.add("concat", *parts, axis=1)


def along_the_last_axis(g: Maker) -> Value:
    return rolled(g, g.given("x", B, 4), 1, 2, 2)


def of_two(g: Maker) -> Value:
    late = part(g, g.given("x", B, 4, S), 1, 1, 3)
    return g.add("concat", late, part(g, g.given("y", B, 4, S), 1, 0, 1), axis=1)


def overlapping(g: Maker) -> Value:
    x = g.given("x", B, 5, S)
    return g.add("concat", part(g, x, 1, 1, 3), part(g, x, 1, 0, 2), axis=1)


def along_another_axis(g: Maker) -> Value:
    x = g.given("x", B, 4, 4, S)
    return g.add("concat", part(g, x, 2, 2, 2), part(g, x, 2, 0, 2), axis=1)


@pytest.mark.parametrize(
    "body", [in_order, along_the_last_axis, of_two, overlapping, along_another_axis]
)
def test_what_rolls_nothing(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(rules.roll, body)
