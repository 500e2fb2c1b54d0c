"""Every cell of the coverage table that the code claims is executed, and right; and nothing is
executed that it does not claim."""

from pathlib import Path

import pytest
from tests.apart import Note, apart
from tests.conftest import CORE_ISAS, HOST_ISAS
from tests.coverage.cells import Cell
from tests.coverage.claims import claimed
from tests.coverage.convolution_cases import run_convolutions
from tests.coverage.graph_cases import (
    BINDINGS,
    DirectedGraph,
    accesses,
    assert_epilogue,
    directed,
    epilogues,
    on_host,
    with_constants,
)
from tests.coverage.product_cases import run_all
from tests.coverage.recording import recording
from tests.graph.graphs import B, S, assert_close, graph_of, inputs_of, reference
from tests.guarded import check, guarding

from ftuner.core.dtype import DTYPES
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

OF_PRODUCTS = {"family", "operands", "way", "epilogue"}
"""Kinds of cells that are filled on narrower ISAs, too. Their nests are compiled and compared by
`tests/schedules/nest/test_cpu_kernel.py`."""


@pytest.mark.parametrize("isa", CORE_ISAS)
def test_every_claimed_cell_runs(isa: str, cache_folder: Path) -> None:
    def kept(cells: set[Cell]) -> set[Cell]:
        return cells if whole else {cell for cell in cells if cell[0] in OF_PRODUCTS}

    whole = isa == HOST_ISAS[-1]

    def fill(note: Note) -> None:
        with guarding(), recording() as recorder:
            backend = CpuBackend(cache=Cache(cache_folder), isa=isa)
            note("products")
            run_all(backend)
            note("convolutions")
            run_convolutions(backend)
            if whole:
                _run_directed(backend, note)
            _run_others(backend, note)
        claims, ran = kept(claimed(backend.hardware, isa)), kept(recorder.cells)
        empty, unclaimed = claims - ran, ran - claims
        assert not empty, _listed("claimed, but not executed", empty)
        assert not unclaimed, _listed("executed, but not claimed", unclaimed)

    apart(fill, seconds=600)


def _run_directed(backend: CpuBackend, note: Note) -> None:
    backend.threads = 2
    note("directed cases, lowered")
    for cases, extents in ((directed(), BINDINGS), (with_constants(), BINDINGS[:1])):
        bench = DirectedGraph(cases)
        model = Model(bench.graph_made, backend)
        for bindings in extents:
            note(f"{len(cases)} directed cases at {bindings}")
            bench.check(model.run(bench.feeds(bindings)), bindings)
            check()


def _run_others(backend: CpuBackend, note: Note) -> None:
    for graph in (accesses(), on_host()):
        model = Model(graph, backend)
        for bindings in BINDINGS:
            note(f"{graph.outputs[0][1]} and others at {bindings}")
            inputs = inputs_of(graph, bindings)
            assert_close(model.run(inputs), reference(graph, inputs))
    for dtype in DTYPES.values():
        for graph in epilogues(dtype):
            note(str(graph))
            assert_epilogue(graph, Model(graph, backend).run)


def _listed(what: str, cells: set[Cell]) -> str:
    return "\n".join([f"{len(cells)} cells {what}:", *map(" ".join, sorted(cells))])


def test_only_what_runs_is_noted(widest: CpuBackend) -> None:
    with recording() as recorder:
        backend = CpuBackend(cache=widest.cache, isa=HOST_ISAS[-1])
        graph = graph_of(lambda m: m.add("tanh", m.linear(m.given("x", B, S, 5), 7)))
        model = Model(graph, backend)
        assert not recorder.cells
        model.run(inputs_of(graph, {"B": 2, "S": 3}))
    names = {cell[0] for cell in recorder.cells}
    assert names == {"operator", "operand", "epilogue", "family", "operands", "way"}
    assert {cell for cell in recorder.cells if cell[0] in ("operand", "epilogue", "operands")} == {
        ("operand", "matmul", "0", "contiguous"), ("operand", "matmul", "1", "constant"),
        ("operand", "add", "1", "constant"), ("epilogue", "float32", "add", "column behind"),
        ("epilogue", "float32", "tanh", "alone"), ("operands", "float32", "row", "panels"),
    }  # fmt: skip
