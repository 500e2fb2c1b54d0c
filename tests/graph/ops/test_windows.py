"""Windows and resampling by their definition, element by element, and what their shape rules
refuse."""

import itertools
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import Maker

from ftuner.core.dtype import BOOL, FLOAT64, INT32, INT64
from ftuner.errors import FTunerError, GraphError, ShapeError
from ftuner.graph.operators import OPERATORS

RANDOM = np.random.default_rng(0)
WINDOW = {"strides": (2, 1), "dilations": (1, 2), "begin": (1, -1), "extents": (3, 4)}
"""Padding before the first axis; before the second an element is left out."""


def element(x: Any, output: tuple[int, ...], tap: tuple[int, ...]) -> Any:
    """The channels that the tap of a window reads, None outside x."""
    at = tuple(
        o * s + k * d - b
        for o, k, s, d, b in zip(
            output, tap, WINDOW["strides"], WINDOW["dilations"], WINDOW["begin"], strict=True
        )
    )
    inside = all(0 <= i < n for i, n in zip(at, x.shape, strict=False))
    return x[at] if inside else None


@pytest.mark.parametrize("groups", [1, 3])
def test_convolution(groups: int) -> None:
    x = RANDOM.standard_normal((2, 5, 9, 6))
    w = RANDOM.standard_normal((3, 2, 6 // groups, 9))
    found = OPERATORS["convolution"].reference(x, w, groups=groups, **WINDOW)
    each = 9 // groups
    for batch, *output in itertools.product(range(2), range(3), range(4)):
        total = np.zeros(9)
        for tap in itertools.product(range(3), range(2)):
            read = element(x[batch], tuple(output), tap)
            if read is None:
                continue
            for g in range(groups):
                own = slice(g * each, (g + 1) * each)
                depth = read.reshape(groups, -1)[g]
                total[own] += depth @ w[tap][:, own]
        np.testing.assert_allclose(found[(batch, *output)], total, 1e-12, 1e-12)


@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum", "argmax"])
def test_window_reduce(kind: str) -> None:
    x = RANDOM.standard_normal((2, 5, 9, 6))
    found = OPERATORS["window_reduce"].reference(x, kind=kind, kernel=(3, 2), **WINDOW)
    for batch, *output in itertools.product(range(2), range(3), range(4)):
        taps = list(itertools.product(range(3), range(2)))
        read = [element(x[batch], tuple(output), tap) for tap in taps]
        there = [(number, v) for number, v in enumerate(read) if v is not None]
        numbers, values = np.array([n for n, _ in there]), np.array([v for _, v in there])
        expected = {
            "sum": values.sum(0), "maximum": values.max(0), "minimum": values.min(0),
            "argmax": numbers[values.argmax(0)],
        }[kind]  # fmt: skip
        np.testing.assert_allclose(found[(batch, *output)], expected, 1e-12, 1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_resample(weighted: bool) -> None:
    x = RANDOM.standard_normal((3, 5, 4))
    tables = [RANDOM.integers(-2, 8, shape) for shape in ((2, 6), (3, 5))]
    weights = [RANDOM.standard_normal(t.shape) for t in tables] if weighted else []
    found = OPERATORS["resample"].reference(x, *tables, *weights, axes=(2, 1))
    assert found.shape == (3, 5, 6)
    for i, j, k in itertools.product(range(3), range(5), range(6)):
        total = 0.0
        for a, b in itertools.product(range(2), range(3)):
            column, line = min(max(tables[0][a, k], 0), 3), min(max(tables[1][b, j], 0), 4)
            factor = weights[0][a, k] * weights[1][b, j] if weighted else 1.0
            total += factor * x[i, line, column]
        np.testing.assert_allclose(found[i, j, k], total, 1e-12, 1e-12)


def wrong(**changes: Any) -> dict[str, Any]:
    return {**WINDOW, **changes}


WRONG: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any], type[FTunerError]], ...] = (
    ("convolution", ((2, 5, 9, 6), (3, 2, 5, 9)), wrong(groups=1), ShapeError),
    ("convolution", ((2, 5, 9, 6), (3, 2, 3, 9)), wrong(groups=0), GraphError),
    ("convolution", ((2, 5, 9, 6), (3, 2, 3, 9)), wrong(groups=2), GraphError),
    ("convolution", ((2, 5, 6), (3, 2, 6, 9)), wrong(groups=1), ShapeError),
    ("convolution", ((2, 6), (6, 9)), wrong(groups=1), ShapeError),
    ("convolution", ((2, 5, 9, 6), (3, 2, 6, 9)), wrong(groups=1, strides=(0, 1)), GraphError),
    ("convolution", ((2, 5, 9, 6), (3, 2, 6, 9)), wrong(groups=1, begin=(1,)), ShapeError),
    ("convolution", ((2, 5, 9, 6), (3, 2, 6, 9)), wrong(groups=1, extents=(-1, 3)), ShapeError),
    ("window_reduce", ((2, 5, 9, 6),), wrong(kind="sum", kernel=(3,)), ShapeError),
    ("window_reduce", ((2, 5, 9, 6),), wrong(kind="sum", kernel=(3, 0)), GraphError),
    ("window_reduce", ((2, 5, 9, 6),), wrong(kind="product", kernel=(3, 2)), GraphError),
    ("window_reduce", ((2, 6),), wrong(kind="sum", kernel=()), ShapeError),
)


@pytest.mark.parametrize(("op", "shapes", "attributes", "error"), WRONG)
def test_windows_that_are_refused(
    op: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Any],
    error: type[FTunerError],
) -> None:  # fmt: skip
    g = Maker()
    operands = [g.given(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    with pytest.raises(error):
        g.add(op, *operands, **attributes)


def test_tables_that_are_refused() -> None:
    g = Maker()
    x, flags = g.given("x", 3, 5), g.given("flags", 3, 5, dtype=BOOL)
    at, two = g.given("at", 1, 4, dtype=INT64), g.given("two", 2, 4, dtype=INT64)
    narrow = g.given("narrow", 1, 4, dtype=INT32)
    weight, wide = g.given("weight", 1, 4), g.given("wide", 1, 4, dtype=FLOAT64)
    empty = g.given("empty", 3, 0)
    assert g.add("resample", x, at, weight, axes=(1,)).shape == (3, 4)
    for operands, axes, error in (
        ((x, at), (2,), ShapeError), ((x, at, at), (1, 1), ShapeError), ((x,), (1,), ShapeError),
        ((x, narrow), (1,), GraphError), ((x, at, wide), (1,), GraphError),
        ((x, two, weight), (1,), ShapeError), ((flags, two), (1,), GraphError),
        ((empty, at), (1,), ShapeError), ((x, g.given("flat", 4, dtype=INT64)), (1,), ShapeError),
    ):  # fmt: skip
        with pytest.raises(error):
            g.add("resample", *operands, axes=axes)


def test_boxes_that_are_refused() -> None:
    g = Maker()
    attributes = {
        "centred": False, "iou_threshold": 0.5, "score_threshold": None, "limit": 1, "count": "n",
    }  # fmt: skip
    scores = g.given("scores", 2, 1, 5, dtype=FLOAT64)
    for shape, dtype, error in (((2, 5), FLOAT64, ShapeError), ((2, 5, 3), FLOAT64, ShapeError),
                                ((2, 5, 4), INT64, GraphError)):  # fmt: skip
        boxes = g.given("boxes", *shape, dtype=dtype)
        with pytest.raises(error):
            g.add("non_max_suppression", scores, boxes, **attributes)
    with pytest.raises(GraphError):
        g.add("kept_boxes", scores, count="n")
