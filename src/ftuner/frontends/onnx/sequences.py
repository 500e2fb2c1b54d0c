"""Sequences and optionals. They are known while a graph is made, which has tensors alone: where
their lengths or positions are known only at run time, other ones make another graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.dtype import BOOL
from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx.context import Context, Items, NodeView, Nothing, Operand, Table
from ftuner.graph.ir import Value

MOST_PIECES = 4096
"""Longest sequence that a tensor is split into."""


def _construct(context: Context, node: NodeView) -> Sequence[Operand]:
    return [_of_one_dtype(context, node.present())]


def _of_one_dtype(context: Context, values: Sequence[Value]) -> Items:
    if any(v.dtype != values[0].dtype for v in values):
        raise context.malformed(f"a sequence of {', '.join(str(v.dtype) for v in values)}")
    return Items(tuple(values))


def _empty(context: Context, node: NodeView) -> Sequence[Operand]:
    return [Items(())]


def _position(context: Context, node: NodeView, number: int, most: int) -> int:
    """A position from the front, at most `most`."""
    given = context.integer_of(node.input(number), "the position")
    length = len(node.items(0).values)
    if not -length <= given <= most:
        raise IndexRangeError(
            f"{context.builder.where}: position {given} of a sequence of {length} tensors"
        )
    return given % length if given < 0 else given


def _insert(context: Context, node: NodeView) -> Sequence[Operand]:
    values = list(node.items(0).values)
    at = len(values) if node.optional(2) is None else _position(context, node, 2, len(values))
    values.insert(at, node.input(1))
    return [_of_one_dtype(context, values)]


def _erase(context: Context, node: NodeView) -> Sequence[Operand]:
    values = list(node.items(0).values)
    if not values:
        raise context.malformed("nothing to erase from an empty sequence")
    del values[-1 if node.optional(1) is None else _position(context, node, 1, len(values) - 1)]
    return [Items(tuple(values))]


def _at(context: Context, node: NodeView) -> Sequence[Operand]:
    values = node.items(0).values
    return [values[_position(context, node, 1, len(values) - 1)]]


def _length(context: Context, node: NodeView) -> Sequence[Operand]:
    return [context.builder.constant(np.int64(len(node.items(0).values)))]


def _split(context: Context, node: NodeView) -> Sequence[Operand]:
    x, split = node.input(0), node.optional(1)
    axis = context.axis(node.integer("axis", 0), x.rank)
    whole = x.shape[axis]
    if split is not None and split.rank == 1:
        extents: list[Dim] = list(context.extents_of(split, "the split"))
        total: Dim = 0
        for extent in extents:
            total = total + extent
        context.builder.require(total, whole, f"extents of the pieces of {x.type}")
    else:
        step = 1 if split is None else context.integer_of(split, "the split")
        if step < 1:
            raise context.malformed(f"a split into pieces of {step}")
        (count,) = context.known([ceil_quotient(whole, step)], "the number of pieces")
        if count > MOST_PIECES:
            raise context.unsupported(f"a sequence of {count} tensors; at most {MOST_PIECES}")
        extents = [step] * (count - 1)
        extents += [whole - step * (count - 1)] if count else []
    pieces = context.pieces(x, axis, extents)
    if split is None and not node.flag("keepdims", True):
        pieces = [context.squeeze(piece, [axis]) for piece in pieces]
    return [Items(tuple(pieces))]


def _concat(context: Context, node: NodeView) -> Sequence[Operand]:
    values, axis = node.items(0).values, node.integer("axis")
    if not values:
        raise context.malformed("nothing to concatenate in an empty sequence")
    if node.flag("new_axis"):
        axis = context.axis(axis, values[0].rank + 1)
        return [context.concat([context.unsqueeze(v, [axis]) for v in values], axis)]
    return [context.concat(values, context.axis(axis, values[0].rank))]


def _map(context: Context, node: NodeView) -> Sequence[Operand]:
    graph, count = node.graph("body"), len(node.items(0).values)
    results: list[list[Value]] = [[] for _ in graph.outputs]
    for number in range(count):
        if not context.repeats.take(graph):
            raise context.unsupported("too many tensors of a sequence to map")
        operands: list[Operand] = []
        for given in node.inputs:
            if isinstance(given, Items):
                if len(given.values) != count:
                    raise context.malformed(f"sequences of {count} and {len(given.values)} tensors")
                given = given.values[number]
            if given is None:
                raise context.malformed("an input is missing")
            operands.append(given)
        for found, value in zip(results, node.inner(context, graph, operands), strict=True):
            if not isinstance(value, Value):
                raise context.malformed("a sequence of sequences")
            found.append(value)
    return [Items(tuple(found)) for found in results]


def _identity(context: Context, node: NodeView) -> Sequence[Operand]:
    found = node.operand(0)
    return [node.input(0) if found is None else found]


def _optional(context: Context, node: NodeView) -> Sequence[Operand]:
    found = node.operand(0)
    return [Nothing() if found is None else found]


def _has_element(context: Context, node: NodeView) -> Sequence[Operand]:
    found = node.operand(0)
    there = found is not None and not isinstance(found, Nothing)
    return [context.scalar(there, BOOL)]


def _get_element(context: Context, node: NodeView) -> Sequence[Operand]:
    found = node.operand(0)
    if found is None or isinstance(found, Nothing):
        raise context.malformed("the optional has no element")
    return [found]


SEQUENCES: Table = {
    ("", "SequenceConstruct"): _construct,
    ("", "SequenceEmpty"): _empty,
    ("", "SequenceInsert"): _insert,
    ("", "SequenceErase"): _erase,
    ("", "SequenceAt"): _at,
    ("", "SequenceLength"): _length,
    ("", "SplitToSequence"): _split,
    ("", "ConcatFromSequence"): _concat,
    ("", "SequenceMap"): _map,
    ("", "Identity"): _identity,
    ("", "Optional"): _optional,
    ("", "OptionalHasElement"): _has_element,
    ("", "OptionalGetElement"): _get_element,
}
