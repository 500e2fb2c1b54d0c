"""Products between two transpositions become products that are channels first."""

from __future__ import annotations

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

from ftuner.core.dim import Dim
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_first import LEAST_POSITIONS, write_products_first
from ftuner.runtime.cpu.backend import CpuBackend

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def product(g: Maker, channels: int = 6, rows: Dim = S, row: Dim = T) -> Value:
    x = g.add("transpose", g.given("x", B, 5, rows, row), perm=LAST)
    return g.add("matmul", x, g.weight(5, channels))


def alone(g: Maker) -> Value:
    return g.add("transpose", product(g), perm=FIRST)


def with_an_epilogue(g: Maker) -> Value:
    y = g.add("tanh", g.add("add", product(g), g.weight(6)))
    return g.add("transpose", y, perm=FIRST)


def along_a_line(g: Maker) -> Value:
    x = g.add("transpose", g.given("x", B, 5, T), perm=(0, 2, 1))
    return g.add("transpose", g.add("matmul", x, g.weight(5, 3)), perm=(0, 2, 1))


def of_large_pictures(g: Maker) -> Value:
    return g.add("transpose", product(g, 6, 2, LEAST_POSITIONS // 2), perm=FIRST)


def of_phases(g: Maker, columns: Dim = 2 * T) -> Value:
    """As of a transposed convolution."""
    y = g.add("reshape", product(g, 12), shape=(B, S, T, 1, 2, 2, 3))
    y = g.add("transpose", y, perm=(0, 1, 4, 2, 5, 3, 6))
    y = g.add("reshape", y, shape=(B, 2 * S, 2 * T, 3))
    if columns != 2 * T:
        y = g.add("slice", y, starts=(0, 0, 1, 0), steps=(1,) * 4, shape=(B, 2 * S, columns, 3))
    return g.add("transpose", y, perm=FIRST)


def of_some_phases(g: Maker) -> Value:
    return of_phases(g, 2 * T - 1)


BODIES = [alone, with_an_epilogue, along_a_line, of_large_pictures, of_phases, of_some_phases]


@pytest.mark.parametrize("body", BODIES)
def test_pictures_are_read_as_they_are(body: Callable[[Maker], Value], widest: CpuBackend) -> None:
    found = applied(write_products_first, graph_of(body))
    assert ops(found).count("transpose") == (body in (of_phases, of_some_phases))
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (1, 1), (7, 40))]
    assert_runs(found, widest, *runs, {"B": 0, "S": 2, "T": 3})


def of_small_pictures(g: Maker) -> Value:
    return g.add("transpose", product(g, 6, 1, LEAST_POSITIONS - 1), perm=FIRST)


def not_transposed_back(g: Maker) -> Value:
    return g.add("tanh", product(g))


def of_pictures_with_channels_last(g: Maker) -> Value:
    y = g.add("matmul", g.given("x", B, S, T, 5), g.weight(5, 6))
    return g.add("transpose", y, perm=FIRST)


def beside_another(g: Maker) -> Value:
    y = g.add("add", product(g), g.given("other", B, S, T, 6))
    return g.add("transpose", y, perm=FIRST)


def read_twice(g: Maker) -> Value:
    y = product(g)
    last = g.add("transpose", g.add("tanh", y), perm=FIRST)
    return g.add("add", last, g.add("reduce", y, kind="sum", axes=(0, 1, 2, 3)))


def by_what_is_given(g: Maker) -> Value:
    x = g.add("transpose", g.given("x", B, 5, S, T), perm=LAST)
    return g.add("transpose", g.add("matmul", x, g.given("w", 5, 6)), perm=FIRST)


def test_pictures_in_one_line() -> None:
    """A product is written flat in between."""

    def body(g: Maker) -> Value:
        y = g.add("reshape", product(g), shape=(B * S * T * 6,))
        y = g.add("reshape", g.add("tanh", y), shape=(B, S, T, 6))
        return g.add("transpose", y, perm=FIRST)

    applied(write_products_first, graph_of(body))


@pytest.mark.parametrize(
    "body",
    [
        of_small_pictures,
        not_transposed_back,
        of_pictures_with_channels_last,
        beside_another,
        read_twice,
        by_what_is_given,
    ],
)
def test_others_stay(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(write_products_first, body)
