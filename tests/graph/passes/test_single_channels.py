"""Pools between transpositions become pools of images of one channel."""

from collections.abc import Callable
from typing import Any

import numpy as np
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
from ftuner.core.evaluation import evaluate
from ftuner.graph.ir import Value
from ftuner.graph.passes.channels_last import LEAST_CHANNELS, LEAST_ROW, write_single_channels
from ftuner.runtime.cpu.backend import CpuBackend

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def pooled(g: Maker, x: Value, kind: str = "maximum") -> Value:
    window: dict[str, Any] = {
        "kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "begin": (1, 1),
        "extents": x.shape[1:-1], "kind": kind,
    }  # fmt: skip
    return g.add("window_reduce", x, **window)


def given(g: Maker, row: Dim = T) -> Value:
    return g.add("transpose", g.given("x", B, 5, S, row), perm=LAST)


def alone(g: Maker) -> Value:
    return g.add("transpose", pooled(g, given(g)), perm=FIRST)


def averaged(g: Maker) -> Value:
    """Each position has its share, and all have a factor."""
    total = g.add("multiply", pooled(g, given(g), "sum"), g.given("share", S, T, 1))
    return g.add("transpose", g.add("multiply", total, g.number(0.5)), perm=FIRST)


def along_a_line(g: Maker) -> Value:
    x = g.add("transpose", g.given("x", B, 5, T), perm=(0, 2, 1))
    window: dict[str, Any] = {
        "kernel": (3,), "strides": (1,), "dilations": (1,), "begin": (1,), "extents": (T,),
        "kind": "sum",
    }  # fmt: skip
    return g.add("transpose", g.add("window_reduce", x, **window), perm=(0, 2, 1))


@pytest.mark.parametrize("body", [alone, averaged, along_a_line])
def test_pools_without_transpositions(body: Callable[[Maker], Value], widest: CpuBackend) -> None:
    found = applied(write_single_channels, graph_of(body))
    assert "transpose" not in ops(found)
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (3, 21), (1, 1), (7, 40), (0, 4))]
    assert_runs(found, widest, *runs)


def test_there_are_both_pools_where_extents_are_not_known(widest: CpuBackend) -> None:
    def body(g: Maker) -> Value:
        x = g.add("transpose", g.given("x", B, LEAST_CHANNELS, S, T), perm=LAST)
        return g.add("transpose", pooled(g, x), perm=FIRST)

    found = applied(write_single_channels, graph_of(body))
    pools = [node for node in found.nodes if node.op == "window_reduce"]
    least = 2 * LEAST_ROW
    for row, images in ((least - 1, [0, 3]), (least, [3 * LEAST_CHANNELS, 0])):
        extents = {"B": 3, "S": 5, "T": row}
        assert [evaluate(pool.output.shape[0], extents) for pool in pools] == images
    extents = (5, least - 1), (3, least), (1, 1), (4, 3 * least), (0, 4), (7, 0)
    assert_runs(found, widest, *({"B": b, "S": s, "T": t} for b in (0, 1, 3) for s, t in extents))


def of_numbers(g: Maker) -> Value:
    return g.add("transpose", pooled(g, given(g), "argmax"), perm=FIRST)


def of_short_rows(g: Maker) -> Value:
    return g.add("transpose", pooled(g, given(g, LEAST_ROW - 1)), perm=FIRST)


def of_channels_last(g: Maker) -> Value:
    return g.add("transpose", pooled(g, g.given("x", B, S, T, 5)), perm=FIRST)


def with_a_number_for_each_channel(g: Maker) -> Value:
    x = pooled(g, given(g))
    scale = g.constant(np.arange(5, dtype=np.float32))
    return g.add("transpose", g.add("multiply", x, scale), perm=FIRST)


@pytest.mark.parametrize(
    "body", [of_numbers, of_short_rows, of_channels_last, with_a_number_for_each_channel]
)
def test_others_stay(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(write_single_channels, body)
