"""The arena over time: results that live together are apart, and the bytes are those of a run."""

from itertools import combinations

from tests.graph.graphs import inputs_of, layer

from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.report.model import arena_map
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


def test_places(widest: CpuBackend) -> None:
    graph = optimised(layer())
    lowered = lower(graph)
    extents = {"B": 3, "S": 50}
    found = arena_map(lowered, extents, 5)
    assert found is not None
    assert (found.first, found.last) == (5, 4 + len(lowered.steps))
    assert len(found.places) > 1
    for place in found.places:
        assert found.first <= place.first <= place.last <= found.last
        assert 0 <= place.offset <= place.offset + place.size_bytes <= found.size_bytes
        assert place.size_bytes
    for one, other in combinations(found.places, 2):
        if one.first <= other.last and other.first <= one.last:
            apart = one.offset + one.size_bytes <= other.offset
            assert apart or other.offset + other.size_bytes <= one.offset
    feeds = inputs_of(graph, extents)
    assert found.size_bytes == Model(graph, widest).memory(feeds).arena_bytes


def test_extents_that_are_missing() -> None:
    assert arena_map(lower(layer()), {"B": 3}, 1) is None
