"""Shapes of inputs bind symbols, and contradict a graph by name."""

from functools import reduce
from typing import Any

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


LARGE: Dim = reduce(lambda dim, _: dim * dim + dim, range(100), N)
"""Its values have many bits."""
BINDINGS = {
    "symbols": ([(quotient(N, 2), M)], (6, 3), (6, 2), "here"),
    "by zero": ([(quotient(12, N), M)], (4, 3), (0, 3), "divided by zero where N = 0, M = 3"),
    "many bits": ([(LARGE, M)], (0, 0), (3, 0), "bits"),
    "waits for data": ([(quotient(symbol("count"), 2), M), (N, M)], (3, 3), (3, 2), "here"),
}
"""Demands, a shape that fulfils those that can be checked, and one that does not."""


@pytest.mark.parametrize(("demands", "right", "wrong", "message"), BINDINGS.values(), ids=BINDINGS)
def test_shapes_bind_symbols(demands: Any, right: Any, wrong: Any, message: str) -> None:
    binding = Binding(graph_of(*demands))
    assert binding.names == ["N", "M"]
    assert binding([right]) == [*right]
    with pytest.raises(ShapeError, match=message):
        binding([wrong])


def test_symbols_that_must_be_equal_have_one_name() -> None:
    a, b, c = symbol("A"), symbol("B"), symbol("C")
    builder = Builder()
    x = builder.input("x", FLOAT32, (N, a, b, c, M))
    for left, right in ((N + a, N + b), (c * 2, M * 2), (b + 1, c)):
        builder.require(left, right, "here")
    binding = Binding(builder.graph([x], [("y", builder.add("negative", x))]))
    assert binding.equal == {"B": "A"}
    assert binding([(7, 3, 3, 4, 4)]) == [7, 3, 3, 4, 4]
    for shape in ((7, 3, 2, 3, 3), (7, 3, 3, 4, 5)):
        with pytest.raises(ShapeError, match="here"):
            binding([shape])


def test_chains_of_equal_symbols_have_one_name() -> None:
    names = [symbol(f"P{number}") for number in range(5)]
    builder = Builder()
    x = builder.input("x", FLOAT32, tuple(names))
    for left, right in ((1, 2), (3, 4), (0, 1), (4, 2)):
        builder.require(names[left], names[right], "here")
    equal = Binding(builder.graph([x], [("y", builder.add("negative", x))])).equal
    assert len(equal) == 4
    assert len(set(equal.values())) == 1
    assert not set(equal) & set(equal.values())


def test_what_contradicts_the_inputs_is_named() -> None:
    builder = Builder()
    x, y = builder.input("x", FLOAT32, (N, 4)), builder.input("y", FLOAT32, (M, N))
    binding = Binding(builder.graph([x, y], [("z", builder.add("matmul", y, x))]))
    assert binding([(3, 4), (2, 3)]) == [3, 2]
    with pytest.raises(ShapeError, match=r"x.* was given \(3, 5\)"):
        binding([(3, 5), (2, 3)])
    with pytest.raises(ShapeError, match=r"y.* was given \(2, 6\): N is 3 elsewhere"):
        binding([(3, 4), (2, 6)])
    with pytest.raises(ShapeError, match=r"y.* was given \(2,\)"):
        binding([(3, 4), (2,)])


def test_names_of_any_length() -> None:
    """The text of a dim is cut; the name of a symbol is not."""
    names = ["rows" * 100, "rows" * 100 + "_2"]
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol(names[0]), symbol(names[1]), symbol(names[0])))
    binding = Binding(builder.graph([x], [("y", builder.add("exp", x))]))
    assert binding.names == names
    assert binding([(3, 4, 3)]) == [3, 4]
    with pytest.raises(ShapeError, match="is 3 elsewhere"):
        binding([(3, 4, 5)])


def test_extents_that_follow_from_others() -> None:
    """An input may have an extent that is computed from another one's."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (N, quotient(N, 2)))
    binding = Binding(builder.graph([x], [("y", builder.add("exp", x))]))
    assert binding([(7, 3)])[0] == 7
