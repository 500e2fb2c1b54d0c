"""Compositions agree with NumPy, and name what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ftuner.core.dtype import FLOAT32
from ftuner.errors import GraphError
from ftuner.graph.compose import Composer
from ftuner.graph.einsum import einsum
from ftuner.graph.ir import Array, Value
from ftuner.runtime.reference import run_reference


def check(
    compose: Callable[..., Value], reference: Callable[..., Array], *shapes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    composer = Composer()
    inputs = [composer.builder.input(f"x{i}", FLOAT32, shape) for i, shape in enumerate(shapes)]
    graph = composer.builder.graph(inputs, [("y", compose(composer, *inputs))])
    (found,) = run_reference(graph, arrays)
    np.testing.assert_allclose(found, reference(*arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes", [((4,), (4,)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4, 5))]
)
def test_products_of_matrices_and_vectors(shapes: tuple[tuple[int, ...], ...]) -> None:
    check(Composer.matmul, np.matmul, *shapes)


@pytest.mark.parametrize("keep", [False, True])
def test_means(keep: bool) -> None:
    check(
        lambda composer, x: composer.mean(x, (0, 2), keep),
        lambda x: np.mean(x, axis=(0, 2), keepdims=keep),
        (3, 4, 5),
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("ii", ((3, 3),)), ("i,j->ji", ((3,), (4,)))],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(
        lambda composer, *x: einsum(composer, equation, x),
        lambda *x: np.einsum(equation, *x),
        *shapes,
    )


def test_refusals_say_where() -> None:
    composer = Composer()
    composer.builder.where = "here"
    x = composer.builder.input("x", FLOAT32, ())
    with pytest.raises(GraphError, match="here: product of"):
        composer.matmul(x, x)
    with pytest.raises(GraphError, match=r"here: .*operands"):
        einsum(composer, "i,i->i", [x])
