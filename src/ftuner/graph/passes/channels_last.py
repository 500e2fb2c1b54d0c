"""Moves transpositions to channels first down the graph, to where they cancel.

Operators with windows are channels last, and a model file is channels first: each such operator
stands between two transpositions. A transposition is moved from the operand of an operator to its
result where the operator can work on the permuted axes. There it meets the opposite transposition
of the next operator, and both go. What is left are conversions at the borders of regions that
channels last suits. Pools outside of these become pools of single channels, and the few channels of
pictures are padded for a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ftuner.core.dim import Shape, minimum, product
from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.graph.algebra import apply, concat, constant, zero_padded
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.ops.pointwise import is_pointwise
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.passes.permuted_axes import RULES, Permutation, inverse
from ftuner.graph.rewrite.rule import Rewriting, Rule, rule
from ftuner.graph.rewrite.surroundings import Surroundings

WINDOWED = frozenset({"convolution", "word_convolution", "window_reduce"})
"""Operators that a graph must have for the pass to change it."""
FEW_CHANNELS = 4
"""Most channels of a picture. With more, an element of a window is long enough to be read alone."""


def move_transpositions(graph: Graph) -> Graph:
    """Move transpositions as described above. A graph without windows stays as it is."""
    return Moving(graph).run() if has_windows(graph) else graph


def has_windows(graph: Graph) -> bool:
    """Whether a graph has operators with windows, or products that are channels last because they
    are convolutions by windows of one element."""
    products: set[Value] = set()
    for node in graph.nodes:
        if node.op in WINDOWED:
            return True
        if node.op == "matmul" or (node.op == "add" and not products.isdisjoint(node.inputs)):
            products.add(node.output)
        elif node.op == "transpose" and node.inputs[0] in products:
            perm = node.attributes["perm"]
            if len(perm) > 3 and is_to_channels_first(perm):
                return True
    return False


@rule("convolution")
def pad_first_layers(node: Node, around: Surroundings) -> Value | None:
    """Pads what convolutions of few channels read, so that each row of a window is one piece of
    memory. The first layer of a network reads a copy of the picture anyway: channels last."""
    x, w = node.inputs
    attributes = node.attributes
    begin, extents = attributes["begin"], attributes["extents"]
    channels = x.shape[-1]
    if not isinstance(channels, int) or channels > FEW_CHANNELS or attributes["groups"] > 1:
        return None
    steps = zip(attributes["strides"], attributes["dilations"], w.shape, strict=False)
    needed = tuple(
        (count - 1) * stride + (n - 1) * dilation + 1
        for count, (stride, dilation, n) in zip(extents, steps, strict=True)
    )
    if needed == x.shape[1:-1] and not any(begin):
        return None
    # Negative widths cut what no window reads.
    after = tuple(n - b - d for n, b, d in zip(needed, begin, x.shape[1:-1], strict=True))
    if around.producer(x, "transpose") is not None:
        padded = zero_padded(x, (0, *begin, 0), (0, *after, 0))
    else:
        # Positions and channels as one axis, along which x is contiguous.
        lines = x.reshape((*x.shape[:-2], x.shape[-2] * channels))
        before, behind = begin[-1] * channels, after[-1] * channels
        lines = zero_padded(lines, (0, *begin[:-1], before), (0, *after[:-1], behind))
        padded = lines.reshape((x.shape[0], *needed, channels))
    return apply("convolution", padded, w, **{**attributes, "begin": (0,) * len(begin)})


class Moving:
    """Moves the transpositions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._new = Rewriting(graph)
        self._waiting: dict[Value, tuple[Value, Permutation]] = {}
        """Values that are a transposition of another, which may not be read."""
        self._scores: set[Value] = set()
        """Products of two tensors, and what is computed of their elements: their last axes are rows
        and columns, and no channels."""

    def run(self) -> Graph:
        with writing_to(self._new):
            for node in self._graph.nodes:
                self._new.name = node.outputs[0].name
                self._node(node)
        return self._new.rewritten()

    def _node(self, node: Node) -> None:
        same = self._new.same
        inputs = tuple(v if v in self._waiting else same.get(v, v) for v in node.inputs)
        if node.op == "transpose":
            self._transpose(node, inputs[0])
            return
        if node.op == "resample" and inputs[0].constant is not None:
            self._await_channels_last(inputs[0], node.attributes["axes"])
        if len(node.outputs) == 1 and any(v in self._waiting for v in inputs):
            if is_pointwise(node.op):
                moved = self._pointwise(node, inputs)
            elif node.op == "concat":
                moved = self._concat(node, inputs)
            else:
                moved = self._unary(node, inputs)
            if moved:
                return
        if is_pointwise(node.op) or node.op == "softmax":
            of_scores = any(v in self._scores and v.shape == node.output.shape for v in inputs)
        else:
            of_scores = node.op == "matmul" and all(v.constant is None for v in inputs)
        if of_scores:
            self._scores.add(node.output)

    def _transpose(self, node: Node, x: Value) -> None:
        base, permutation = self._waiting.get(x, (x, tuple(range(x.rank))))
        permutation = tuple(permutation[p] for p in node.attributes["perm"])
        if x in self._waiting or is_to_channels_first(permutation):
            self._await(node.output, base, permutation)
        elif _is_reshape(x.shape, x.rank, permutation):
            self._new.same[node.output] = apply("reshape", x, shape=node.output.shape)

    def _await_channels_last(self, picture: Value, axes: Sequence[int]) -> None:
        """A constant picture, such as a table of positions, becomes the transposition of one with
        channels last: vectors of channels have the same weights."""
        to_first = to_channels_first(picture.rank)
        if picture in self._waiting or picture.rank < 3 or not {0, 1}.isdisjoint(axes):
            return
        assert picture.constant is not None
        array = np.transpose(picture.constant, inverse(to_first))
        last = constant(np.ascontiguousarray(array), picture.dtype)
        self._waiting[picture] = last, to_first

    def _await(self, value: Value, base: Value, permutation: Permutation) -> None:
        """Have a value be a transposition of another."""
        if permutation != tuple(range(value.rank)):
            self._waiting[value] = base, permutation
        self._new.same[value] = base.transpose(permutation)

    def _unary(self, node: Node, inputs: Sequence[Value]) -> bool:
        """An operator whose first operand alone has the axes."""
        x, *others = inputs
        if node.op not in RULES or x not in self._waiting:
            return False
        base, permutation = self._waiting[x]
        moved = RULES[node.op](node, permutation)
        if moved is None:
            return False
        if moved.arranged is not None:
            base = base.transpose(moved.arranged)
        result = apply(node.op, base, *others, **moved.attributes)
        self._await(node.output, result, moved.permutation)
        return True

    def _concat(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation, count = found
        if 2 * count < len(inputs):
            return False
        operands = [self._permuted(v, permutation) for v in inputs]
        result = concat(operands, permutation[node.attributes["axis"]])
        self._await(node.output, result, permutation)
        return True

    def _pointwise(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation = found[0]
        order = inverse(permutation)
        # What is broadcast is small: its transposition costs little, whichever way it goes.
        whole = [v for v in inputs if v.constant is None and v.shape == node.output.shape]
        waiting = [v for v in whole if self._waiting.get(v, (v, ()))[1] == permutation]
        copied = [
            v for v in whole
            if v not in waiting and not _is_reshape(v.shape, node.output.rank, order)
        ]  # fmt: skip
        if len(copied) > len(waiting) or not self._scores.isdisjoint(copied):
            return False
        operands = [self._permuted(v, permutation, node.output.rank) for v in inputs]
        result = apply(node.op, *operands, **node.attributes)
        self._await(node.output, result, permutation)
        return True

    def _most_common(self, inputs: Sequence[Value], rank: int) -> tuple[Permutation, int] | None:
        """The permutation that most operands wait with, and how many; None if none does."""
        counts = Counter(
            self._waiting[v][1] for v in inputs if v in self._waiting and v.rank == rank
        )
        return counts.most_common(1)[0] if counts else None

    def _permuted(self, value: Value, permutation: Permutation, rank: int | None = None) -> Value:
        """The operand whose transposition by `permutation` is the value, of `rank` axes: those that
        are missing in front have extent 1."""
        rank = value.rank if rank is None else rank
        order = inverse(permutation)
        if value in self._waiting and value.rank == rank:
            base, own = self._waiting[value]
            return base.transpose([own[j] for j in order])
        if product(value.shape) == 1:
            return value
        shape = (1,) * (rank - value.rank) + value.shape
        if value.constant is not None:
            array = np.transpose(value.constant.reshape(shape), order)
            return constant(np.ascontiguousarray(array), value.dtype)
        if _is_reshape(value.shape, rank, order):
            return value.reshape(tuple(shape[j] for j in order))
        return value.reshape(shape).transpose(order)


def to_channels_first(rank: int) -> Permutation:
    return (0, rank - 1, *range(1, rank - 1))


def is_to_channels_first(permutation: Permutation) -> bool:
    return len(permutation) > 2 and permutation == to_channels_first(len(permutation))


def is_to_channels_last(permutation: Permutation) -> bool:
    rank = len(permutation)
    return rank > 2 and permutation == inverse(to_channels_first(rank))


def _is_reshape(shape: Shape, rank: int, permutation: Permutation) -> bool:
    """Whether a transposition of a shape, with ones in front, keeps the order of the elements."""
    whole = (1,) * (rank - len(shape)) + shape
    moved = [j for j in permutation if whole[j] != 1]
    return moved == sorted(moved)


LEAST_ROW = 16
"""Fewest elements of a row that are worth it, for each element of a window but one. On AMD Zen 4
pools of 64 images of one channel, by windows of 3 x 3, take 1.1 to 1.9 times as long along rows of
7 to 28, and 0.8 of the time along rows of 40; by 5 x 5 as long along rows of 48 and 56. With AVX2
they take 0.7 to 1 of the time already along rows of 16 to 28."""
LEAST_CHANNELS = 16
"""Fewest channels that are worth transpositions: they fill a vector of AVX-512."""


@rule("transpose")
def write_single_channels(node: Node, around: Surroundings) -> Value | None:
    """Writes pools between transpositions, and what is computed of their elements, as pools of
    images of one channel.

    Where neither what a pool reads nor what reads its result has channels last, two transpositions
    take longer than a pool of long rows. Images of one channel need none, and have their rows along
    vectors. Where it is not known whether rows are long, there are both pools: one of all images
    and one of none.
    """
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


MOST_ROW_BYTES = 128
"""Most bytes of a row of a window with padded channels: those of a k step of every tile, so that
padding adds no step."""


def pad_channels(held: Mapping[Value, DType]) -> Rule:
    """The rule by which paddings before convolutions also pad channels, with zeros, to whole
    vectors: the pixels of a picture are then not loaded element by element. `held`: as in
    `graph.precision`."""

    @rule("convolution")
    def padded(node: Node, around: Surroundings) -> Value | None:
        x, w = node.inputs
        pad = around.producer(x, "pad")
        if pad is None or w.constant is None or around.only_consumer(x) is not node:
            return None
        channels, row = w.shape[-2], w.shape[-3]
        fill = pad.inputs[1].constant if pad.attributes["mode"] == "constant" else None
        if fill is None or fill.any() or node.attributes["groups"] > 1:
            return None
        assert isinstance(channels, int)
        assert isinstance(row, int)
        size = held.get(node.output, node.output.dtype).itemsize
        vector = ALIGNMENT_BYTES // size
        more = -channels % vector
        if row * channels % vector == 0 or row * (channels + more) * size > MOST_ROW_BYTES:
            return None
        after = (*pad.attributes["after"][:-1], pad.attributes["after"][-1] + more)
        wide = apply("pad", *pad.inputs, **{**pad.attributes, "after": after})
        widths = [(0, 0)] * (w.rank - 2) + [(0, more), (0, 0)]
        weight = constant(np.pad(w.constant, widths), w.dtype)
        return apply("convolution", wide, weight, **node.attributes)

    return padded
