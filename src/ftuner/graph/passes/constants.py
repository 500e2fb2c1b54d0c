"""Folds nodes whose operands are constants and that the builder did not fold."""

from __future__ import annotations

from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.graph.folding import Folding
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewrite.rewriting import Rewriting


def _rounds(node: Node) -> bool:
    """Whether a node rounds float32 to bfloat16. A CPU does this where it stores: arrays of
    constants hold bfloat16 as float32, which is not what it has in memory."""
    from_wide = node.op == "cast" and node.inputs[0].dtype == FLOAT32
    return from_wide and node.output.dtype == BFLOAT16


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes of constants by constants.

    Raises:
        IndexRangeError, GraphError: elements of constants are out of range or invalid.
    """
    folding = Folding()
    for value in {v for node in graph.nodes for v in node.inputs}:
        if value.constant is not None:
            folding.allow(value.constant.nbytes)
    new = Rewriting(graph)
    # What has no operands is small to store and may be large to fold.
    for node in (node for node in graph.nodes if node.inputs and not _rounds(node)):
        known = [new.same.get(v, v) for v in node.inputs]
        types = [v.type for v in node.outputs]
        results = folding.folded(node.op, known, node.attributes, types)
        if results is not None:
            for value, result in zip(node.outputs, results, strict=True):
                new.same[value] = Value(value.name, value.type, result)
    return new.rewritten()
