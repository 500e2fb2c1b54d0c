"""Writes pools between transpositions as pools of images of one channel.

Where neither what a pool reads nor what reads its result has channels last, two transpositions take
longer than a pool of long rows. Images of one channel need none, and have their rows along vectors.
Where it is not known whether rows are long, there are both pools: one of all images and one of
none.
"""

from __future__ import annotations

from ftuner.core.dim import minimum
from ftuner.graph.algebra import apply, concat
from ftuner.graph.ir import Node, Value
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.passes.channels_last import (
    is_pointwise,
    is_to_channels_first,
    is_to_channels_last,
)
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings

LEAST_ROW = 16
"""Fewest elements of a row that are worth it, for each element of a window but one. On AMD Zen 4
pools of 64 images of one channel, by windows of 3 x 3, take 1.1 to 1.9 times as long along rows of
7 to 28, and 0.8 of the time along rows of 40; by 5 x 5 as long along rows of 48 and 56. With AVX2
they take 0.7 to 1 of the time already along rows of 16 to 28."""
LEAST_CHANNELS = 16
"""Fewest channels that are worth transpositions: they fill a vector of AVX-512."""


@rule("transpose")
def write_single_channels(node: Node, around: Surroundings) -> Value | None:
    """Replaces transpositions of pools, and of what is computed of their elements, as described
    above."""
    if not is_to_channels_first(node.attributes["perm"]):
        return None
    (value,) = node.inputs
    chain = [node]
    while around.only_consumer(value) is not None:
        made_by = around.producer_of(value)
        if made_by is None:
            return None
        chain.insert(0, made_by)
        if made_by.op == "window_reduce":
            return _written(around, chain)
        whole = [v for v in made_by.inputs if v.rank == value.rank]
        others = [v for v in made_by.inputs if v.rank < value.rank]
        alike = all(v.shape[-1:] in ((), (1,)) for v in others)
        if not is_pointwise(made_by.op) or len(whole) != 1 or not alike:
            return None
        value = whole[0]
    return None


def _written(around: Surroundings, chain: list[Node]) -> Value | None:
    """`chain`: a pool and the nodes up to its transposition."""
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
        return _of_one_channel(picture, before, chain)
    long = images * minimum(row // least, 1)
    first, rest = picture.pieces(0, (long, images - long))
    return concat([_of_one_channel(first, before, chain), _copied([before, *chain], rest)], axis=0)


def _of_one_channel(picture: Value, before: Node, chain: list[Node]) -> Value:
    """The result of a chain for some of its images, as images of one channel."""
    images, channels = picture.shape[:2]
    pooled = _copied(chain[:-1], picture.reshape((images * channels, *picture.shape[2:], 1)))
    return pooled.reshape((images, *chain[-1].output.shape[1:]))


def _copied(nodes: list[Node], other: Value) -> Value:
    """The result of a chain whose first node reads `other` in the place of its operand."""
    value = nodes[0].inputs[0]
    for node in nodes:
        operands = (other if v is value else v for v in node.inputs)
        value, other = node.output, apply(node.op, *operands, **node.attributes)
    return other
