"""Padding: what is repeated comes from what negative widths leave, and has to be there."""

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import Maker, S, T, assert_close, graph_of

from ftuner.core.dtype import INT64
from ftuner.errors import ShapeError
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.runtime.shapes.binding import bind

MODES = ("constant", "edge", "reflect", "wrap")
FILL = 9.0
WIDTHS = ((0, 0), (2, 1), (7, 8), (-1, 4), (4, -2), (-2, -1), (0, -3), (-3, 1), (2, -3))
"""More than there are elements, and less than none."""


def padded(mode: str, before: int, after: int) -> Graph:
    """The second axis of `x`, padded."""

    def body(g: Maker) -> Value:
        x = g.given("x", S, T)
        fill = [g.number(FILL)] if mode == "constant" else []
        return g.add("pad", x, *fill, before=(0, before), after=(0, after), mode=mode)

    return graph_of(body)


def wanted(x: Any, mode: str, before: int, after: int) -> Any:
    """By NumPy; None where elements would have to come from nothing."""
    n = x.shape[1]
    total, left = before + n + after, n + min(before, 0) + min(after, 0)
    if total < 0 or (mode != "constant" and left < min(total, 1)):
        return None
    if mode == "constant":
        at = np.arange(total) - before
        inside = (at >= 0) & (at < n)
        result = np.full((x.shape[0], total), FILL, x.dtype)
        result[:, inside] = x[:, at[inside]]
        return result
    cut = x[:, max(-before, 0) : n - max(-after, 0)]
    if total == 0:
        return np.zeros((x.shape[0], 0), x.dtype)
    return np.pad(cut, ((0, 0), (max(before, 0), max(after, 0))), mode=mode)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", MODES)
def test_widths_of_any_sign(mode: str, widest: CpuBackend) -> None:
    """By references, compiled, and refused where nothing is left to repeat."""
    refused = 0
    for before, after in WIDTHS:
        graph = padded(mode, before, after)
        model = Model(graph, widest)
        for n in (0, 1, 2, 3, 17):
            x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
            right = wanted(x, mode, before, after)
            if right is not None:
                assert_close([*run_reference(graph, [x]), *model.run({"x": x})], [right, right])
                continue
            refused += 1
            for run in (lambda: bind(graph, [x.shape]), lambda: model.run({"x": x})):  # noqa: B023
                with pytest.raises(ShapeError):
                    run()
    assert refused > 5


@pytest.mark.parametrize("mode", MODES[1:])
def test_numbers_are_refused_at_once(mode: str) -> None:
    g = Maker()
    for n, before, after in ((0, 1, 0), (0, 0, 2), (3, -3, 1), (3, 2, -3), (3, -2, -2)):
        with pytest.raises(ShapeError):
            g.add("pad", g.weight(n), before=(before,), after=(after,), mode=mode)
    assert g.add("pad", g.weight(0), before=(0,), after=(0,), mode=mode).shape == (0,)


def test_extents_below_nothing_are_refused_where_nobody_sees_them(widest: CpuBackend) -> None:
    """Two of them have a product that looks like a number of elements."""

    def body(g: Maker) -> Value:
        x = g.given("x", S, T)
        cut = g.add("pad", x, g.number(0), before=(-3, -3), after=(0, 0), mode="constant")
        return g.add("reduce", g.add("exp", cut), kind="sum", axes=(0, 1))

    model = Model(graph_of(body), widest)
    with pytest.raises(ShapeError, match="pad would give"):
        model.run({"x": np.ones((1, 1), np.float32)})
    assert_close(model.run({"x": np.ones((4, 3), np.float32)}), [np.float32(0)])


def fused() -> Graph:
    """A pad that what it pads is computed in: elements at indices, which are checked."""

    def body(g: Maker) -> Value:
        x, at = g.given("x", S), g.given("at", T, dtype=INT64)
        chosen = g.add("negative", g.add("gather", x, at, axis=0, node="gather"))
        return g.add("pad", chosen, g.number(FILL), before=(2,), after=(1,), mode="constant")

    return graph_of(body)


def test_nothing_is_looked_up_for_what_is_filled(widest: CpuBackend) -> None:
    model = Model(optimised(fused()), widest)
    x = np.arange(4, dtype=np.float32)
    for at in (np.zeros(0, np.int64), np.array([3]), np.array([1, -4])):
        right = np.pad(-x[at], (2, 1), constant_values=FILL)
        assert_close(model.run({"x": x, "at": at}), [right])
    # Where there is no index, what lies in memory is none either.
    nothing = np.full(8, 1 << 40)[:0]
    assert_close(model.run({"x": x, "at": nothing}), [np.full(3, FILL, np.float32)])
