"""Programs: steps that run side by side, and workers that come late or not at all."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, assert_close, graph_of, inputs_of, layer, reference

from ftuner.core.dim import symbol
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.planner.cpu.plan import Plan
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.plan_records import Encoded, PlanWriter, RowRange
from ftuner.runtime.cpu.program import ProgramWriter, stages
from ftuner.runtime.cpu.tasks import BoundTask, Task
from ftuner.runtime.model import Model
from ftuner.schedules.attention.cpu_binding import AttentionTask
from ftuner.schedules.attention.step import AttentionStep
from ftuner.schedules.nest.step import NestStep
from ftuner.schedules.product.cpu_binding import ProductTask
from ftuner.schedules.product.step import ProductStep


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
@pytest.mark.parametrize("ahead", [False, True])
def test_products_are_planned_when_loaded(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, threads: int, ahead: bool
) -> None:
    if not ahead:
        monkeypatch.setattr(ProgramWriter, "plan_ahead", lambda *_: None)
        # Products of the back end remember what was planned for other models.
        widest = CpuBackend(cache=widest.cache, isa=widest.kernels.isa.name)
    graph = optimised(layer())
    model = Model(graph, widest, Options(threads=threads))
    write, written = PlanWriter.write, []

    def counted(self: PlanWriter, plan: Plan, rows: RowRange | None = None) -> Encoded:
        written.append(plan)
        return write(self, plan, rows)

    monkeypatch.setattr(PlanWriter, "write", counted)
    for images, rows in ((1, 1), (1, 2), (1, 31), (3, 311)):
        feeds = inputs_of(graph, {"B": images, "S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))
    assert bool(written) != ahead


@pytest.mark.parametrize("workers", [1, 96, 10_000])
def test_products_of_one_row_are_planned_first(widest: CpuBackend, workers: int) -> None:
    """On machines of many cores, too, the next token of a text waits for no plan."""
    planned: list[tuple[int, ...]] = []
    task = SimpleNamespace(plan_ranges=lambda firsts, _: planned.append(firsts))
    writer: Any = SimpleNamespace(_tasks=[task] * 40, _hardware=widest.hardware)
    ProgramWriter.plan_ahead(writer, workers)
    assert len(planned) == 40
    assert {firsts[0] for firsts in planned} == {1}


def decoder(layers: int) -> Graph:
    """Layers of an attention over keys and values of earlier tokens, whose number has a symbol of
    its own in each layer, as exporters write it; and a product of two inputs."""

    def body(g: Maker) -> list[Value]:
        x, results = g.given("x", B, 2, S, 8), []
        for number in range(layers):
            past = symbol(f"P{number}")
            keys, values = (
                g.given(f"k{number}", B, 2, past, 8),
                g.given(f"v{number}", B, 2, past, 8),
            )
            turned = g.add("transpose", keys, perm=(0, 1, 3, 2))
            x = g.add("add", x, g.attention(x, turned, values, 8**-0.5, None))
            y = g.given(f"y{number}", B, 8, symbol(f"N{number}"))
            results.append(g.add("matmul", g.given(f"z{number}", B, S, 8), y))
        return [x, *results]

    return optimised(graph_of(body))


def decoder_extents(layers: int, tokens: int) -> dict[str, int]:
    past = {f"P{number}": 5 for number in range(layers)}
    return {"B": 2, "S": tokens} | past | {f"N{number}": 11 for number in range(layers)}


def test_alike_layers_are_planned_once(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new shape makes as many plans for twelve layers as for one."""
    planned: list[type[Task]] = []
    for kind in (AttentionTask, ProductTask):
        bind = kind.bind

        def counted(self: Task, *given: Any, bind: Any = bind) -> BoundTask:
            planned.append(type(self))
            bound: BoundTask = bind(self, *given)
            return bound

        monkeypatch.setattr(kind, "bind", counted)
    for layers in (1, 12):
        graph = decoder(layers)
        model = Model(graph, widest, Options(threads=1))
        for tokens in (1, 3, 40):
            planned.clear()
            feeds = inputs_of(graph, decoder_extents(layers, tokens), seed=tokens)
            assert_close(model.run(feeds), reference(graph, feeds))
            assert sorted(planned, key=str) == [AttentionTask, ProductTask]


def test_alike_layers_with_other_extents(widest: CpuBackend) -> None:
    graph = decoder(5)
    model = Model(graph, widest, Options(threads=2))
    for past in ((3, 4, 5, 6, 7), (9, 9, 1, 9, 1), (0, 2, 0, 2, 0)):
        extents = decoder_extents(5, 4) | {f"P{i}": n for i, n in enumerate(past)}
        extents |= {f"N{i}": 3 * n + 1 for i, n in enumerate(past)}
        feeds = inputs_of(graph, extents, seed=past[0])
        assert_close(model.run(feeds), reference(graph, feeds))


@pytest.mark.parametrize("graph", [optimised(layer()), fork(), beside()])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_workers_that_come_late(widest: CpuBackend, graph: Graph, threads: int) -> None:
    """With more workers than cores most of them miss most runs."""
    model = Model(graph, widest, Options(threads=threads))
    for turn in range(300):
        feeds = inputs_of(graph, {"B": 1 + turn % 3, "S": 1 + turn % 17}, seed=turn % 5)
        assert_close(model.run(feeds), reference(graph, feeds))


@settings(max_examples=15)
@given(order=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=10, max_size=60))
def test_workers_of_an_earlier_run(widest: CpuBackend, order: list[tuple[int, bool]]) -> None:
    """Runs of programs and of products, each with its own number of workers: who wakes up late for
    one may meet the next."""
    graph = fork()
    models = {n: Model(graph, widest, Options(threads=n)) for n in range(1, 10)}
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
