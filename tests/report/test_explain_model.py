"""What is said of lowered graphs."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.builder import Builder
from ftuner.graph.lowering import lower
from ftuner.graph.steps import (
    Lowered,
)
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.report.model import Target, explain_model, model_table

WEIGHT = np.ones((8, 6), np.float32)


def program() -> Lowered:
    """Two products by one weight after each other, then the sum of each row of the second."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("n"), 8))
    weight = builder.constant(WEIGHT)
    first = builder.add("matmul", x, weight)
    second = builder.add("matmul", first, builder.constant(np.ones((6, 8), np.float32)))
    total = builder.add("reduce", builder.add("exp", second), kind="sum", axes=(1,))
    return lower(builder.graph([x], [("total", total)]))


def target(workers: int = 1) -> Target:
    machine = load_recorded("epyc-milan-2")
    assert isinstance(machine, CpuHardware)
    return Target(machine, machine.widest.name, workers)


def test_symbols_stay_where_nothing_binds_them() -> None:
    found = explain_model([program()], {}, target())
    first, second, *rest = found.groups
    assert (first.number, first.kind, first.shapes) == (1, "product", "[n, 8] @ [8, 6] -> [n, 6]")
    assert second.kind == "product"
    assert rest[-1].kind == "nest"
    assert all(g.estimate_s is None and g.reads_bytes is None for g in (first, second))
    assert (found.live_bytes, found.estimate_s) == (None, 0.0)
    assert found.weight_bytes == 2 * WEIGHT.nbytes


def test_extents_give_bytes_and_estimates() -> None:
    found = explain_model([program()], {"n": 5}, target())
    first, second, last = found.groups[0], found.groups[1], found.groups[-1]
    assert first.shapes == "[5, 8] @ [8, 6] -> [5, 6]"
    assert (first.reads_bytes, first.writes_bytes) == (4 * (5 * 8 + 8 * 6), 4 * 5 * 6)
    assert "over [8]" in last.shapes
    assert first.estimate_s is not None
    assert second.estimate_s is not None
    assert last.estimate_s is None
    assert found.estimate_s == pytest.approx(first.estimate_s + second.estimate_s)
    # The first product's result and the second's are alive together, and nothing more.
    assert found.live_bytes == 4 * (5 * 6 + 5 * 8)


def test_attention_says_what_its_rows_see() -> None:
    builder = Builder()
    n, past = symbol("n"), symbol("past")
    q = builder.input("q", FLOAT32, (2, 3, n, 8))
    k = builder.input("k", FLOAT32, (2, 1, 8, n + past))
    v = builder.input("v", FLOAT32, (2, 1, n + past, 8))
    ahead = builder.input("ahead", FLOAT32, (past,))
    y = builder.add("attention", q, k, v, scale=1.0, causal=past)
    lowered = lower(builder.graph([q, k, v, ahead], [("y", y)]))
    (group,) = explain_model([lowered], {}).groups
    assert (group.kind, group.title) == ("attention", "causal attention")
    assert group.shapes.endswith("-> [2, 3, n, 8], keys j <= i + past")
    (group,) = explain_model([lowered], {"n": 4, "past": 5}).groups
    assert group.shapes.endswith("-> [2, 3, 4, 8], keys j <= i + 5")
    # Keys and values once for all heads that share them.
    assert group.reads_bytes == 4 * 2 * 8 * (3 * 4 + 9 + 9)


def test_more_rows_take_longer_and_more_memory() -> None:
    small, large = (explain_model([program()], {"n": n}, target()) for n in (10, 10_000))
    assert small.estimate_s < large.estimate_s
    assert small.live_bytes is not None
    assert large.live_bytes == 1000 * small.live_bytes


def test_several_programs_are_one_list() -> None:
    one, two = (explain_model([program()] * n, {"n": 5}) for n in (1, 2))
    assert [g.number for g in two.groups] == list(range(1, 2 * len(one.groups) + 1))
    assert one.live_bytes is not None
    assert two.live_bytes == 2 * one.live_bytes
    assert two.estimate_s == 0.0, "there is no target"


def test_document_and_table() -> None:
    times = [1e-6] * len(program().steps)
    found = explain_model([program()], {"n": 5}, target(), times)
    document = json.loads(json.dumps(found.to_document()))
    assert document["extents"] == {"n": 5}
    assert [group["measured_s"] for group in document["groups"]] == times
    console = Console(width=120, record=True, file=StringIO())
    console.print(model_table(found, "title"))
    shown = console.export_text()
    for part in ("title", "estimate", "measured", "1 us", "[5, 8] @ [8, 6] -> [5, 6]"):
        assert part in shown
    console.print(model_table(explain_model([program()], {}), "title"))
    assert "estimate" not in console.export_text()
