"""The passes, in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from ftuner.core.dtype import UINT8, DType
from ftuner.graph.ir import Graph, Node, live_nodes
from ftuner.graph.passes.affine import fold_affine
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.cancelling import recognise_erfc, recognise_expm1, recognise_mish
from ftuner.graph.passes.channels_last import move_transpositions, pad_first_layers
from ftuner.graph.passes.choices import write_choices
from ftuner.graph.passes.constants import fold_constants
from ftuner.graph.passes.experts import recognise_experts
from ftuner.graph.passes.gelu import recognise_gelu, recognise_gelu_tanh
from ftuner.graph.passes.group_norm import separate_groups
from ftuner.graph.passes.half_weights import half_dtypes, keep_half_weights
from ftuner.graph.passes.halves import halves_in_float32
from ftuner.graph.passes.hard_swish import recognise_hard_swish
from ftuner.graph.passes.independent_loops import write_loops_as_nests
from ftuner.graph.passes.int8 import keep_int8_weights
from ftuner.graph.passes.joined_halves import join_halves
from ftuner.graph.passes.merged_axes import undo_merged_axes
from ftuner.graph.passes.merged_products import merge_products
from ftuner.graph.passes.norm import recognise_norms
from ftuner.graph.passes.normal_form import normalise
from ftuner.graph.passes.outer_products import write_outer_products
from ftuner.graph.passes.rolls import write_rolls
from ftuner.graph.passes.rotary import recognise_rotary
from ftuner.graph.passes.separate_axes import separate_axes
from ftuner.graph.passes.silu import recognise_silu
from ftuner.graph.passes.single_channels import write_single_channels
from ftuner.graph.passes.softmax import narrow_softmax, plain_softmax, recognise_softmax
from ftuner.graph.passes.suppression import suppress_in_steps
from ftuner.graph.passes.whole_indices import drop_whole_indices
from ftuner.graph.passes.word_products import multiply_in, multiply_levels
from ftuner.graph.verify import expect_bound, free_symbols, verify

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    # 8-bit weights are recognised by the nodes that widen them; then the rest of these is folded.
    keep_int8_weights,
    fold_constants,
    drop_whole_indices,
    normalise,
    write_choices,
    # Before transpositions are moved into what is written out around a softmax.
    plain_softmax,
    # So that transpositions can move.
    separate_groups,
    # Before constants are merged into weights, whose channels are then last.
    move_transpositions,
    write_single_channels,
    pad_first_layers,
    recognise_gelu,
    recognise_gelu_tanh,
    recognise_silu,
    recognise_hard_swish,
    recognise_erfc,
    recognise_expm1,
    recognise_mish,
    recognise_rotary,
    recognise_norms,
    # Attention is recognised by its softmax.
    recognise_softmax,
    narrow_softmax,
    undo_merged_axes,
    recognise_attention,
    write_outer_products,
    write_rolls,
    # Late, because it changes the constants by which other patterns are recognised; before merging,
    # because it leaves products with one bias each.
    fold_affine,
    merge_products,
)


def optimised(
    graph: Graph, halves: bool = True, words: Collection[DType] = (), precision: str = ""
) -> Graph:
    """The graph after all passes; it is verified after each that changes it. `halves`: whether the
    device computes half precision; if not, it is computed in float32. `words`: the narrow dtypes
    of rows that it multiplies. `precision`: one of `PRECISIONS`, in which products of float32 by
    weights are computed."""
    inside = partial(optimised, halves=halves, words=words, precision=precision)
    graph = replace(graph, nodes=tuple(_inside(node, inside) for node in graph.nodes))
    typed: set[Node] = set()
    verify(graph, typed)
    passes = (multiply_levels, *PASSES) if UINT8 in words else PASSES
    if not halves:
        if kept := half_dtypes(graph):
            # Once constants are folded, before other constants are merged into weights.
            at = passes.index(fold_constants) + 1
            passes = (*passes[:at], partial(keep_half_weights, dtypes=kept), *passes[at:])
        graph = halves_in_float32(graph)
        verify(graph, typed)
        # A GPU multiplies the gathered weights as a batch, reads windows from L1, and has the host
        # choose boxes and run loops.
        passes = (
            *passes, join_halves, recognise_experts, separate_axes, suppress_in_steps,
            write_loops_as_nests,
        )  # fmt: skip
    if precision:
        passes = (*passes, partial(multiply_in, precision=precision))
    graph = replace(graph, nodes=live_nodes(graph.nodes, [value for _, value in graph.outputs]))
    free = free_symbols(graph) if any(node.binds for node in graph.nodes) else None
    for apply in passes:
        after = apply(graph)
        if after is not graph:
            verify(after, typed)
            if free is not None:
                expect_bound(after, free)
        graph = after
    return graph


def _inside(node: Node, inside: Callable[[Graph], Graph]) -> Node:
    """The node with the graphs that it runs after all passes."""
    graphs = {name: inside(x) for name, x in node.attributes.items() if isinstance(x, Graph)}
    return replace(node, attributes={**node.attributes, **graphs}) if graphs else node
