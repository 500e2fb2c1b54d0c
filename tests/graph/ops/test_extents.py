"""Operators whose indices are data read and write within their operands, whatever the extents are:
shape rules demand it, of numbers at once and of symbols when they are bound."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.graph.graphs import Maker

from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import BOOL, FLOAT32, INT64, DType
from ftuner.errors import ShapeError
from ftuner.graph.ir import Graph, Value
from ftuner.runtime.reference import run_reference
from ftuner.runtime.shapes.binding import bind

Body = Callable[..., Value]


class Case(NamedTuple):
    """A node, and extents of its operands."""

    body: Body
    dtypes: tuple[DType, ...]
    right: Sequence[Sequence[tuple[int, ...]]]
    wrong: Sequence[Sequence[tuple[int, ...]]]


CASES = {
    "gather": Case(
        lambda g, x, at: g.add("gather", x, at, axis=0), (FLOAT32, INT64),
        [[(5, 2), (3,)], [(0, 2), (0,)], [(5, 0), (3,)]],
        [[(0, 2), (1,)], [(0, 0), (1,)]],
    ),
    "gather_elements": Case(
        lambda g, x, at: g.add("gather_elements", x, at, axis=0), (FLOAT32, INT64),
        [[(5, 3), (2, 3)], [(5, 3), (9, 2)], [(0, 3), (0, 3)], [(5, 0), (2, 0)]],
        [[(5, 2), (2, 3)], [(5, 0), (2, 1)], [(0, 3), (2, 3)]],
    ),
    "scatter_elements": Case(
        lambda g, *xs: g.add("scatter_elements", *xs, axis=0, kind="none"),
        (FLOAT32, INT64, FLOAT32),
        [[(5, 3), (2, 3), (2, 3)], [(5, 3), (9, 2), (9, 2)], [(0, 3), (0, 3), (0, 3)]],
        [
            [(5, 2), (2, 3), (2, 3)], [(5, 2), (2, 3_000_000), (2, 3_000_000)],
            [(0, 3), (2, 3), (2, 3)], [(5, 3), (2, 3), (2, 2)], [(5, 3), (2, 2), (2, 3)],
        ],
    ),
    "gather_nd": Case(
        lambda g, x, at: g.add("gather_nd", x, at, batch_dims=1), (FLOAT32, INT64),
        [[(2, 4, 3), (2, 1)], [(2, 4, 0), (2, 1)], [(0, 4, 3), (0, 1)]],
        [[(2, 4, 3), (3, 1)], [(3, 4, 3), (2, 1)], [(2, 0, 3), (2, 1)]],
    ),
    "scatter_nd": Case(
        lambda g, *xs: g.add("scatter_nd", *xs, kind="add"), (FLOAT32, INT64, FLOAT32),
        [[(5, 3), (2, 1), (2, 3)], [(0, 3), (0, 1), (0, 3)], [(5, 0), (2, 1), (2, 0)]],
        [[(5, 3), (2, 1), (2, 4)], [(5, 3), (2, 1), (3, 3)], [(0, 3), (2, 1), (2, 3)]],
    ),
    "write_rows": Case(
        lambda g, *xs: g.add("write_rows", *xs, axis=1, circular=False),
        (FLOAT32, INT64, FLOAT32),
        [[(2, 5, 3), (2,), (2, 1, 3)], [(2, 0, 3), (2,), (2, 0, 3)], [(0, 5, 3), (0,), (0, 1, 3)]],
        [
            [(2, 5, 3), (3,), (2, 1, 3)], [(2, 5, 3), (2,), (3, 1, 3)],
            [(2, 5, 3), (2,), (2, 1, 2)], [(2, 0, 3), (2,), (2, 1, 3)],
        ],
    ),
    "attention": Case(
        lambda g, *xs: g.add("attention", *xs, scale=1.0, causal=None),
        (FLOAT32, FLOAT32, FLOAT32, BOOL),
        [[(2, 4, 8), (2, 8, 5), (2, 5, 3), m] for m in ((2, 4, 5), (1, 1, 5), (2, 1, 1))],
        [
            *([(2, 4, 8), (2, 8, 5), (2, 5, 3), m] for m in ((3, 4, 5), (2, 3, 5), (2, 4, 6))),
            *([(1, 1, 8), (1, 8, 1), (1, 1, 3), m] for m in ((2, 1, 1), (1, 2, 1), (1, 1, 2))),
        ],
    ),
}  # fmt: skip


def given(case: Case, g: Maker, shapes: Sequence[Sequence[Dim]]) -> list[Value]:
    pairs = enumerate(zip(case.dtypes, shapes, strict=True))
    return [g.given(f"x{i}", *shape, dtype=dtype) for i, (dtype, shape) in pairs]


def opened(name: str, case: Case) -> Graph:
    """The node with a symbol for every extent that may be one."""
    g = Maker()
    shapes: list[list[Dim]] = []
    for i, shape in enumerate(case.right[0]):
        shapes.append([symbol(f"n{i}_{axis}") for axis in range(len(shape))])
        if name.endswith("_nd") and i == 1:
            # How many axes are indexed decides how many the result has.
            shapes[-1][-1] = shape[-1]
    return g.made(case.body(g, *given(case, g, shapes)))


def arrays(case: Case, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [np.zeros(s, t.name) for s, t in zip(shapes, case.dtypes, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_extents_that_fit(name: str) -> None:
    case = CASES[name]
    for shapes in case.right:
        g = Maker()
        g.made(case.body(g, *given(case, g, shapes)))
        run_reference(opened(name, case), arrays(case, shapes))


@pytest.mark.parametrize("name", CASES)
def test_extents_that_reach_beyond_an_operand(name: str) -> None:
    case = CASES[name]
    for shapes in case.wrong:
        g = Maker()
        with pytest.raises(ShapeError):
            case.body(g, *given(case, g, shapes))
        with pytest.raises(ShapeError):
            bind(opened(name, case), shapes)
