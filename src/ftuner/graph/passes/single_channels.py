"""Writes pools between transpositions as pools of images of one channel.

Where neither what a pool reads nor what reads its result has channels last, two transpositions take
longer than a pool of long rows. Images of one channel need none, and have their rows along vectors.
Where it is not known whether rows are long, there are both pools: one of all images and one of
none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ftuner.core.dim import Dim, Shape, minimum
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.passes.channels_last import (
    is_pointwise,
    is_to_channels_first,
    is_to_channels_last,
    reshape_to,
)
from ftuner.graph.rewrite.surroundings import Surroundings, made, rewritten

LEAST_ROW = 16
"""Fewest elements of a row that are worth it, for each element of a window but one. On AMD Zen 4
pools of 64 images of one channel, by windows of 3 x 3, take 1.1 to 1.9 times as long along rows of
7 to 28, and 0.8 of the time along rows of 40; by 5 x 5 as long along rows of 48 and 56. With AVX2
they take 0.7 to 1 of the time already along rows of 16 to 28."""
LEAST_CHANNELS = 16
"""Fewest channels that are worth transpositions: they fill a vector of AVX-512."""


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
    images, channels, *_, row = picture.shape
    kernel = pool.attributes["kernel"][-1]
    least = LEAST_ROW * (kernel - 1 if isinstance(kernel, int) and kernel > 1 else 1)
    if pool.attributes["kind"] == ARGMAX or (isinstance(row, int) and row < least):
        return None
    if isinstance(row, int) or (isinstance(channels, int) and channels < LEAST_CHANNELS):
        nodes = _of_one_channel(picture, before, chain, node)
        return [*nodes[:-1], replace(nodes[-1], outputs=node.outputs)]
    long = images * minimum(row // least, 1)
    first, rest = _part(picture, 0, long), _part(picture, long, images - long)
    nodes = _of_one_channel(first.output, before, chain, node)
    others = _copies(
        [before, *chain, node], picture, rest.output, lambda shape: (images - long, *shape[1:])
    )
    joined = Node("concat", (nodes[-1].output, others[-1].output), node.outputs, {"axis": 0})
    return [first, rest, *nodes, *others, joined]


def _part(x: Value, start: Dim, count: Dim) -> Node:
    """Some of the images."""
    starts, shape = (start, *[0] * (x.rank - 1)), (count, *x.shape[1:])
    type_, steps = TensorType(x.dtype, shape), (1,) * x.rank
    return made("slice", [x], type_, f"{x.name}_part", starts=starts, steps=steps, shape=shape)


def _of_one_channel(picture: Value, before: Node, chain: list[Node], node: Node) -> list[Node]:
    """The nodes of a chain for the images of a picture, as images of one channel; the last one
    gives the result of `node`."""

    def one_channel(shape: Shape) -> Shape:
        return (picture.shape[0] * shape[-1], *shape[1:-1], 1)

    first = reshape_to(picture, one_channel(before.output.shape))
    nodes = _copies(chain, before.output, first.output, one_channel)
    last = reshape_to(nodes[-1].output, (picture.shape[0], *node.output.shape[1:]))
    return [first, *nodes, last]


def _copies(
    nodes: list[Node], value: Value, other: Value, shape_of: Callable[[Shape], Shape]
) -> list[Node]:
    """Nodes that read `other` in the place of `value`, with results of other shapes."""
    went, found = {value: other}, []
    for node in nodes:
        type_ = TensorType(node.output.dtype, shape_of(node.output.shape))
        inputs = tuple(went.get(v, v) for v in node.inputs)
        went[node.output] = Value(f"{node.output.name}_images", type_)
        found.append(replace(node, inputs=inputs, outputs=(went[node.output],)))
    return found
