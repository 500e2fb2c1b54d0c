"""Attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import Attributes, Operator, Require
from ftuner.graph.ops.pointwise import broadcast_shape

Types = Sequence[TensorType]


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """q (..., s, d), k (..., d, t), v (..., t, e) and a mask that broadcasts to (..., s, t)."""
    q, k, v, *mask = types
    if any(t.dtype != q.dtype for t in types) or q.dtype.kind != "float":
        raise GraphError(f"attention of {', '.join(map(str, types))}")
    if not q.rank == k.rank == v.rank or any(m.rank > q.rank for m in mask):
        raise ShapeError(f"attention of {', '.join(map(str, types))}: expected the same axes")
    for other in (k, v):
        for x, y in zip(q.shape[:-2], other.shape[:-2], strict=True):
            require(x, y, "attention: batch axes")
    require(q.shape[-1], k.shape[-2], "attention: q and k")
    require(k.shape[-1], v.shape[-2], "attention: k and v")
    scores = (*q.shape[:-1], k.shape[-1])
    for m in mask:
        broadcast_shape([scores, m.shape], require, "attention: mask")
    return (TensorType(q.dtype, (*q.shape[:-1], v.shape[-1])),)


def _reference(q: Any, k: Any, v: Any, *mask: Any, scale: float) -> Any:
    scores = np.matmul(q, k) * np.asarray(scale, q.dtype)
    for m in mask:
        scores = scores + m
    if scores.size == 0:
        return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    weights = np.exp(scores - np.max(scores, -1, keepdims=True))
    return np.matmul(weights / np.sum(weights, -1, keepdims=True), v)


ATTENTION = (Operator("attention", _infer, _reference, None),)
