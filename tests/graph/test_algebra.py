"""The algebra of graph values agrees with NumPy, and names what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.errors import GraphError
from ftuner.graph.algebra import equal, exp, where
from ftuner.graph.builder import Builder
from ftuner.graph.einsum import einsum
from ftuner.graph.ir import Array, Value
from ftuner.runtime.reference import run_reference


def check(
    compose: Callable[..., Value], reference: Callable[..., Array], *shapes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    builder = Builder()
    inputs = [builder.input(f"x{i}", FLOAT32, shape) for i, shape in enumerate(shapes)]
    with builder.writing():
        graph = builder.graph(inputs, [("y", compose(*inputs))])
    (found,) = run_reference(graph, arrays)
    np.testing.assert_allclose(found, reference(*arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes", [((4,), (4,)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4, 5))]
)
def test_products_of_matrices_and_vectors(shapes: tuple[tuple[int, ...], ...]) -> None:
    check(lambda a, b: a @ b, np.matmul, *shapes)


@pytest.mark.parametrize("keep", [False, True])
def test_means(keep: bool) -> None:
    check(
        lambda x: x.mean((0, 2), keep), lambda x: np.mean(x, axis=(0, 2), keepdims=keep), (3, 4, 5)
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("ii", ((3, 3),)), ("i,j->ji", ((3,), (4,)))],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(lambda *x: einsum(equation, x), lambda *x: np.einsum(equation, *x), *shapes)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda x, y: 2 - x * y / 4 + (1 / (x * x + 1) - 3) % 2,
    "powers": lambda x, y: abs(x) ** 0.5 + -(y**2),
    "comparisons": lambda x, y: ((x < y) | (x >= 0.5)) & ~(y > 1) & (x <= 2),
    "matrices": lambda x, y: (x @ y).reshape((2, 9)),
    "indices": lambda x, y: x[0, 1:, None] + y[..., 0],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_those_of_numpy(name: str) -> None:
    of = OPERATORS[name]
    check(lambda x, y: of(x, y), of, (2, 3, 3), (2, 3, 3))


def test_functions_take_numbers_in_the_dtype_of_a_value() -> None:
    check(
        lambda x: where(equal(x, 0), 7, exp(x.at_most(1))),
        lambda x: np.where(x == 0, 7, np.exp(np.minimum(x, 1))),
        (5,),
    )


def test_dims_are_operands() -> None:
    builder, rows = Builder(), symbol("rows")
    x = builder.input("x", FLOAT32, (rows, 2))
    with builder.writing():
        graph = builder.graph([x], [("y", x / rows)])
    (found,) = run_reference(graph, [np.ones((4, 2), np.float32)])
    np.testing.assert_array_equal(found, np.full((4, 2), 0.25, np.float32))


def test_operators_add_to_the_innermost_builder_that_is_written_to() -> None:
    outer, inner = Builder(), Builder()
    x = outer.input("x", FLOAT32, (3,))
    with outer.writing():
        with inner.writing():
            y = x + x
        z = x * x
    assert [node.output for node in inner.nodes] == [y]
    assert [node.output for node in outer.nodes] == [z]
    with pytest.raises(GraphError, match="within `builder"):
        x + x


def test_refusals_say_where() -> None:
    builder = Builder()
    builder.where = "here"
    x = builder.input("x", FLOAT32, ())
    with builder.writing():
        with pytest.raises(GraphError, match="here: product of"):
            x @ x
        with pytest.raises(GraphError, match=r"here: .*operands"):
            einsum("i,i->i", [x])
        with pytest.raises(GraphError, match="here: no int64 is"):
            x.cast(INT64) + 0.5
