"""Writes pools between transpositions as pools of images of one channel.

Where neither what a pool reads nor what reads its result has channels last, two transpositions take
longer than the pool. Images of one channel need none, and have their rows along vectors.
"""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.dim import Shape
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.passes.channels_last import (
    is_pointwise,
    is_to_channels_first,
    is_to_channels_last,
    reshape_to,
)
from ftuner.graph.rewriting import Surroundings, rewritten

LEAST_ROW = 16
"""Fewest elements of a row that are worth it: two vectors of AVX2. Extents that are not known count
as more."""


def write_single_channels(graph: Graph) -> Graph:
    """Replace transpositions of pools, and of what is computed of their elements, as described
    above."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "transpose" and is_to_channels_first(node.attributes["perm"]):
            found = _of_images(around, node)
            if found is not None:
                places[node] = found
    return rewritten(graph, places, {})


def _of_images(around: Surroundings, node: Node) -> list[Node] | None:
    """The nodes that give the result of a transposition without one; None if it is not of a pool
    that reads another one."""
    (value,) = node.inputs
    chain: list[Node] = []
    while around.only_consumer(value) is not None:
        made_by = around.producer_of(value)
        if made_by is None:
            return None
        chain.insert(0, made_by)
        if made_by.op == "window_reduce":
            return _written(around, chain, node)
        whole = [v for v in made_by.inputs if v.rank == value.rank]
        others = [v for v in made_by.inputs if v.rank < value.rank]
        alike = all(v.shape[-1:] in ((), (1,)) for v in others)
        if not is_pointwise(made_by.op) or len(whole) != 1 or not alike:
            return None
        value = whole[0]
    return None


def _written(around: Surroundings, chain: list[Node], node: Node) -> list[Node] | None:
    """`chain`: a pool and the nodes up to the transposition `node`."""
    pool = chain[0]
    before = around.producer(pool.inputs[0], "transpose")
    if before is None or not is_to_channels_last(before.attributes["perm"]):
        return None
    (picture,) = before.inputs
    row = picture.shape[-1]
    if pool.attributes["kind"] == ARGMAX or (isinstance(row, int) and row < LEAST_ROW):
        return None
    nodes = [reshape_to(picture, _one_channel(before.output.shape))]
    went = {before.output: nodes[0].output}
    for own in chain:
        type_ = TensorType(own.output.dtype, _one_channel(own.output.shape))
        went[own.output] = Value(f"{own.output.name}_images", type_)
        inputs = tuple(went.get(v, v) for v in own.inputs)
        nodes.append(replace(own, inputs=inputs, outputs=(went[own.output],)))
    last = reshape_to(nodes[-1].output, node.output.shape)
    return [*nodes, replace(last, outputs=node.outputs)]


def _one_channel(shape: Shape) -> Shape:
    """The shape of images of one channel, from that of images with channels last."""
    return (shape[0] * shape[-1], *shape[1:-1], 1)
