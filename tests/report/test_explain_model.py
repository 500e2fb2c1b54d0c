"""What is said of lowered graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.product import product_types
from ftuner.cost.step import Machine
from ftuner.graph.builder import Builder
from ftuner.graph.lowering import lower
from ftuner.graph.ragged import ragged_steps
from ftuner.graph.steps import Lowered
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.report.model import NAMED, batch_facts, explain_model, growth_facts
from ftuner.report.model_tables import model_table, rows_of, work_table
from ftuner.runtime.kept_memory import Memory

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


def target(workers: int = 1) -> Machine:
    machine = load_recorded("epyc-milan-2")
    assert isinstance(machine, CpuHardware)
    return Machine(machine, machine.widest, workers)


def test_symbols_stay_where_nothing_binds_them() -> None:
    found = explain_model([program()], {}, target())
    first, second, *rest = found.groups
    assert (first.number, first.kind, first.shapes) == (1, "product", "[n, 8] @ [8, 6] -> [n, 6]")
    assert second.kind == "product"
    assert rest[-1].kind == "nest"
    for group in found.groups:
        told = (group.plan, group.flops, group.reads_bytes, group.writes_bytes, group.estimate_s)
        assert told == (None,) * 5
    assert (found.live_bytes, found.estimate_s, found.flops, found.roofline) == (None, 0.0, 0, None)
    assert found.weight_bytes == 2 * WEIGHT.nbytes


def test_extents_give_bytes_and_estimates() -> None:
    found = explain_model([program()], {"n": 5}, target())
    first, second, last = found.groups[0], found.groups[1], found.groups[-1]
    assert first.shapes == "[5, 8] @ [8, 6] -> [5, 6]"
    assert (first.reads_bytes, first.writes_bytes) == (4 * (5 * 8 + 8 * 6), 4 * 5 * 6)
    assert "over [8]" in last.shapes
    assert (first.flops, second.flops, last.flops) == (2 * 5 * 8 * 6, (2 * 6 + 1) * 5 * 8, 5 * 8)
    assert all(group.estimate_s and group.plan and group.bound for group in found.groups)
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
    (group,) = explain_model([lowered], {}, target()).groups
    assert (group.kind, group.title) == ("attention", "causal attention")
    assert group.shapes.endswith("-> [2, 3, n, 8], keys j <= i + past")
    (group,) = explain_model([lowered], {"n": 4, "past": 5}, target()).groups
    assert group.shapes.endswith("-> [2, 3, 4, 8], keys j <= i + 5")
    # Keys and values once for all heads that share them.
    assert group.reads_bytes == 4 * 2 * 8 * (3 * 4 + 9 + 9)
    # Five operations for each score but those that rows do not see, and one for each result.
    scores = 2 * 3 * (6 + 7 + 8 + 9)
    assert group.flops == scores * (2 * 8 + 2 * 8 + 5) + 2 * 3 * 4 * 8


def test_more_rows_take_longer_and_more_memory() -> None:
    small, large = (explain_model([program()], {"n": n}, target()) for n in (10, 10_000))
    assert small.estimate_s < large.estimate_s
    assert small.live_bytes is not None
    assert large.live_bytes == 1000 * small.live_bytes


def test_totals_are_sums() -> None:
    steps = len(program().steps)
    found = explain_model([program()], {"n": 500}, target(), [0.5 + i for i in range(steps)])
    groups = found.groups
    assert found.estimate_s == sum(g.estimate_s or 0 for g in groups) > 0
    assert found.measured_s == sum(0.5 + i for i in range(steps))
    assert found.flops == sum(g.flops or 0 for g in groups) > 0
    assert found.bytes_moved == sum((g.reads_bytes or 0) + (g.writes_bytes or 0) for g in groups)
    line = found.roofline
    assert line is not None
    assert line.predicted_flops_per_s == pytest.approx(found.flops / found.estimate_s)
    assert line.flops_per_byte == pytest.approx(found.flops / found.bytes_moved)
    assert 0 < line.fraction_of_peak <= 1
    for group in groups:
        assert group.estimate_s is not None
        assert group.measured_s is not None
        assert group.measured_over_estimate == group.measured_s / group.estimate_s


def test_the_peak_is_that_of_the_widest_dtype_that_is_multiplied() -> None:
    """Attention multiplies too."""
    machine = target()
    for dtype in (FLOAT32, FLOAT64):
        builder = Builder()
        q, k = builder.input("q", dtype, (1, 3, 5, 8)), builder.input("k", dtype, (1, 3, 8, 5))
        y = builder.add("attention", q, k, q, scale=1.0)
        found = explain_model([lower(builder.graph([q, k], [("y", y)]))], {}, machine)
        peak = machine.hardware.peak_flops_per_s(machine.isa, product_types(dtype), 1)
        assert found.roofline is not None
        assert found.roofline.peak_flops_per_s == peak


def test_what_waits_for_data_has_no_estimate() -> None:
    """The steps before it have one; the whole has no place under the roofline."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("n"),))
    y = builder.input("y", FLOAT32, (symbol("found"),))
    graph = builder.graph([x, y], [("a", builder.add("exp", x)), ("b", builder.add("negative", y))])
    found = explain_model([lower(graph)], {"n": 5}, target())
    first, second = found.groups
    assert first.estimate_s == found.estimate_s
    assert second.estimate_s is None
    assert found.roofline is None


def test_several_programs_are_one_list() -> None:
    one, two = (explain_model([program()] * n, {"n": 5}) for n in (1, 2))
    assert [g.number for g in two.groups] == list(range(1, 2 * len(one.groups) + 1))
    assert one.live_bytes is not None
    assert two.live_bytes == 2 * one.live_bytes
    assert two.estimate_s == 0.0, "there is no target"


def test_document_and_table() -> None:
    times = [1e-6] * len(program().steps)
    memory = Memory(1, 2, 3, 4, 5, 6)
    found = explain_model([program()], {"n": 5}, target(), times, memory)
    document = json.loads(json.dumps(found.to_document()))
    assert document["extents"] == {"n": 5}
    assert [group["measured_s"] for group in document["groups"]] == times
    for name in ("estimate_s", "measured_s", "flops", "bytes_moved"):
        assert document[name] == getattr(found, name)
    assert document["memory"]["arena_bytes"] == 2
    assert document["roofline"]["home"] == "L1"
    for group, shown in zip(found.groups, document["groups"], strict=True):
        for name, value in shown.items():
            assert value == getattr(group, name)
    console = Console(width=120, record=True, file=StringIO())
    console.print(model_table(found, rows_of(found), "title"))
    shown = console.export_text()
    for part in ("title", "estimate", "measured", "ratio", "1 us", "sum",
                 "[5, 8] @ [8, 6] -> [5, 6]", "1 x 5x8"):  # fmt: skip
        assert part in shown
    console.print(work_table(found, rows_of(found)))
    shown = console.export_text()
    for part in ("flop/byte", "480", "472 B", "compute", "sum", "1.04 k"):
        assert part in shown
    unknown = explain_model([program()], {})
    console.print(model_table(unknown, rows_of(unknown), "title"))
    assert "estimate" not in console.export_text()


def test_batches_say_what_runs_once_and_why_the_rest_does_not() -> None:
    lowered = program()
    found = explain_model([lowered], {}, target())
    assert batch_facts(found) == {}
    ragged = ragged_steps(lowered)
    assert ragged is not None
    steps = [s.title for s in lowered.steps]
    pairs = [*zip(steps, ragged.reasons, strict=True), ("attention", "works within a request")]
    facts = batch_facts(replace(found, ragged=pairs, padding_kept="no input is a mask"))
    assert facts == {
        "in a batch": f"{len(steps)} of {len(steps) + 1} steps run once for all requests; others "
        "for one after the other: works within a request (1 step)",
        "padding of a batch": "kept: no input is a mask",
    }


def test_nothing_is_said_of_a_model_without_pasts() -> None:
    assert growth_facts({}, {}) == {}


def test_names_are_together_by_reason_and_not_too_many() -> None:
    appended = {f"past{n}": f"present{n}" for n in range(NAMED + 2)}
    found = growth_facts(appended, {"a": "why", "b": "because", "c": "why"})
    assert found["appended in place"].startswith("present0 to past0, present1 to past1, ")
    assert found["appended in place"].endswith(f"present{NAMED - 1} to past{NAMED - 1} and 2 more")
    assert found["copied"] == "a, c (why); b (because)"
