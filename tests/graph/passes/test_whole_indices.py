"""Look-ups and writes at the positions of all rows become what they look up or write."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, applied, assert_left_alone, assert_runs, graph_of, ops

from ftuner.core.dim import Dim
from ftuner.graph.ir import Value
from ftuner.graph.passes.whole_indices import whole_indices
from ftuner.runtime.cpu.backend import CpuBackend


def iota(g: Maker, extent: Dim, axis: int = 0, rank: int = 1) -> Value:
    shape = tuple(extent if i == axis else 1 for i in range(rank))
    return g.add("iota", shape=shape, axis=axis)


def grid(g: Maker, *shape: Dim, turned: bool = False) -> Value:
    """The positions of all elements of a shape, one in each row, the last index first if
    `turned`."""
    count: Dim = 1
    for extent in shape:
        count = count * extent
    rows = []
    for axis, extent in enumerate(shape):
        whole = g.add("broadcast", iota(g, extent, axis, len(shape)), shape=shape)
        rows.append(g.add("reshape", whole, shape=(1, count)))
    rows = rows[::-1] if turned else rows
    return g.add("transpose", g.add("concat", *rows, axis=0), perm=(1, 0))


def rows_in_order(g: Maker) -> Value:
    x = g.given("x", B, S, 4)
    return g.add("exp", g.add("gather", x, iota(g, S), axis=1, node=""))


def first_rows_by_positions(g: Maker) -> Value:
    x = g.given("x", B, S, 4)
    at = g.add("transpose", g.add("reshape", iota(g, B), shape=(1, B)), perm=(1, 0))
    return g.add("exp", g.add("gather_nd", x, at, batch_dims=0, node=""))


def written_everywhere(g: Maker) -> Value:
    x, y = g.given("x", B, S, 4), g.given("y", B * S * 4)
    return g.add("exp", g.add("scatter_nd", x, grid(g, B, S, 4), y, kind="none", node=""))


def rows_written_everywhere(g: Maker) -> Value:
    x, y = g.given("x", B, S, 4), g.given("y", B * S, 4)
    return g.add("exp", g.add("scatter_nd", x, grid(g, B, S), y, kind="none", node=""))


def written_nowhere(g: Maker) -> Value:
    x, y = g.given("x", B, S, 4), g.given("y", 0, S, 4)
    at = g.constant(np.zeros((0, 1), np.int64))
    return g.add("exp", g.add("scatter_nd", x, at, y, kind="none", node=""))


@pytest.mark.parametrize(
    "body",
    [
        rows_in_order, first_rows_by_positions, written_everywhere, rows_written_everywhere,
        written_nowhere,
    ],
)  # fmt: skip
def test_whole(body: Callable[[Maker], Value], widest: CpuBackend) -> None:
    found = applied(whole_indices, graph_of(body))
    assert not {"gather", "gather_nd", "scatter_nd", "iota"} & set(ops(found))
    assert_runs(found, widest, *({"B": b, "S": s} for b, s in ((2, 3), (1, 1), (0, 2), (3, 0))))


def of_part(g: Maker) -> Value:
    return g.add("gather", g.given("x", B, S, 4), iota(g, B), axis=1, node="")


def of_another_order(g: Maker) -> Value:
    x, y = g.given("x", S, S), g.given("y", S * S)
    return g.add("scatter_nd", x, grid(g, S, S, turned=True), y, kind="none", node="")


def added(g: Maker) -> Value:
    x, y = g.given("x", B, S), g.given("y", B * S)
    return g.add("scatter_nd", x, grid(g, B, S), y, kind="add", node="")


@pytest.mark.parametrize("body", [of_part, of_another_order, added])
def test_left_alone(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(whole_indices, body)
