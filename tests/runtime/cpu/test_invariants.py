"""Steps that depend on extents alone run once for a shape."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, graph_of
from tests.runtime.cpu.small_models import assert_right, compiled

from ftuner.core.dtype import FLOAT32
from ftuner.graph.invariants import invariants
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def biased(output: bool = False) -> Graph:
    """Sums of rows and of sines of positions, which two results read; `output`: they are a result,
    too."""

    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        at = g.add("cast", g.add("iota", shape=(S,), axis=0), to=FLOAT32)
        table = g.add("softmax", g.add("sin", at), axis=0, log=False)
        results = [g.add("add", x, table), g.add("multiply", x, table)]
        return [*results, table] if output else results

    return optimised(graph_of(body))


@pytest.mark.parametrize("output", [False, True])
def test_right_in_shapes_that_alternate(widest: CpuBackend, output: bool) -> None:
    graph = biased(output)
    model = Model(graph, widest)
    for seed, s in enumerate((3, 70, 3, 0, 1, 70, 900, 3, 0)):
        assert_right(model, graph, seed, B=2, S=s)
        assert_right(model, graph, seed, B=0, S=s)


def test_found_and_run_once(widest: CpuBackend) -> None:
    model = Model(biased(), widest)
    part = compiled(model)
    (found,) = invariants(part.lowered.steps)
    assert found.steps
    assert len(found.results) == 1
    x = np.ones((2, 50), np.float32)
    first = model.run({"x": x})
    (program,) = part.states.all[0].programs.values()
    assert program.results is not None
    assert program.results.computed
    assert program.kept_bytes >= program.records_bytes + 50 * 4
    # Later runs read the results that are kept.
    program.results.memory[:] = 0
    assert not model.run({"x": x})[1].any()
    assert first[1].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_same_bits_without(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    x = np.random.default_rng(0).standard_normal((3, 333)).astype(np.float32)
    model = Model(biased(), widest, Options(threads))
    kept = [model.run({"x": x}) for _ in range(3)]
    monkeypatch.setattr("ftuner.runtime.cpu.program.MAX_INVARIANT_BYTES", 0)
    other = Model(biased(), widest, Options(threads))
    without = other.run({"x": x})
    (program,) = compiled(other).states.all[0].programs.values()
    assert program.results is None
    for results in kept:
        for a, b in zip(results, without, strict=True):
            np.testing.assert_array_equal(a, b)


def test_forgotten_with_the_shape(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftuner.runtime.cpu.run_states.MAX_PROGRAM_BYTES", 64 << 10)
    model = Model(biased(), widest)
    for s in (*range(1, 100), *range(1, 100)):
        x = np.ones((1, s), np.float32)
        np.testing.assert_array_equal(model.run({"x": x})[0], model.run({"x": x})[0])
    kept = list(compiled(model).states.all[0].programs.values())
    assert 1 < len(kept) < 99
    assert sum(program.kept_bytes for program in kept) <= 64 << 10


def test_callers_at_once(widest: CpuBackend) -> None:
    model = Model(biased(), widest)
    shapes = [np.ones((2, s), np.float32) for s in (5, 64, 301)] * 20
    wanted = [model.run({"x": x}) for x in shapes]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: model.run({"x": x}), shapes))
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
