"""Operators of several axes become one for each axis, where that reads less.

The largest element of 9 x 9 is the largest of nine that are the largest of nine each; elements
outside the operand count in neither. Interpolation is a sum of sums in the same way.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ftuner.core.dim import maximum
from ftuner.graph.ir import Graph, Node, TensorType
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.rewrite.surroundings import made, rewritten

PASS_ELEMENTS = 2
"""Elements of a window that take as long as writing and reading a result in between. Derived: a
store and a load."""


def separate_axes(graph: Graph) -> Graph:
    """Replace operators of several axes as described above."""
    rules = {"window_reduce": _windows, "resample": _resampled}
    places = {node: rules[node.op](node) for node in graph.nodes if node.op in rules}
    return rewritten(graph, {node: new for node, new in places.items() if new}, {})


def _windows(node: Node) -> list[Node]:
    attributes, (x,) = node.attributes, node.inputs
    kernel, strides = attributes["kernel"], attributes["strides"]
    if attributes["kind"] == ARGMAX or not all(isinstance(n, int) for n in kernel):
        return []
    # Results in between are longer by the strides that are still to come.
    reads = [n * math.prod(strides[axis + 1 :]) for axis, n in enumerate(kernel)]
    # Elements apart along vectors are put together from as many loads.
    apart = 1 + strides[-1] if x.shape[-1] == 1 and strides[-1] > 1 else 1
    reads[-1] *= apart
    if sum(reads) + PASS_ELEMENTS * (len(kernel) - 1) >= math.prod(kernel) * apart:
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


def _resampled(node: Node) -> list[Node]:
    """Where elements are looked up along the last axis, one for each lane. Where channels are last
    whole vectors are read instead, and a result in between would not pay."""
    x, *tables = node.inputs
    axes = node.attributes["axes"]
    count = len(axes)
    order = sorted(range(count), key=lambda number: axes[number])
    if count < 2 or x.rank - 1 not in axes:
        return []
    size = tables[order[-1]].shape[1]
    if maximum(size, x.shape[-1]) == size:
        # The look-ups of the last axis before there are more lines.
        order.reverse()
    elif len(tables) == count:
        return []
    nodes: list[Node] = []
    shape = list(x.shape)
    for number in order:
        axis, own = axes[number], tables[number::count]
        shape[axis] = own[0].shape[1]
        type_ = TensorType(x.dtype, tuple(shape))
        name = f"{node.output.name}_axis{axis}"
        nodes.append(made("resample", [x, *own], type_, name, axes=(axis,)))
        x = nodes[-1].output
    return [*nodes[:-1], replace(nodes[-1], outputs=node.outputs)]
