"""Writes norms of groups of channels so that the channels of a picture may be last.

Exporters merge the channels of a group with the positions of the picture, normalise along the
merged axis, and split it again. No transposition moves through that. The pass reduces the positions
of each channel first, then the channels of each group, which leaves the axes of the picture apart:
`channels_last` can move them, and vectors lie along all channels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dim import Dim, Shape, maximum, product
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value
from ftuner.graph.passes.channels_last import has_windows
from ftuner.graph.rewrite.surroundings import (
    Surroundings,
    constant,
    made,
    near,
    reduced,
    rewritten,
    scalar,
    scaled,
)


class _Norm(NamedTuple):
    """A norm of groups of channels."""

    end: Node
    """The reshape that gives the result."""
    x: Value
    """(images, channels, positions...)."""
    groups: int
    epsilon: float
    scale: Array | None
    """Of each group, or None, as `shift`."""
    shift: Array | None


def separate_groups(graph: Graph) -> Graph:
    """Write norms of groups as described above, in graphs with windows."""
    if not has_windows(graph):
        return graph
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op == "sqrt":
            found = _found(around, node)
            if found is not None:
                nodes = _written(found)
                places[found.end] = nodes
                same[found.end.output] = nodes[-1].output
    return rewritten(graph, places, same)


def _found(around: Surroundings, sqrt: Node) -> _Norm | None:
    """The norm whose deviation a root is."""
    lifted = around.producer(sqrt.inputs[0], "add")
    divide = around.only_consumer(sqrt.output)
    if lifted is None or divide is None or divide.op != "divide":
        return None
    centred, root = divide.inputs
    subtract = around.producer(centred, "subtract")
    if subtract is None or root is not sqrt.output:
        return None
    groups = subtract.inputs[0]
    for variance, epsilon in (lifted.inputs, lifted.inputs[::-1]):
        squares = _mean_of(around, variance, groups)
        square = None if squares is None else around.producer(squares, "multiply")
        number = scalar(epsilon)
        if number is None or square is None or square.inputs != (centred, centred):
            continue
        if _mean_of(around, subtract.inputs[1], groups) is not groups:
            continue
        return _of_channels(around, groups, divide, number)
    return None


def _mean_of(around: Surroundings, value: Value, like: Value) -> Value | None:
    """The tensor of the type of `like` whose mean over all axes but the first two is the value."""
    total, factor = scaled(around, value)
    count: Value | None = None
    divide = around.producer(value, "divide")
    if total is value and divide is not None:
        total, count = divide.inputs
    found = reduced(around, total, "sum")
    if found is None or found[0].type != like.type or found[1] != tuple(range(2, like.rank)):
        return None
    elements = product(like.shape[2:])
    if count is None:
        known = isinstance(elements, int) and elements > 0 and near(factor, 1.0 / elements, FLOAT32)
        return found[0] if known else None
    # The mean of no element is divided by one.
    known = _extent(around, count) in (elements, maximum(elements, 1))
    return found[0] if known else None


def _extent(around: Surroundings, count: Value) -> object:
    """The dim that a number of the graph is; None if it is not known to be one."""
    node = around.producer_of(count)
    while node is not None and node.op in ("reshape", "cast"):
        node = around.producer_of(node.inputs[0])
    if node is None or node.op != "dims" or len(node.attributes["dims"]) != 1:
        return None
    return node.attributes["dims"][0]


def _of_channels(around: Surroundings, groups: Value, divide: Node, epsilon: float) -> _Norm | None:
    """The norm of the groups of a picture's channels that a division ends, up to the reshape that
    gives the axes of the picture again."""
    merge = around.producer(groups, "reshape")
    if merge is None:
        return None
    x = merge.inputs[0]
    channels, count = (s[1] if len(s) > 2 else None for s in (x.shape, groups.shape))
    if not isinstance(channels, int) or not isinstance(count, int) or not channels or not count:
        return None
    if x.shape[0] != groups.shape[0] or channels % count or x.dtype not in (FLOAT32, FLOAT64):
        return None
    parameters: list[Array | None] = []
    end = divide
    for op in ("multiply", "add"):
        after = around.only_consumer(end.output)
        value = None
        if after is not None and after.op == op:
            other = after.inputs[1 if after.inputs[0] is end.output else 0]
            value = _of_groups(other, groups.shape)
            if value is None:
                return None
            end = after
        parameters.append(value)
    split = around.only_consumer(end.output)
    if split is None or split.op != "reshape" or split.output.type != x.type:
        return None
    return _Norm(split, x, count, epsilon, *parameters)


def _of_groups(value: Value, shape: Shape) -> Array | None:
    """A constant that has one number for each group of (images, groups, elements...), or one for
    all; else None."""
    if value.constant is None or value.rank > len(shape):
        return None
    whole = (1,) * (len(shape) - value.rank) + value.constant.shape
    if whole[0] != 1 or any(n != 1 for n in whole[2:]):
        return None
    groups = shape[1]
    assert isinstance(groups, int)
    return np.broadcast_to(value.constant.reshape(whole[1]), (groups,))


def _written(norm: _Norm) -> list[Node]:
    """The nodes of a norm. What is divided is per channel, so that it is computed once and not for
    each position."""
    x, name = norm.x, norm.end.output.name
    images, channels, *positions = x.shape
    assert isinstance(channels, int)
    of_group = channels // norm.groups
    nodes: list[Node] = []

    def add(op: str, inputs: list[Value], extents: Shape, **attributes: object) -> Value:
        type_ = TensorType(x.dtype, extents)
        nodes.append(made(op, inputs, type_, f"{name}_group_{len(nodes)}", **attributes))
        return nodes[-1].output

    def reshaped(value: Value, *shape: Dim) -> Value:
        return add("reshape", [value], shape, shape=shape)

    elements = (of_group * product(positions),)
    nodes.append(made("dims", [], TensorType(INT64, (1,)), f"{name}_elements", dims=elements))
    count = add("cast", [nodes[-1].output], (1,), to=x.dtype)

    def mean(value: Value) -> Value:
        """The mean of each group, for each of its channels."""
        axes = tuple(range(2, x.rank))
        sums = add("reduce", [value], (images, channels), kind="sum", axes=axes)
        apart = reshaped(sums, images, norm.groups, of_group)
        total = add("reduce", [apart], (images, norm.groups), kind="sum", axes=(2,))
        kept = reshaped(total, images, norm.groups, 1)
        shape = (images, norm.groups, of_group)
        each = reshaped(add("broadcast", [kept], shape, shape=shape), images, channels)
        return add("divide", [each, count], (images, channels))

    def for_positions(value: Value) -> Value:
        return reshaped(value, images, channels, *(1 for _ in positions))

    centred = add("subtract", [x, for_positions(mean(x))], x.shape)
    variance = mean(add("multiply", [centred, centred], x.shape))
    epsilon = constant(f"{name}_epsilon", x.dtype, np.array(norm.epsilon))
    root = add("sqrt", [add("add", [variance, epsilon], variance.shape)], variance.shape)
    scale = np.ones(norm.groups) if norm.scale is None else norm.scale
    scales = constant(f"{name}_scale", x.dtype, np.repeat(scale, of_group))
    factor = add("divide", [scales, root], root.shape)
    result = add("multiply", [centred, for_positions(factor)], x.shape)
    if norm.shift is not None and norm.shift.any():
        shape = (channels, *(1 for _ in positions))
        shift = np.repeat(norm.shift, of_group).reshape(shape)
        add("add", [result, constant(f"{name}_shift", x.dtype, shift)], x.shape)
    return nodes
