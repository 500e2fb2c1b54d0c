"""Plans for ranges of rows: any number of rows of a range has the product of its own, whatever was
run before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import Maker, S, assert_close, builds, inputs_of, reference

from ftuner.codegen.llvm.native.records import Plan as PlanSlot
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.core.ranges import after_fine, fine_start
from ftuner.graph.ir import Value
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.plan_records import PlanWriter, Strides
from ftuner.runtime.cpu.program import ProgramWriter
from ftuner.runtime.model import Model

ROWS = (1, 2, 6, 7, 13, 29, 31, 32, 33, 35, 36, 39, 47, 48, 61, 64, 71, 97, 127, 128, 131, 255, 263)
WIDTHS = ((5, 3), (64, 16), (33, 70), (2048, 24), (96, 384))
"""k and n: ragged, for workers that share rows, or k, or columns."""


@builds
def dense(g: Maker, k: int, n: int) -> list[Value]:
    return [g.add("matmul", g.given("x", S, k), g.weight(k, n))]


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
    monkeypatch.setattr(ProgramWriter, "plan_ahead", lambda *_: None)
    graph = dense(24, 40)
    model = Model(graph, widest, Options(threads=1))
    first = 1 << 9
    model.run(inputs_of(graph, {"S": first}))
    decided = _counted(monkeypatch, Planner, "decided")
    written = _counted(monkeypatch, PlanWriter, "write")
    for rows in (first + 1, first + 41, after_fine(first) - 1):
        feeds = inputs_of(graph, {"S": rows})
        assert_close(model.run(feeds), reference(graph, feeds))
    assert not decided
    # The next range is decided, and has the same tiles: no other records are written for it.
    model.run(inputs_of(graph, {"S": after_fine(first)}))
    assert decided
    assert not written


def _counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """The arguments of the calls of a method from now on."""
    calls: list[object] = []
    method = getattr(owner, name)

    def counted(*given: object) -> object:
        calls.append(given)
        return method(*given)

    monkeypatch.setattr(owner, name, counted)
    return calls


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 700), k=st.integers(1, 5000), workers=st.integers(1, 8),
    rows=st.lists(st.integers(1, 60_000), min_size=2, max_size=12),
)  # fmt: skip
def test_ranges_share_records_that_are_equal(
    widest: CpuBackend, n: int, k: int, workers: int, rows: list[int]
) -> None:
    products = widest.products(product_types(FLOAT32))
    width = products.planner.library.widths[0]
    strides = Strides(4 * k, 4, 0, 0, 4 * n, (), (), False)
    for m in map(fine_start, rows):
        problem = panel_problem(n, k, width, m, workers)
        shared = products.ready_for_range(problem, strides).encoded
        candidate, chunks = products.planner.decided(problem)
        plan = products.planner.lay_out(problem, candidate, chunks)
        own = products.encode_range(plan, candidate, strides)
        assert shared[2:] == own[2:]
        moved = shared.address - own.address
        differ = {
            slot for slot, (one, other) in enumerate(zip(shared.records, own.records, strict=True))
            if one not in (other, other + moved)
        }  # fmt: skip
        # Only a call of a layer reads these rows.
        assert differ <= {PlanSlot.ROWS}
