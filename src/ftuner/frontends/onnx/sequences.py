"""Sequences and optionals. They are known while a graph is made, which has tensors alone: where
their lengths or positions are known only at run time, other ones make another graph. The pieces of
a tensor stay one tensor as long as it can be read in place of them; one graph then serves any
number of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum
from ftuner.core.dtype import BOOL, INT64
from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx.context import (
    Context,
    Growing,
    Items,
    NodeView,
    Nothing,
    Operand,
    Pieces,
)
from ftuner.frontends.onnx.records import GraphRecord
from ftuner.frontends.onnx.signatures import Axis, onnx
from ftuner.graph.algebra import concat, gather, scalar
from ftuner.graph.checks import malformed, origin, require, unsupported
from ftuner.graph.ir import Value

MOST_PIECES = 4096
"""Longest sequence that a tensor is split into."""


@onnx("SequenceConstruct")
def _construct(*xs: Value) -> Operand:
    return _of_one_dtype(xs)


def _of_one_dtype(values: Sequence[Value]) -> Items:
    if any(v.dtype != values[0].dtype for v in values):
        raise malformed(f"a sequence of {', '.join(str(v.dtype) for v in values)}")
    return Items(tuple(values))


@onnx("SequenceEmpty")
def _empty() -> Operand:
    return Items(())


def _values(context: Context, sequence: Items | Pieces) -> tuple[Value, ...]:
    """The tensors of a sequence whose length must be known now."""
    if isinstance(sequence, Items):
        return sequence.values
    x, axis, step = sequence.x, sequence.axis, sequence.step
    whole = x.shape[axis]
    (count,) = context.known([_count(sequence)], "the number of pieces")
    if count > MOST_PIECES:
        raise unsupported(f"a sequence of {count} tensors; at most {MOST_PIECES}")
    extents: list[Dim] = [step] * (count - 1)
    extents += [whole - step * (count - 1)] if count else []
    return tuple(_shaped(sequence, p) for p in x.pieces(axis, extents))


def _count(pieces: Pieces) -> Dim:
    return ceil_quotient(pieces.x.shape[pieces.axis], pieces.step)


def _shaped(pieces: Pieces, piece: Value) -> Value:
    return piece if pieces.keepdims else piece.squeeze([pieces.axis])


def _position(context: Context, position: Value, length: int, most: int) -> int:
    """A position from the front, at most `most`."""
    given = context.integer_of(position, "the position")
    if not -length <= given <= most:
        raise IndexRangeError(f"{origin()}: position {given} of a sequence of {length} tensors")
    return given % length if given < 0 else given


@onnx("SequenceInsert")
def _insert(
    context: Context, node: NodeView, sequence: Operand | None, tensor: Value,
    position: Value | None,
) -> Operand:  # fmt: skip
    if isinstance(sequence, Growing) and position is None:
        return replace(sequence, appended=(*sequence.appended, node.input(1)))
    values = list(_values(context, node.sequence(0)))
    length = len(values)
    at = length if position is None else _position(context, position, length, length)
    values.insert(at, tensor)
    return _of_one_dtype(values)


@onnx("SequenceErase")
def _erase(context: Context, sequence: Items | Pieces, position: Value | None) -> Operand:
    values = list(_values(context, sequence))
    if not values:
        raise malformed("nothing to erase from an empty sequence")
    length = len(values)
    del values[-1 if position is None else _position(context, position, length, length - 1)]
    return Items(tuple(values))


@onnx("SequenceAt")
def _at(context: Context, sequence: Items | Pieces, position: Value) -> Operand:
    if isinstance(sequence, Pieces):
        return _piece(context, sequence, position)
    length = len(sequence.values)
    return sequence.values[_position(context, position, length, length - 1)]


def _piece(context: Context, pieces: Pieces, position: Value) -> Value:
    """The piece at a position, which may be computed where all pieces have extent 1."""
    x, axis, step, count = pieces.x, pieces.axis, pieces.step, _count(pieces)
    if position.dtype.kind == "int" and position.constant is None and step == 1:
        if position.rank > 1:
            raise malformed(f"the position is {position.type}; expected one element")
        position = position.squeeze(range(position.rank))
        piece = gather(x, position, axis)
        return piece.unsqueeze([axis]) if pieces.keepdims else piece
    start: Dim
    if isinstance(count, int):
        start = step * _position(context, position, count, count - 1)
    else:
        given = context.integer_of(position, "the position")
        least = given + 1 if given >= 0 else -given
        what = f"tensors that a sequence lacks for position {given}"
        require(maximum(least - count, 0), 0, what)
        start = step * (given if given >= 0 else count + given)
    # The last piece may be shorter.
    extent = step if step == 1 else minimum(step, x.shape[axis] - start)
    return _shaped(pieces, x.slice(axis, start, extent))


@onnx("SequenceLength")
def _length(context: Context, sequence: Items | Pieces) -> Operand:
    length = len(sequence.values) if isinstance(sequence, Items) else _count(sequence)
    return context.builder.dims([length], ())


@onnx("SplitToSequence")
def _split(
    context: Context, x: Value, split: Value | None, axis: Axis = 0, keepdims: bool = True
) -> Operand:
    if split is not None and split.rank == 1:
        extents: list[Dim] = list(context.extents_of(split, "the split"))
        require(sum(extents), x.shape[axis], f"extents of the pieces of {x.type}")
        return Items(tuple(x.pieces(axis, extents)))
    step = 1 if split is None else context.integer_of(split, "the split")
    if step < 1:
        raise malformed(f"a split into pieces of {step}")
    return Pieces(x, axis, step, split is not None or keepdims)


@onnx("ConcatFromSequence")
def _concat(
    context: Context, sequence: Items | Pieces, axis: int, new_axis: bool = False
) -> Operand:
    if isinstance(sequence, Pieces):
        x = sequence.x
        if not sequence.keepdims:
            # The pieces lack the axis that they are along.
            axis = context.axis(axis, x.rank if new_axis else x.rank - 1)
            x = x.moved(sequence.axis, axis)
            if new_axis:
                return x
            count, extent = x.shape[axis : axis + 2]
            return x.reshape((*x.shape[:axis], count * extent, *x.shape[axis + 2 :]))
        if not new_axis and context.axis(axis, x.rank) == sequence.axis:
            return x
    values = _values(context, sequence)
    if not values:
        raise malformed("nothing to concatenate in an empty sequence")
    if new_axis:
        axis = context.axis(axis, values[0].rank + 1)
        return concat([v.unsqueeze([axis]) for v in values], axis)
    return concat(values, context.axis(axis, values[0].rank))


@onnx("SequenceMap")
def _map(context: Context, node: NodeView, body: GraphRecord) -> Sequence[Operand]:
    inputs = [
        Items(_values(context, node.sequence(number)))
        if isinstance(given, (Pieces, Growing))
        else given
        for number, given in enumerate(node.inputs)
    ]
    if not inputs or not isinstance(inputs[0], Items):
        raise malformed("input 0 is not a sequence")
    count = len(inputs[0].values)
    results: list[list[Value]] = [[] for _ in body.outputs]
    loop = context.builder.random_number()
    for number in range(count):
        if not context.repeats.take(body):
            raise unsupported("too many tensors of a sequence to map")
        operands: list[Operand] = []
        for given in inputs:
            if isinstance(given, Items):
                if len(given.values) != count:
                    raise malformed(f"sequences of {count} and {len(given.values)} tensors")
                given = given.values[number]
            if given is None:
                raise malformed("an input is missing")
            operands.append(given)
        with context.builder.iteration(loop, scalar(number, INT64)):
            made = node.inner(context, body, operands)
        for found, value in zip(results, made, strict=True):
            if not isinstance(value, Value):
                raise malformed("a sequence of sequences")
            found.append(value)
    return [Items(tuple(found)) for found in results]


@onnx("Identity")
def _identity(node: NodeView, x: Operand | None) -> Operand:
    return node.input(0) if x is None else x


@onnx("Optional")
def _optional(x: Operand | None) -> Operand:
    return Nothing() if x is None else x


@onnx("OptionalHasElement")
def _has_element(x: Operand | None) -> Operand:
    return scalar(x is not None and not isinstance(x, Nothing), BOOL)


@onnx("OptionalGetElement")
def _get_element(x: Operand | None) -> Operand:
    if x is None or isinstance(x, Nothing):
        raise malformed("the optional has no element")
    return x
