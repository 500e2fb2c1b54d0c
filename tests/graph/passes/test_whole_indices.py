"""Look-ups and writes at the positions of all rows become what they look up or write."""

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    S,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
)

from ftuner.core.dim import Dim, Shape, product
from ftuner.graph.algebra import apply, concat, exp, gather, iota
from ftuner.graph.ir import Value
from ftuner.graph.passes.whole_indices import whole_indices
from ftuner.runtime.cpu.backend import CpuBackend


def grid(*shape: Dim, turned: bool = False) -> Value:
    """The positions of all elements of a shape, one in each row, the last index first if
    `turned`."""
    rows = [
        iota(extent, axis, len(shape)).broadcast(shape).reshape((1, product(shape)))
        for axis, extent in enumerate(shape)
    ]
    return concat(rows[::-1] if turned else rows, 0).swapped()


def scattered(g: Maker, shape: Shape, at: Value, rows: Shape, kind: str = "none") -> Value:
    x, y = g.given("x", *shape), g.given("y", *rows)
    return apply("scatter_nd", x, at, y, kind=kind, node="")


def by_positions(g: Maker) -> Value:
    at = iota(B).reshape((1, B)).swapped()
    return exp(apply("gather_nd", g.given("x", B, S, 4), at, batch_dims=0, node=""))


def nowhere(g: Maker) -> Value:
    return exp(scattered(g, (B, S, 4), g.constant(np.zeros((0, 1), np.int64)), (0, S, 4)))


WHOLE: dict[str, Body] = {
    "rows in order": lambda g: exp(gather(g.given("x", B, S, 4), iota(S), axis=1)),
    "first rows by positions": by_positions,
    "written everywhere": lambda g: exp(scattered(g, (B, S, 4), grid(B, S, 4), (B * S * 4,))),
    "rows written": lambda g: exp(scattered(g, (B, S, 4), grid(B, S), (B * S, 4))),
    "written nowhere": nowhere,
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_whole(body: Body, widest: CpuBackend) -> None:
    found = applied(whole_indices, graph_of(body))
    assert not {"gather", "gather_nd", "scatter_nd", "iota"} & set(ops(found))
    assert_runs(found, widest, *({"B": b, "S": s} for b, s in ((2, 3), (1, 1), (0, 2), (3, 0))))


OTHERS: dict[str, Body] = {
    "of a part": lambda g: gather(g.given("x", B, S, 4), iota(B), axis=1),
    "in another order": lambda g: scattered(g, (S, S), grid(S, S, turned=True), (S * S,)),
    "added": lambda g: scattered(g, (B, S), grid(B, S), (B * S,), "add"),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_left_alone(body: Body) -> None:
    assert_left_alone(whole_indices, body)
