"""The same on a GPU, in the interpreter, with few seeds: it is slow."""

import pytest
from tests.graph.graphs import assert_close, inputs_of, reference
from tests.graph.view_graphs import view_graph

from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model


@pytest.mark.parametrize("seed", [4])
def test_operators_behind_views(h200: GpuBackend, seed: int) -> None:
    graph, extents = view_graph(seed, shapes=3, largest=5)
    model = Model(optimised(graph), h200)
    for number, bindings in enumerate(extents):
        inputs = inputs_of(graph, bindings, number)
        assert_close(model.run(inputs), reference(graph, inputs), str(bindings))
