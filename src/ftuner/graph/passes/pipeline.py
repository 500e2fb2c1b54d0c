"""The passes, in their order."""

from __future__ import annotations

from collections.abc import Callable

from ftuner.graph.ir import Graph
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.constants import fold_constants
from ftuner.graph.passes.gelu import recognise_gelu
from ftuner.graph.passes.int8 import keep_int8_weights
from ftuner.graph.passes.norm import recognise_norms
from ftuner.graph.passes.products import merge_products
from ftuner.graph.verify import verify

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    keep_int8_weights,
    fold_constants,
    recognise_gelu,
    recognise_norms,
    recognise_attention,
    merge_products,
)


def optimised(graph: Graph) -> Graph:
    """The graph after all passes, each of which leaves it valid."""
    verify(graph)
    for apply in PASSES:
        graph = apply(graph)
        verify(graph)
    return graph
