"""Attention, and the rotation of its queries and keys by positions (Su et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ftuner.core.attention_softmax import AttentionSoftmax, optional_operands
from ftuner.core.dim import remainder
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT32
from ftuner.core.references import round_bfloat16
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    ElementWriter,
    Numerics,
    Operator,
    Require,
    Types,
    axis_of,
    elements_of,
    elementwise,
    same_dtype,
)
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """q (..., s, d), k (..., d, t), v (..., t, e), and a mask that broadcasts to (..., s, t): an
    addend, or booleans that say which scores count; it adds no elements to an axis of the scores.
    With `sinks`, then a tensor that broadcasts to (..., s, 1).
    Batch axes of k and v are those of q or one.
    Attributes are the fields of `AttentionSoftmax`."""
    q, k, v, *_ = types
    mask, sinks = optional_operands(types, attributes.get("sinks", False))
    addends = [m for m in mask if m.dtype != BOOL]
    if any(t.dtype != q.dtype for t in (k, v, *addends, *sinks)) or q.dtype.kind != "float":
        raise GraphError(f"attention of {', '.join(map(str, types))}")
    if not q.rank == k.rank == v.rank or any(m.rank > q.rank for m in (*mask, *sinks)):
        raise ShapeError(f"attention of {', '.join(map(str, types))}: expected the same axes")
    for other in (k, v):
        for x, y in zip(q.shape[:-2], other.shape[:-2], strict=True):
            if y != 1:
                require(x, y, "attention: batch axes")
    require(q.shape[-1], k.shape[-2], "attention: q and k")
    require(k.shape[-1], v.shape[-2], "attention: k and v")
    scores = (*q.shape[:-1], k.shape[-1])
    for name, given, whole in (("mask", mask, scores), ("sinks", sinks, (*q.shape[:-1], 1))):
        for t in given:
            what = f"attention: {name} {t} of scores {TensorType(q.dtype, scores)}"
            for x, y in zip(broadcast_shape([whole, t.shape], require, what), whole, strict=True):
                require(x, y, what)
    return (TensorType(q.dtype, (*q.shape[:-1], v.shape[-1])),)


def _infer_words(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """Infers as `_infer`, of q, k (..., t, d) and v in bfloat16, d being even; all else is float32.
    Both k and v may be float32, too, and are then rounded."""
    q, k, v, *others = types
    known = q.dtype == BFLOAT16 and k.dtype == v.dtype and k.dtype in (BFLOAT16, FLOAT32)
    if not known or remainder(q.shape[-1], 2):
        raise GraphError(f"word_attention of {', '.join(map(str, types))}")
    shapes = q.shape, (*k.shape[:-2], *k.shape[-2:][::-1]), v.shape
    return _infer([*(TensorType(FLOAT32, s) for s in shapes), *others], attributes, require)


def _reference_in(rounded: Callable[[Any], Any], keys_are_rows: bool) -> Callable[..., Any]:
    """`rounded`: what becomes of keys, values and powers; `keys_are_rows`: as of `_infer_words`."""

    def reference(
        q: Any, k: Any, v: Any, *others: Any, scale: float = AttentionSoftmax.scale,
        causal: int | None = None, hidden: float = AttentionSoftmax.hidden,
        safe: bool = AttentionSoftmax.safe, hides_nan: bool = AttentionSoftmax.hides_nan,
        softcap: float = AttentionSoftmax.softcap, sinks: bool = AttentionSoftmax.sinks,
    ) -> Any:  # fmt: skip
        k, v = rounded(k), rounded(v)
        k = k.swapaxes(-1, -2) if keys_are_rows else k
        mask, sink_scores = optional_operands((q, k, v, *others), sinks)
        rows, steps = q.shape[-2], k.shape[-1]
        if causal is not None:
            steps = max(min(steps, rows + causal), 0)
            k, v = k[..., :steps], v[..., :steps, :]
        scores = np.matmul(q, k) * np.asarray(scale, q.dtype)
        if softcap:
            cap = np.asarray(softcap, q.dtype)
            scores = cap * np.tanh(scores / cap)
        for given in mask:
            m = given[..., :steps] if given.ndim else given
            unseen = np.asarray(hidden, q.dtype)
            scores = np.where(m, scores, unseen) if m.dtype == np.bool_ else scores + m
        if scores.size == 0:
            return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        seen: Any = True
        if causal is not None:
            seen = np.arange(steps) <= np.arange(rows)[:, None] + causal
        least = np.finfo(q.dtype).min if safe else -math.inf
        largest = np.max(np.where(seen, scores, -math.inf), -1, keepdims=True)
        for sink in sink_scores:
            largest = np.maximum(largest, sink)
        powers = rounded(np.where(seen, np.exp(scores - np.maximum(largest, least)), 0))
        total = np.sum(powers, -1, keepdims=True)
        for sink in sink_scores:
            total = total + np.exp(sink - np.maximum(largest, least))
        weights = np.where(total == 0, 0, powers / total).astype(q.dtype)
        if hides_nan:
            weights = np.where(np.isnan(weights), 0, weights)
        return np.matmul(weights, v)

    return reference


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    """Rows, keys, and the depths of both products."""
    q, k = types[:2]
    return elements_of((*q.shape[:-1], k.shape[-1], q.shape[-1] + 1))


def _infer_rotary(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """The operands are x, whose `axis` has the two elements of a pair, and cosines and sines that
    broadcast with it; they have one element along `axis` if both elements share them."""
    x, cosine, sine = types
    same_dtype(types, "rotary")
    if x.dtype.kind != "float" or max(cosine.rank, sine.rank) > x.rank:
        raise GraphError(f"rotary of {', '.join(map(str, types))}")
    axis = axis_of(attributes["axis"], x.rank, "rotary")
    require(x.shape[axis], 2, f"rotary of {x}: elements of a pair")
    return (TensorType(x.dtype, broadcast_shape([t.shape for t in types], require, "rotary")),)


@elementwise
def _define_rotary(writer: ElementWriter) -> int:
    axis, index, dtype = writer.attributes["axis"], writer.at, writer.result.dtype
    at = [broadcast_index(writer, t.shape, writer.result.shape, index) for t in writer.types]
    x, cosine, sine = (writer.load(i, position) for i, position in enumerate(at))
    across = list(at[0])
    across[axis] = writer.subtract(writer.integer(1), index[axis])
    turned = writer.step("multiply", dtype, writer.load(0, across), sine)
    first = writer.compare("equal", index[axis], writer.integer(0))
    turned = writer.where(first, writer.step("negative", dtype, turned), turned)
    return writer.step("add", dtype, writer.step("multiply", dtype, x, cosine), turned)


def _reference_rotary(x: Any, cosine: Any, sine: Any, axis: int) -> Any:
    first, second = np.split(x, 2, axis)
    return x * cosine + np.concatenate([-second, first], axis) * sine


OPERATORS = (
    Operator(
        "attention",
        _infer,
        _reference_in(np.asarray, keys_are_rows=False),
        work=_work,
        numerics=Numerics.PRODUCT,
        # A mask.
        exact_from=3,
    ),
    Operator(
        "word_attention",
        _infer_words,
        _reference_in(round_bfloat16, keys_are_rows=True),
        work=lambda types, *_: elements_of((*types[0].shape, types[1].shape[-2])),
        numerics=Numerics.PRODUCT,
        exact_from=3,
    ),
    Operator("rotary", _infer_rotary, _reference_rotary, _define_rotary, exact_from=1),
)
