"""Sums of embeddings and their norm: the first layer of encoders that onnxruntime optimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftuner.core.dtype import INT32
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.quantised import levels_of, scalar_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Epsilon, onnx
from ftuner.graph.algebra import apply, equal, gather, iota, scalar
from ftuner.graph.checks import expect_shape, malformed, require
from ftuner.graph.ir import Value

_EPSILON = 1e-12
_Read = Callable[[int, "Value | None"], Value]
"""`read(number, rows)`: an input as floats, or its rows at some indices."""


def _embedded(
    node: NodeView, read: _Read, positions: Value | None, epsilon: float
) -> Sequence[Value]:
    """The norm, the number of tokens that the mask counts, and the sum. Inputs 2 to 6 are tables of
    words, positions and segments, and the norm's scale and bias."""
    ids, segments = node.input(0), node.optional(1)
    if ids.rank != 2:
        raise malformed(f"tokens {ids.type}; expected two axes")
    batch, length = ids.shape
    given = [(2, ids), (3, positions)]
    if (segments is None) != (node.optional(4) is None):
        raise malformed("segments and their embedding are given together, or neither")
    if segments is not None:
        given.append((4, segments))
    total: Value | None = None
    for number, index in given:
        if node.input(number).rank != 2:
            raise malformed(f"embedding {node.input(number).type}; expected two axes")
        if index is None:
            index = iota(length, 1, 2)
        else:
            what = f"indices {index.type} for tokens {ids.type}"
            if index.rank != 2:
                raise malformed(what)
            require(index.shape[0], batch, what, or_one=number == 3)
            require(index.shape[1], length, what)
        rows = read(number, index)
        total = rows if total is None else total + rows
    assert total is not None
    scale, bias = read(5, None), read(6, None)
    for parameter in (scale, bias):
        what = f"scale or bias {parameter.type} of {total.type}"
        expect_shape(parameter, (total.shape[2],), what)
    norm = apply("norm", total, scale, bias, axis=2, epsilon=epsilon, rms=False)
    mask = node.optional(7)
    if mask is None:
        counts = scalar(0, INT32).broadcast((batch,))
    else:
        counts = equal(mask, 1).cast(INT32).reduce("sum", [1], keep=False)
    return [norm, counts, total]


def _rows(table: Value, index: Value | None) -> Value:
    return table if index is None else gather(table, index)


@onnx("EmbedLayerNormalization", domain=MICROSOFT)
def _embed(node: NodeView, epsilon: Epsilon = _EPSILON) -> Sequence[Value]:
    def read(number: int, index: Value | None) -> Value:
        return _rows(node.input(number), index)

    return _embedded(node, read, node.optional(8), epsilon)


@onnx("QEmbedLayerNormalization", domain=MICROSOFT)
def _quantised_embed(node: NodeView, epsilon: Epsilon = _EPSILON) -> Sequence[Value]:
    """Embeds by tables that are levels: scales are inputs 8 to 12, zero points 13 to 17."""

    def read(number: int, index: Value | None) -> Value:
        scale = scalar_of(node.input(number + 6), "a scale")
        zero = scalar_of(node.input(number + 11), "a zero point")
        return levels_of(_rows(node.input(number), index), zero, scale.dtype) * scale

    return _embedded(node, read, None, epsilon)[:2]
