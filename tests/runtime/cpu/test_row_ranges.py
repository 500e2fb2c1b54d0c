"""Plans for ranges of rows: any number of rows of a range has the product of its own, whatever was
run before."""

from __future__ import annotations

import pytest
from tests.graph.graphs import Maker, S, assert_close, graph_of, inputs_of, reference

from ftuner.core.ranges import after_fine
from ftuner.graph.ir import Graph, Value
from ftuner.planner.cpu.candidates import Candidate
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.plan_records import PlanWriter
from ftuner.runtime.cpu.program import ProgramWriter
from ftuner.runtime.model import Model

ROWS = (1, 2, 6, 7, 13, 29, 31, 32, 33, 35, 36, 39, 47, 48, 61, 64, 71, 97, 127, 128, 131, 255, 263)
WIDTHS = ((5, 3), (64, 16), (33, 70), (2048, 24), (96, 384))
"""k and n: ragged, for workers that share rows, or k, or columns."""


def dense(k: int, n: int) -> Graph:
    def body(g: Maker) -> list[Value]:
        return [g.add("matmul", g.given("x", S, k), g.weight(k, n))]

    return graph_of(body)


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("k", "n"), WIDTHS)
def test_all_rows(backend: CpuBackend, k: int, n: int, threads: int) -> None:
    graph = dense(k, n)
    model = Model(graph, backend, Options(threads=threads))
    # The same ranges from below and from above, and no rows at all.
    for rows in (*ROWS, *reversed(ROWS), 0):
        feeds = inputs_of(graph, {"S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_rows(backend: CpuBackend, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An A that is walked block by block."""
    monkeypatch.setattr(Candidate, "block_of_rows", lambda self, m: min(m, 23))
    graph = dense(40, 72)
    model = Model(graph, backend, Options(threads=threads))
    for rows in ROWS:
        feeds = inputs_of(graph, {"S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))


def test_a_range_is_planned_once(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgramWriter, "plan_few_rows", lambda *_: None)
    graph = dense(24, 40)
    model = Model(graph, widest, Options(threads=1))
    first = 1 << 9
    model.run(inputs_of(graph, {"S": first}))
    written: list[object] = []
    write = PlanWriter.write

    def counted(self: PlanWriter, *given: object) -> object:
        written.append(given)
        return write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(PlanWriter, "write", counted)
    for rows in (first + 1, first + 41, after_fine(first) - 1):
        feeds = inputs_of(graph, {"S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))
    assert not written
    model.run(inputs_of(graph, {"S": after_fine(first)}))
    assert written
