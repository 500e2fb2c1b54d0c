"""Operators behind chains of views, drawn by seeds, give what their references give."""

import pytest
from tests.graph.graphs import assert_close, assert_steps_are_sound, inputs_of, reference
from tests.graph.view_graphs import OPERATORS, view_graph

from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

KINDS = len(OPERATORS)
SEEDS = [
    *range(KINDS),
    *(pytest.param(seed, marks=pytest.mark.full) for seed in range(KINDS, 2 * KINDS + 2)),
]
"""The first `KINDS` graphs begin with each kind of operator once."""


@pytest.mark.parametrize("seed", SEEDS)
def test_operators_behind_views(widest: CpuBackend, seed: int) -> None:
    """Each kind of operator twice as the first of a graph, and beside others."""
    graph, extents = view_graph(seed, shapes=5)
    found = optimised(graph)
    assert_steps_are_sound(lower(found))
    model = Model(found, widest)
    for number, bindings in enumerate(extents):
        widest.threads = 1 + number % 2
        inputs = inputs_of(graph, bindings, number)
        assert_close(model.run(inputs), reference(graph, inputs), str(bindings))
