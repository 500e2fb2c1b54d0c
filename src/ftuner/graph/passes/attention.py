"""Recognising attention: scores, scale, mask, softmax, values."""

from __future__ import annotations

from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, made, rewritten, scaled


def recognise_attention(graph: Graph) -> Graph:
    """`softmax(q @ k * scale + mask) @ v` becomes one node; k is transposed already."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax" or node.attributes["log"]:
            continue
        if node.attributes["axis"] != node.output.rank - 1 or node.output.rank < 3:
            continue
        last = around.only_consumer(node.output)
        if last is None or last.op != "matmul" or last.inputs[0] is not node.output:
            continue
        found = _scores(around, node)
        if found is None:
            continue
        scores, scale, mask = found
        q, k = scores.inputs
        v = last.inputs[1]
        batch = q.shape[:-2]
        if not (k.shape[:-2] == v.shape[:-2] == batch):
            continue
        inputs = [q, k, v] if mask is None else [q, k, v, mask]
        attention = made(
            "attention", inputs, last.output.type, f"{last.output.name}_attention", scale=scale
        )
        places[last] = [attention]
        same[last.output] = attention.output
    return rewritten(graph, places, same)


def _scores(around: Surroundings, softmax: Node) -> tuple[Node, float, Value | None] | None:
    """The product, its scale and the mask that a softmax is of."""
    value, mask = softmax.inputs[0], None
    add = around.producer(value, "add")
    if add is not None:
        if around.only_consumer(value) is not softmax:
            return None
        for x, other in (add.inputs, add.inputs[::-1]):
            base, _ = scaled(around, x)
            if around.producer(base, "matmul") is not None and x.shape == add.output.shape:
                value, mask = x, other
                break
        else:
            return None
        if mask is None or mask.rank == 0 or mask.shape[-1] != value.shape[-1]:
            return None
    base, scale = scaled(around, value)
    product = around.producer(base, "matmul")
    if product is None or around.only_consumer(product.output) is None:
        return None
    if value is not base and around.only_consumer(value) is None:
        return None
    return product, scale, mask
