"""Products between two transpositions become products that are channels first."""

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
from ftuner.graph.algebra import tanh
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_first import LEAST_POSITIONS, write_products_first
from ftuner.runtime.cpu.backend import CpuBackend

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def product(g: Maker, channels: int = 6, rows: Dim = S, row: Dim = T) -> Value:
    return g.given("x", B, 5, rows, row).transpose(LAST) @ g.weight(5, channels)


def of_phases(g: Maker, columns: Dim = 2 * T) -> Value:
    """As of a transposed convolution."""
    y = product(g, 12).reshape((B, S, T, 1, 2, 2, 3)).transpose((0, 1, 4, 2, 5, 3, 6))
    y = y.reshape((B, 2 * S, 2 * T, 3))
    return (y if columns == 2 * T else y.slice(2, 1, columns)).transpose(FIRST)


BODIES: dict[str, tuple[Callable[[Maker], Value], int]] = {
    # What, and the transpositions that are left.
    "alone": (lambda g: product(g).transpose(FIRST), 0),
    "with an epilogue": (lambda g: tanh(product(g) + g.weight(6)).transpose(FIRST), 0),
    "along a line": (lambda g: (g.given("x", B, 5, T).swapped() @ g.weight(5, 3)).swapped(), 0),
    "of large pictures": (lambda g: product(g, 6, 2, LEAST_POSITIONS // 2).transpose(FIRST), 0),
    "of phases": (of_phases, 1),
    "of some phases": (lambda g: of_phases(g, 2 * T - 1), 1),
}


@pytest.mark.parametrize(("body", "left"), BODIES.values(), ids=BODIES)
def test_pictures_are_read_as_they_are(
    body: Callable[[Maker], Value], left: int, widest: CpuBackend
) -> None:
    found = applied(write_products_first, graph_of(body))
    assert ops(found).count("transpose") == left
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (1, 1), (7, 40))]
    assert_runs(found, widest, *runs, {"B": 0, "S": 2, "T": 3})


def read_twice(g: Maker) -> Value:
    y = product(g)
    return tanh(y).transpose(FIRST) + y.reduce("sum", (0, 1, 2, 3), keep=False)


OTHERS: dict[str, Callable[[Maker], Value]] = {
    "of small pictures": lambda g: product(g, 6, 1, LEAST_POSITIONS - 1).transpose(FIRST),
    "not transposed back": lambda g: tanh(product(g)),
    "of pictures with channels last": lambda g: (
        g.given("x", B, S, T, 5) @ g.weight(5, 6)
    ).transpose(FIRST),
    "beside another": lambda g: (product(g) + g.given("other", B, S, T, 6)).transpose(FIRST),
    "read twice": read_twice,
    "by what is given": lambda g: (
        g.given("x", B, 5, S, T).transpose(LAST) @ g.given("w", 5, 6)
    ).transpose(FIRST),
}


def test_pictures_in_one_line() -> None:
    """A product is written flat in between."""

    def body(g: Maker) -> Value:
        y = tanh(product(g).reshape((B * S * T * 6,)))
        return y.reshape((B, S, T, 6)).transpose(FIRST)

    applied(write_products_first, graph_of(body))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(write_products_first, body)
