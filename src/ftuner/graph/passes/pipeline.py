"""The passes, in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from ftuner.core.dtype import UINT8, DType
from ftuner.graph.folding import fold_constants
from ftuner.graph.ir import Graph, Node, live_nodes, writing_to
from ftuner.graph.passes.affine import fold_affine
from ftuner.graph.passes.attention import recognise_attention
from ftuner.graph.passes.channels_first import write_products_first
from ftuner.graph.passes.channels_last import (
    move_transpositions,
    pad_first_layers,
    write_single_channels,
)
from ftuner.graph.passes.experts import recognise_experts
from ftuner.graph.passes.group_norm import separate_groups
from ftuner.graph.passes.halves import half_dtypes, half_weights, halves_in_float32, join_halves
from ftuner.graph.passes.independent_loops import write_loops_as_nests
from ftuner.graph.passes.look_ups import level_tables, share_words, whole_indices
from ftuner.graph.passes.merged_axes import undo_merged_axes
from ftuner.graph.passes.merged_products import merge_products
from ftuner.graph.passes.narrow_weights import int8_weight, widened_blocks
from ftuner.graph.passes.rotary import rotary
from ftuner.graph.passes.word_products import PRECISIONS, products_of_levels, range_of_rows
from ftuner.graph.rewrite import rules
from ftuner.graph.rewrite.rule import Rewriting, registered
from ftuner.graph.verify import expect_bound, free_symbols, verify


def definitions(graph: Graph) -> Graph:
    """The graph without nodes that are computed by a schedule of a user."""
    new = Rewriting(graph)
    with writing_to(new):
        for node in graph.nodes:
            if node.op == "scheduled":
                new.name = node.outputs[0].name
                values = node.attributes["schedule"].defined(node.inputs)
                new.same.update(zip(node.outputs, values, strict=True))
    return new.rewritten()


PASSES: tuple[Callable[[Graph], Graph], ...] = (
    # 8-bit weights are recognised by the nodes that widen them; then the rest of these is folded.
    int8_weight,
    fold_constants,
    whole_indices,
    rules.normal_form,
    share_words,
    rules.choice,
    # Before transpositions are moved into what is written out around a softmax.
    rules.plain_softmax,
    # So that transpositions can move.
    separate_groups,
    # Before constants are merged into weights, whose channels are then last.
    move_transpositions,
    write_single_channels,
    pad_first_layers,
    rules.activations,
    registered,
    rotary,
    rules.norms,
    # Attention is recognised by its softmax.
    rules.softmax,
    rules.narrow_softmaxes,
    undo_merged_axes,
    recognise_attention,
    rules.outer_product,
    rules.roll,
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
    passes = (products_of_levels, *PASSES) if UINT8 in words else PASSES
    if halves:
        # A GPU has no uKernels of blocks, and no kernels of users' schedules.
        passes = (definitions, widened_blocks, *passes)
    else:
        if kept := half_dtypes(graph):
            # Once constants are folded, before other constants are merged into weights.
            at = passes.index(fold_constants) + 1
            passes = (*passes[:at], half_weights(kept), *passes[at:])
        graph = halves_in_float32(graph)
        verify(graph, typed)
        # A GPU multiplies the gathered weights as a batch, reads windows from L1, and has the host
        # choose boxes, couple probabilities and run loops.
        passes = (
            *passes, recognise_experts, rules.separate_axes, rules.suppression, rules.coupling,
            write_loops_as_nests, range_of_rows, level_tables,
        )  # fmt: skip
    if precision:
        passes = (*passes, PRECISIONS[precision].rewrite)
    elif not halves:
        # Weights of less precision are those of columns.
        passes = (*passes, write_products_first)
    if not halves:
        # Last: a precision rounds what caches of half precision take.
        passes = (*passes, join_halves)
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
