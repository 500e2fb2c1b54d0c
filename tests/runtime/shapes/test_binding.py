"""Shapes of inputs bind symbols, and contradict a graph by name."""

from __future__ import annotations

import pytest

from ftuner.core.dim import Dim, quotient, symbol
from ftuner.core.dtype import FLOAT32
from ftuner.errors import ShapeError
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.runtime.shapes.binding import Binding

N, M = symbol("N"), symbol("M")


def graph_of(*demands: tuple[Dim, Dim]) -> Graph:
    """A graph of x[N, M] that demands pairs of dims to be equal."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (N, M))
    for left, right in demands:
        builder.require(left, right, "here")
    return builder.graph([x], [("y", builder.add("negative", x))])


def test_shapes_bind_symbols() -> None:
    binding = Binding(graph_of((quotient(N, 2), M)))
    assert binding.names == ["N", "M"]
    assert binding([(6, 3)]) == [6, 3]
    with pytest.raises(ShapeError, match="here"):
        binding([(6, 2)])


def test_a_division_by_zero_is_named() -> None:
    binding = Binding(graph_of((quotient(12, N), M)))
    assert binding([(4, 3)]) == [4, 3]
    with pytest.raises(ShapeError, match="divided by zero where N = 0, M = 3"):
        binding([(0, 3)])


def test_a_number_of_many_bits_is_named() -> None:
    dim: Dim = N
    for _ in range(100):
        dim = dim * dim + dim
    binding = Binding(graph_of((dim, M)))
    assert binding([(0, 0)]) == [0, 0]
    with pytest.raises(ShapeError, match="bits"):
        binding([(3, 0)])


def test_constraints_on_symbols_that_wait_for_data_are_left_out() -> None:
    other = symbol("count")
    binding = Binding(graph_of((quotient(other, 2), M), (N, M)))
    assert binding([(3, 3)]) == [3, 3]
    with pytest.raises(ShapeError, match="here"):
        binding([(3, 2)])
