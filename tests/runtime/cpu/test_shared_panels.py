"""Requests that take turns with the panels of weights: each has the bits that it has alone."""

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, builds, inputs_of
from tests.runtime.cpu.test_ragged import assert_same_bits, encoder_of, requests

from ftuner.codegen.llvm.native.records import Program, Step
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu import shared_panels
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.ragged import RaggedGraph
from ftuner.runtime.cpu.shared_panels import SharedPanels
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.model import Model

SIZES = [(9, 5), (4, 4), (12, 30), (4, 9), (4, 4), (7, 6), (40, 33)]


@builds
def network(g: Maker) -> Value:
    """Windows of 3 x 3 and products for each position of pictures, which have channels last."""
    y = g.linear(g.given("x", B, S, T, 8), 40)
    for columns in (150, 70):
        y = g.add(
            "convolution", y, g.weight(3, 3, int(y.shape[-1]), columns), groups=1,
            strides=(1, 1), dilations=(1, 1), begin=(1, 1), extents=(S, T),
        )  # fmt: skip
        y = g.linear(g.add("tanh", y), columns + 9)
    return y


class Turns:
    """Counts the requests of each product that take turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        share = SharedPanels.share

        def counted(panels: SharedPanels, records: Any, *rest: Any) -> Any:
            found = share(panels, records, *rest)
            slots = Program.SIZE + panels.numbers * Step.SIZE + Step.CALL_COUNT
            self.counts += records[:, slots].ravel().tolist()
            return found

        monkeypatch.setattr(SharedPanels, "share", counted)
        # The weights of a test are small.
        monkeypatch.setattr(shared_panels, "panels_room", lambda h: 1e-3 * h.l2_bytes)


def pictures(graph: Graph, batch: int = 1) -> list[dict[str, Any]]:
    sizes = [{"B": batch, "S": height, "T": width} for height, width in SIZES]
    return [inputs_of(graph, extents, seed) for seed, extents in enumerate(sizes)]


@pytest.mark.parametrize("threads", [1, 2])
def test_pictures_of_several_sizes(
    threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, graph = Turns(monkeypatch), network()
    model = Model(optimised(graph, halves=False), widest, Options(threads=threads))
    assert_same_bits(model, pictures(graph))
    # Two workers have parts of the rows of a picture where the machine's estimates say so.
    assert max(turns.counts) >= (len(SIZES) - 2 if threads == 1 else 2)
    assert_same_bits(model, [*pictures(graph, 3), *pictures(graph)])
    assert not any(why == "" for _, why in model.ragged)


def test_those_that_are_few(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, graph = Turns(monkeypatch), network()
    model = Model(optimised(graph, halves=False), widest, Options(threads=2))
    batch = pictures(graph)
    monkeypatch.setattr(RaggedGraph, "room", 70_000)
    assert_same_bits(model, batch)
    assert 2 <= max(turns.counts) < len(batch)
    turns.counts.clear()
    monkeypatch.setattr(RaggedGraph, "room", 1)
    assert_same_bits(model, batch)
    assert not turns.counts


@pytest.mark.parametrize(("requests", "turning"), [(200, 200), (600, 0)])
def test_more_requests_than_chunks(
    requests: int, turning: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, graph = Turns(monkeypatch), network()
    model = Model(optimised(graph, halves=False), widest, Options(threads=2))
    monkeypatch.setattr(RaggedGraph, "room", 10**9)
    feeds = pictures(graph)[1]
    wanted = model.run(feeds)
    found = model.run_batch([feeds] * requests)
    assert all(np.array_equal(outputs[0], wanted[0]) for outputs in found)
    assert max(turns.counts) == turning


def test_a_memory_limit(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, graph = Turns(monkeypatch), network()
    options = Options(threads=2, kept=KeptMemory(8 << 20))
    assert_same_bits(Model(optimised(graph, halves=False), widest, options), pictures(graph))
    assert not turns.counts


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_of_few_rows(
    threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their products sum in another order than those of all rows together."""
    turns, graph = Turns(monkeypatch), encoder_of(2, 64)
    model = Model(optimised(graph, halves=False), widest, Options(threads=threads))
    assert_same_bits(model, requests(graph, [1, 2, 1, 1, 30, 40]))
    assert max(turns.counts) >= 2
