"""Programs: steps that run side by side, and workers that come late or not at all."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, assert_close, graph_of, inputs_of, layer, reference

from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.steps import AttentionStep, NestStep, ProductStep
from ftuner.planner.cpu.plan import Plan
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.plan_records import Encoded, Strides
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.program import stages
from ftuner.runtime.model import Model


def fork() -> Graph:
    """Two sums that do not depend on each other, and one of both."""

    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", B, S), g.given("y", B, S)
        left = g.add("reduce", x, kind="sum", axes=(1,))
        right = g.add("reduce", y, kind="maximum", axes=(1,))
        return [left, right, g.add("multiply", g.add("exp", left), right)]

    return graph_of(body)


def beside() -> Graph:
    """A product too small for several workers, beside a sum that all take part in."""

    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", B, 6), g.given("y", S, B)
        product = g.add("matmul", x, g.weight(6, 5))
        return [product, g.add("reduce", y, kind="sum", axes=(1,))]

    return graph_of(body)


def test_independent_steps_share_a_stage() -> None:
    steps = lower(fork()).steps
    assert [step.title for step in steps[:2]] == ["reduce", "reduce"]
    assert stages(steps) == [0, 0, 2]
    assert stages(lower(beside()).steps) == [0, 0]


@pytest.mark.parametrize("graph", [layer(), optimised(layer()), fork(), beside()])
def test_steps_of_a_stage_do_not_depend_on_each_other(graph: Graph) -> None:
    steps = lower(graph).steps
    found = stages(steps)
    assert found == sorted(found)
    for (i, first), (j, second) in combinations(enumerate(steps), 2):
        if found[i] != found[j]:
            continue
        assert not set(first.writes) & {*second.reads, *second.writes}
        assert not set(first.reads) & set(second.writes)
        assert isinstance(first, NestStep) or not isinstance(second, (ProductStep, AttentionStep))


@pytest.mark.parametrize("threads", [1, 2])
def test_short_inputs_are_planned_when_loaded(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    graph = optimised(layer())
    model = Model(graph, widest, threads=threads)
    encode, written = Products.encode, []

    def counted(self: Products, plan: Plan, strides: Strides) -> Encoded:
        written.append(plan)
        return encode(self, plan, strides)

    monkeypatch.setattr(Products, "encode", counted)
    for rows in (1, 2, 7, 31):
        feeds = inputs_of(graph, {"B": 1, "S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))
        assert not written
    model.run(inputs_of(graph, {"B": 3, "S": 311}))
    assert written


@pytest.mark.parametrize("graph", [optimised(layer()), fork(), beside()])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_workers_that_come_late(widest: CpuBackend, graph: Graph, threads: int) -> None:
    """With more workers than cores most of them miss most runs."""
    model = Model(graph, widest, threads=threads)
    for turn in range(300):
        feeds = inputs_of(graph, {"B": 1 + turn % 3, "S": 1 + turn % 17}, seed=turn % 5)
        assert_close(model.run(feeds), reference(graph, feeds))


@settings(max_examples=15, deadline=None)
@given(order=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=10, max_size=60))
def test_workers_of_an_earlier_run(widest: CpuBackend, order: list[tuple[int, bool]]) -> None:
    """Runs of programs and of products, each with its own number of workers: who wakes up late for
    one may meet the next."""
    graph = fork()
    models = {n: Model(graph, widest, threads=n) for n in range(1, 10)}
    feeds = inputs_of(graph, {"B": 40, "S": 30}, seed=1)
    expected = reference(graph, feeds)
    matmul = Matmul(widest)
    a, b = np.ones((33, 70), np.float32), np.ones((70, 130), np.float32)
    for threads, is_product in order:
        if is_product:
            widest.threads = threads
            assert np.all(matmul(a, b) == 70)
        else:
            assert_close(models[threads].run(feeds), expected)
    widest.threads = 1
