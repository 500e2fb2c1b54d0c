"""Moves transpositions to channels first down the graph, to where they cancel.

Operators with windows are channels last, and a model file is channels first: each such operator
stands between two transpositions. A transposition is moved from the operand of an operator to its
result where the operator can work on the permuted axes. There it meets the opposite transposition
of the next operator, and both go. What is left are conversions at the borders of regions that
channels last suits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import Shape, product
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.ir import Graph, Node, TensorType, Value, live_nodes
from ftuner.graph.rewrite.surroundings import constant, made, rewritten

WINDOWED = frozenset({"convolution", "word_convolution", "window_reduce"})
"""Operators that a graph must have for the pass to change it."""
FEW_CHANNELS = 4
"""Most channels of a picture. With more, an element of a window is long enough to be read alone."""
Permutation = tuple[int, ...]
"""Axis j of a tensor is axis `permutation[j]` of the tensor that it is a transposition of."""


class _Moved(NamedTuple):
    """A node on permuted axes."""

    attributes: Mapping[str, Any]
    permutation: Permutation
    """From the result of the moved node to that of the node."""
    arranged: Permutation | None = None
    """How the operand has to be transposed first, if it has to."""


def move_transpositions(graph: Graph) -> Graph:
    """Move transpositions as described above. A graph without windows stays as it is."""
    return _Moving(graph).run() if has_windows(graph) else graph


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


def pad_first_layers(graph: Graph) -> Graph:
    """Pad what convolutions of few channels read, so that each row of a window is one piece of
    memory. The first layer of a network reads a copy of the picture anyway: channels last."""
    places: dict[Node, list[Node]] = {}
    transposed = {node.output for node in graph.nodes if node.op == "transpose"}
    for node in graph.nodes:
        padded = _padded(node, transposed) if node.op == "convolution" else None
        if padded is not None:
            places[node] = padded
    return rewritten(graph, places, {})


def _padded(node: Node, transposed: Collection[Value]) -> list[Node] | None:
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
    zero = constant(f"{x.name}_zero", x.dtype, np.zeros(()))
    inside = {**attributes, "begin": (0,) * len(begin)}
    shape = (x.shape[0], *needed, channels)
    if x in transposed:
        found = [_pad(x, zero, shape, (0, *begin, 0), (0, *after, 0))]
    else:
        # Positions and channels as one axis, along which x is contiguous.
        merged = reshape_to(x, (*x.shape[:-2], x.shape[-2] * channels))
        before, behind = begin[-1] * channels, after[-1] * channels
        lines = (*shape[:-2], needed[-1] * channels)
        pad = _pad(merged.output, zero, lines, (0, *begin[:-1], before), (0, *after[:-1], behind))
        found = [merged, pad, reshape_to(pad.output, shape)]
    return [*found, replace(node, inputs=(found[-1].output, w), attributes=inside)]


def _pad(x: Value, zero: Value, shape: Shape, before: Shape, after: Shape) -> Node:
    type_ = TensorType(x.dtype, shape)
    widths = {"before": before, "after": after}
    return made("pad", [x, zero], type_, f"{x.name}_padded", mode="constant", **widths)


def reshape_to(x: Value, shape: Shape) -> Node:
    return made("reshape", [x], TensorType(x.dtype, shape), f"{x.name}_reshaped", shape=shape)


class _Moving:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._same: dict[Value, Value] = {}
        self._waiting: dict[Value, tuple[Value, Permutation]] = {}
        """Values that are a transposition of another, which is not written yet."""
        self._written: dict[tuple[Value, Permutation], Value] = {}
        self._scores: set[Value] = set()
        """Products of two tensors, and what is computed of their elements: their last axes are rows
        and columns, and no channels."""

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._node(node)
        outputs = tuple((name, self._plain(value)) for name, value in self._graph.outputs)
        nodes = live_nodes(self._nodes, [value for _, value in outputs])
        return Graph(self._graph.inputs, outputs, nodes, self._graph.constraints)

    def _node(self, node: Node) -> None:
        inputs = tuple(self._same.get(v, v) for v in node.inputs)
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
        plain = tuple(map(self._plain, inputs))
        same = plain == node.inputs
        self._nodes.append(node if same else replace(node, inputs=plain))

    def _transpose(self, node: Node, x: Value) -> None:
        base, permutation = self._waiting.get(x, (x, tuple(range(x.rank))))
        permutation = tuple(permutation[p] for p in node.attributes["perm"])
        if permutation == tuple(range(x.rank)):
            self._same[node.output] = base
        elif x in self._waiting or is_to_channels_first(permutation):
            self._waiting[node.output] = base, permutation
        elif _is_reshape(x.shape, x.rank, permutation):
            shape = {"shape": node.output.shape}
            self._nodes.append(Node("reshape", (x,), node.outputs, shape))
        else:
            self._nodes.append(replace(node, inputs=(x,)))

    def _await_channels_last(self, picture: Value, axes: Sequence[int]) -> None:
        """A constant picture, such as a table of positions, becomes the transposition of one with
        channels last: vectors of channels have the same weights."""
        to_first = _to_channels_first(picture.rank)
        if picture in self._waiting or picture.rank < 3 or not {0, 1}.isdisjoint(axes):
            return
        assert picture.constant is not None
        array = np.transpose(picture.constant, _inverse(to_first))
        last = constant(f"{picture.name}_last", picture.dtype, np.ascontiguousarray(array))
        self._waiting[picture] = last, to_first

    def _plain(self, value: Value) -> Value:
        """The value itself, its transposition written."""
        value = self._same.get(value, value)
        found = self._waiting.get(value) if value.constant is None else None
        return value if found is None else self._transposed(*found, value)

    def _transposed(self, x: Value, permutation: Permutation, like: Value) -> Value:
        """A transposition of x, which is written once; `like`: a value that it equals, or that
        names it."""
        if permutation == tuple(range(x.rank)):
            return x
        key = (x, permutation)
        found = self._written.get(key)
        if found is None:
            type_ = TensorType(x.dtype, tuple(x.shape[p] for p in permutation))
            found = like if self._waiting.get(like) == key else Value(f"{like.name}_moved", type_)
            self._nodes.append(Node("transpose", (x,), (found,), {"perm": permutation}))
            self._written[key] = found
        return found

    def _add(
        self, node: Node, inputs: Sequence[Value], attributes: Mapping[str, Any],
        permutation: Permutation,
    ) -> None:  # fmt: skip
        """Write the node on permuted axes."""
        result = node.output
        if permutation == tuple(range(result.rank)):
            self._nodes.append(replace(node, inputs=tuple(inputs), attributes=attributes))
            return
        shape = tuple(result.shape[j] for j in _inverse(permutation))
        type_ = TensorType(result.dtype, shape)
        other = made(node.op, inputs, type_, f"{result.name}_last", **attributes)
        self._nodes.append(other)
        self._waiting[result] = other.output, permutation

    def _unary(self, node: Node, inputs: Sequence[Value]) -> bool:
        """An operator whose first operand alone has the axes."""
        rule = _RULES.get(node.op)
        x = inputs[0]
        if rule is None or x not in self._waiting:
            return False
        base, permutation = self._waiting[x]
        moved = rule(node, permutation)
        if moved is None:
            return False
        if moved.arranged is not None:
            base = self._transposed(base, moved.arranged, base)
        others = map(self._plain, inputs[1:])
        self._add(node, (base, *others), moved.attributes, moved.permutation)
        return True

    def _concat(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation, count = found
        if 2 * count < len(inputs):
            return False
        operands = [self._permuted(v, permutation) for v in inputs]
        axis = permutation[node.attributes["axis"]]
        self._add(node, operands, {"axis": axis}, permutation)
        return True

    def _pointwise(self, node: Node, inputs: Sequence[Value]) -> bool:
        found = self._most_common(inputs, node.output.rank)
        if found is None:
            return False
        permutation = found[0]
        inverse = _inverse(permutation)
        # What is broadcast is small: its transposition costs little, whichever way it goes.
        whole = [v for v in inputs if v.constant is None and v.shape == node.output.shape]
        waiting = [v for v in whole if self._waiting.get(v, (v, ()))[1] == permutation]
        copied = [
            v for v in whole
            if v not in waiting and not _is_reshape(v.shape, node.output.rank, inverse)
        ]  # fmt: skip
        if len(copied) > len(waiting) or not self._scores.isdisjoint(copied):
            return False
        operands = [self._permuted(v, permutation, node.output.rank) for v in inputs]
        self._add(node, operands, node.attributes, permutation)
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
        inverse = _inverse(permutation)
        if value in self._waiting and value.rank == rank:
            base, own = self._waiting[value]
            return self._transposed(base, tuple(own[j] for j in inverse), value)
        value = self._plain(value)
        if product(value.shape) == 1:
            return value
        shape = (1,) * (rank - value.rank) + value.shape
        if value.constant is not None:
            array = np.transpose(value.constant.reshape(shape), inverse)
            return constant(f"{value.name}_last", value.dtype, np.ascontiguousarray(array))
        turned = tuple(shape[j] for j in inverse)
        if _is_reshape(value.shape, rank, inverse):
            return self._reshaped(value, turned)
        return self._transposed(self._reshaped(value, shape), inverse, value)

    def _reshaped(self, value: Value, shape: Shape) -> Value:
        if value.shape == shape:
            return value
        node = reshape_to(value, shape)
        self._nodes.append(node)
        return node.output


def _inverse(permutation: Permutation) -> Permutation:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def _to_channels_first(rank: int) -> Permutation:
    return (0, rank - 1, *range(1, rank - 1))


def is_to_channels_first(permutation: Permutation) -> bool:
    return len(permutation) > 2 and permutation == _to_channels_first(len(permutation))


def is_to_channels_last(permutation: Permutation) -> bool:
    rank = len(permutation)
    return rank > 2 and permutation == _inverse(_to_channels_first(rank))


def is_pointwise(op: str) -> bool:
    return op in SCALAR_FUNCTIONS or op in ("where", "cast", "bit_cast")


def _is_reshape(shape: Shape, rank: int, permutation: Permutation) -> bool:
    """Whether a transposition of a shape, with ones in front, keeps the order of the elements."""
    whole = (1,) * (rank - len(shape)) + shape
    moved = [j for j in permutation if whole[j] != 1]
    return moved == sorted(moved)


# Operators on permuted axes.


def _along_axis(node: Node, permutation: Permutation) -> _Moved:
    """An operator with one axis, whose result has the axes of its operand."""
    axis = permutation[node.attributes["axis"]]
    return _Moved({**node.attributes, "axis": axis}, permutation)


def _gather(node: Node, permutation: Permutation) -> _Moved | None:
    return _along_axis(node, permutation) if node.inputs[1].rank == 1 else None


def _resample(node: Node, permutation: Permutation) -> _Moved:
    axes = tuple(permutation[axis] for axis in node.attributes["axes"])
    return _Moved({"axes": axes}, permutation)


def _for_each_axis(*names: str) -> Callable[[Node, Permutation], _Moved | None]:
    """An operator with attributes that have an entry for each axis."""

    def rule(node: Node, permutation: Permutation) -> _Moved | None:
        inverse = _inverse(permutation)
        attributes = dict(node.attributes)
        for name in names:
            if len(attributes[name]) != len(inverse):
                return None
            attributes[name] = tuple(attributes[name][j] for j in inverse)
        return _Moved(attributes, permutation)

    return rule


def _without(permutation: Permutation, axes: Sequence[int]) -> Permutation:
    """The permutation of the axes that are left when `axes` of the transposed tensor go."""
    left = [permutation[j] for j in range(len(permutation)) if j not in axes]
    order = sorted(left)
    return tuple(order.index(axis) for axis in left)


def _reduce(node: Node, permutation: Permutation) -> _Moved:
    axes = node.attributes["axes"]
    moved = tuple(sorted(permutation[axis] for axis in axes))
    return _Moved({**node.attributes, "axes": moved}, _without(permutation, axes))


def _arg_reduce(node: Node, permutation: Permutation) -> _Moved:
    axis = node.attributes["axis"]
    return _Moved({**node.attributes, "axis": permutation[axis]}, _without(permutation, (axis,)))


def _reshape(node: Node, permutation: Permutation) -> _Moved | None:
    """A reshape that splits axes, or merges axes, which have to be neighbours."""
    old, new = node.inputs[0].shape, node.output.shape
    runs = _runs(old, new)
    if runs is None:
        return None
    placed = []
    for before, after in runs:
        axes = [permutation[j] for j in before]
        placed.append((min(axes, default=-1), axes, after))
    placed.sort(key=lambda run: run[0])
    arranged = tuple(axis for _, axes, _ in placed for axis in axes)
    order = [axis for *_, after in placed for axis in after]
    shape = tuple(new[axis] for axis in order)
    result = tuple(order.index(axis) for axis in range(len(new)))
    moves = [axis for axis in arranged if old[permutation.index(axis)] != 1]
    return _Moved({"shape": shape}, result, None if moves == sorted(moves) else arranged)


def _runs(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes of both shapes with equal numbers of elements; None if they are not
    known. Axes of extent 1 join the run before them."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [], []
        if i < len(old):
            before.append(i)
            i += 1
        if j < len(new):
            after.append(j)
            j += 1
        while product(old[a] for a in before) != product(new[a] for a in after):
            left, right = (product(s[a] for a in axes) for s, axes in ((old, before), (new, after)))
            takes_new = j < len(new) and (i == len(old) or _is_part(right, left))
            if takes_new:
                after.append(j)
                j += 1
            elif i < len(old):
                before.append(i)
                i += 1
            else:
                return None
        while i < len(old) and old[i] == 1:
            before.append(i)
            i += 1
        while j < len(new) and new[j] == 1:
            after.append(j)
            j += 1
        runs.append((before, after))
    return runs


def _is_part(part: Any, whole: Any) -> bool:
    """Whether one number of elements is taken to be a factor of another."""
    if isinstance(part, int) and isinstance(whole, int):
        return part < whole
    return isinstance(part, int) or len(str(part)) < len(str(whole))


_RULES: Mapping[str, Callable[[Node, Permutation], _Moved | None]] = {
    "arg_reduce": _arg_reduce,
    "broadcast": _for_each_axis("shape"),
    "cumulative_product": _along_axis,
    "cumulative_sum": _along_axis,
    "gather": _gather,
    "pad": _for_each_axis("before", "after"),
    "reduce": _reduce,
    "repeat": _for_each_axis("repeats"),
    "resample": _resample,
    "reshape": _reshape,
    "slice": _for_each_axis("starts", "steps", "shape"),
    "softmax": _along_axis,
    "tile": _for_each_axis("repeats"),
}
