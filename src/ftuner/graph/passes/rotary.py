"""Recognises rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Node, Value
from ftuner.graph.passes.permuted_axes import inverse
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings, scaled


class _Rotation(NamedTuple):
    """A rotation of the pairs of elements along the last axis of x."""

    x: Value
    cosine: Value
    sine: Value
    half: Dim
    """Number of pairs."""
    interleaved: bool
    """Whether the elements of a pair are neighbours; else they are half an axis apart."""
    back: bool = False
    """Whether pairs are rotated the other way."""

    def in_pairs(self, outer: Shape, elements: Dim, pairs: Dim) -> Shape:
        """A shape with one axis for the two elements of a pair, and one for the pairs."""
        return (*outer, pairs, elements) if self.interleaved else (*outer, elements, pairs)

    def table(self, shape: Shape) -> Shape | None:
        """The shape of angles with one entry per element, per pair, or for all pairs."""
        *outer, last = shape
        if last == self.half * 2:
            return self.in_pairs(tuple(outer), 2, self.half)
        return self.in_pairs(tuple(outer), 1, last) if last in (1, self.half) else None


class _Joined(NamedTuple):
    """The first and the second elements of pairs."""

    first: Value
    second: Value
    interleaved: bool


@rule("add", "concat", "reshape")
def rotary(node: Node, around: Surroundings) -> Value | None:
    """Replace `x * cos + turned(x) * sin`, where turned(x) is (-second, first) of the pairs of x,
    and (first * cos - second * sin, second * cos + first * sin), by one node.

    The elements of a pair are half the last axis apart, or neighbours. Where turned(x) is (second,
    -first), as NanoChat has it, the sines are negated.
    """
    of = _of_elements(around, node) if node.op == "add" else _of_pairs(around, node.output)
    if of is None:
        return None
    x, half, sine = of.x, of.half, -of.sine if of.back else of.sine
    tables = [(value, of.table(value.shape)) for value in (of.cosine, sine) if value.rank]
    shapes = [shape for _, shape in tables if shape is not None]
    if len(shapes) < 2 or x.rank != node.output.rank:
        return None
    operands = [value.reshape(shape) for (value, _), shape in zip(tables, shapes, strict=True)]
    pairs, axis = x.reshape(of.in_pairs(x.shape[:-1], 2, half)), x.rank - (not of.interleaved)
    turned = apply("rotary", pairs, *operands, axis=axis)
    whole = turned.shape == of.in_pairs(node.output.shape[:-1], 2, half)
    return turned.reshape(node.output.shape) if whole else None


def _of_elements(around: Surroundings, add: Node) -> _Rotation | None:
    """The rotation in the form of two products with tables that have an entry per element."""
    for straight, turned in (add.inputs, add.inputs[::-1]):
        for result, sine in _factors(around, turned):
            joined = _joined(around, result)
            if joined is None:
                continue
            negated = [_negated(around, v) for v in (joined.first, joined.second)]
            back = negated[0] is None
            first, second = (negated[1], joined.first) if back else (joined.second, negated[0])
            if first is None or second is None:
                continue
            x = _parted(around, joined._replace(first=first, second=second))
            for other, cosine in (*_factors(around, straight), *_turned(around, straight)):
                if other is x:
                    return _Rotation(x, cosine, sine, second.shape[-1], joined.interleaved, back)
    return None


def _of_pairs(around: Surroundings, value: Value) -> _Rotation | None:
    """The rotation in the form of separate first and second elements, with an entry per pair."""
    joined = _joined(around, value)
    if joined is None:
        return None
    subtract, add = around.producer(joined.first, "subtract"), around.producer(joined.second, "add")
    back = subtract is None and add is None
    if back:
        # Of the other way, the second elements are the difference.
        joined = joined._replace(first=joined.second, second=joined.first)
        subtract = around.producer(joined.first, "subtract")
        add = around.producer(joined.second, "add")
    if subtract is None or add is None:
        return None
    products = [around.producer(v, "multiply") for v in add.inputs]
    factors = {frozenset(p.inputs) for p in products if p is not None}
    for first, cosine in _factors(around, subtract.inputs[0]):
        for second, sine in _factors(around, subtract.inputs[1]):
            pair = (second, first) if back else (first, second)
            x = _parted(around, _Joined(*pair, joined.interleaved))
            if x is not None and factors == {frozenset((second, cosine)), frozenset((first, sine))}:
                return _Rotation(x, cosine, sine, first.shape[-1], joined.interleaved, back)
    return None


def _factors(around: Surroundings, value: Value) -> Iterator[tuple[Value, Value]]:
    """The operands of a product, either first."""
    product = around.producer(value, "multiply")
    if product is not None:
        x, y = product.inputs
        yield x, y
        yield y, x


def _turned(around: Surroundings, value: Value) -> Iterator[tuple[Value, Value]]:
    """The operands of a product that is transposed, as they are after the transposition: one has
    other readers there, and one comes from there. ONNX Runtime moves transpositions so."""
    moved = around.producer(value, "transpose")
    product = None if moved is None else around.producer(moved.inputs[0], "multiply")
    if moved is None or product is None:
        return
    perm = moved.attributes["perm"]
    for x, y in (product.inputs, product.inputs[::-1]):
        back = around.producer(y, "transpose")
        if back is None or back.attributes["perm"] != inverse(perm) or y.rank != len(perm):
            continue
        for reader in around.consumers(x):
            if reader.op == "transpose" and reader.attributes["perm"] == perm:
                yield reader.output, back.inputs[0]


def _negated(around: Surroundings, value: Value) -> Value | None:
    """x if a value is -x."""
    negative = around.producer(value, "negative")
    if negative is not None:
        return negative.inputs[0]
    x, factor = scaled(around, value)
    return x if factor == -1 else None


def _joined(around: Surroundings, value: Value) -> _Joined | None:
    """The first and second elements of a value that joins them along its last axis."""
    reshape = around.producer(value, "reshape")
    concat = around.producer(value if reshape is None else reshape.inputs[0], "concat")
    if concat is None or concat.attributes["axis"] != concat.output.rank - 1:
        return None
    if len(concat.inputs) != 2 or concat.inputs[0].type != concat.inputs[1].type:
        return None
    if reshape is None:
        return _Joined(*concat.inputs, interleaved=False)
    first, second = (_without_last_axis(around, v) for v in concat.inputs)
    if first is None or second is None or first.rank == 0:
        return None
    whole = (*first.shape[:-1], first.shape[-1] * 2)
    return _Joined(first, second, interleaved=True) if value.shape == whole else None


def _without_last_axis(around: Surroundings, value: Value) -> Value | None:
    """x if a value is x with a last axis of extent 1 added."""
    reshape = around.producer(value, "reshape")
    if reshape is None or (*reshape.inputs[0].shape, 1) != value.shape:
        return None
    return reshape.inputs[0]


def _parted(around: Surroundings, joined: _Joined) -> Value | None:
    """The tensor that the first and second elements are parts of."""
    first, second, interleaved = joined
    whole = (*first.shape[:-1], first.shape[-1] * 2)
    for part in (_sliced, _taken):
        x = part(around, first, 0, interleaved)
        if x is not None and x is part(around, second, 1, interleaved):
            return x if first.type == second.type and x.shape == whole else None
    return None


def _sliced(around: Surroundings, value: Value, which: int, interleaved: bool) -> Value | None:
    """The tensor of which a value is the first (0) or second (1) elements, as a slice."""
    node = around.producer(value, "slice")
    if node is None:
        return None
    outer = value.rank - 1
    step, start = (2, which) if interleaved else (1, which * value.shape[-1])
    starts, steps = (0,) * outer + (start,), (1,) * outer + (step,)
    same = node.attributes["starts"] == starts and node.attributes["steps"] == steps
    return node.inputs[0] if same else None


def _taken(around: Surroundings, value: Value, which: int, interleaved: bool) -> Value | None:
    """The pair where the last axis was split in two and one of them was indexed."""
    squeeze = around.producer(value, "reshape")
    node = around.producer(squeeze.inputs[0], "slice") if squeeze is not None else None
    split = around.producer(node.inputs[0], "reshape") if node is not None else None
    if node is None or split is None:
        return None
    *outer, half = value.shape
    before = (0,) * len(outer)
    starts = (*before, 0, which) if interleaved else (*before, which, 0)
    pairs = (*outer, half, 2) if interleaved else (*outer, 2, half)
    one = (*outer, half, 1) if interleaved else (*outer, 1, half)
    same = node.attributes["starts"] == starts and set(node.attributes["steps"]) == {1}
    shapes = (split.output.shape, node.output.shape)
    return split.inputs[0] if same and shapes == (pairs, one) else None
