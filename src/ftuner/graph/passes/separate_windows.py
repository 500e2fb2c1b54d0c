"""Reductions of large windows become one for each axis: the largest element of 9 x 9 is the largest
of nine that are the largest of nine each. Elements outside the operand count in neither."""

from __future__ import annotations

import math
from dataclasses import replace

from ftuner.graph.ir import Graph, Node, TensorType
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.rewriting import made, rewritten

PASS_ELEMENTS = 10
"""Elements of a window that take as long as writing and reading a result in between. Measured: with
7, windows of 4 x 4 are slower; with 16, those of 5 x 5."""


def separate_windows(graph: Graph) -> Graph:
    """Replace reductions of windows of several axes where reading a window once for each axis takes
    less than reading all of it."""
    places = {node: _separated(node) for node in graph.nodes if node.op == "window_reduce"}
    return rewritten(graph, {node: new for node, new in places.items() if new}, {})


def _separated(node: Node) -> list[Node]:
    attributes, (x,) = node.attributes, node.inputs
    kernel, strides = attributes["kernel"], attributes["strides"]
    if attributes["kind"] == ARGMAX or not all(isinstance(n, int) for n in kernel):
        return []
    # Results in between are longer by the strides that are still to come.
    reads = [n * math.prod(strides[axis + 1 :]) for axis, n in enumerate(kernel)]
    if sum(reads) + PASS_ELEMENTS * (len(kernel) - 1) >= math.prod(kernel):
        return []
    nodes: list[Node] = []
    shape = list(x.shape)
    for axis in range(len(kernel)):
        shape[1 + axis] = attributes["extents"][axis]
        own = {"extents": tuple(shape[1:-1]), "kind": attributes["kind"]}
        for name, other in (("kernel", 1), ("strides", 1), ("dilations", 1), ("begin", 0)):
            values = [other] * len(kernel)
            values[axis] = attributes[name][axis]
            own[name] = tuple(values)
        type_ = TensorType(x.dtype, tuple(shape))
        nodes.append(made("window_reduce", [x], type_, f"{node.output.name}_axis{axis}", **own))
        x = nodes[-1].output
    return [*nodes[:-1], replace(nodes[-1], outputs=node.outputs)]
