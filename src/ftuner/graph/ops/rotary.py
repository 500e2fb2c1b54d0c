"""Rotary positions: pairs of elements rotated by angles (Su and others, arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.index_expr import Index, Nest, Writer
from ftuner.errors import GraphError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    Operator,
    Require,
    axis_of,
    injective,
    load,
    same_dtype,
)
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape

Types = Sequence[TensorType]


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """The operands are x, whose `axis` has the two elements of a pair, and cosines and sines that
    broadcast with it; they have one element along `axis` if both elements share them."""
    x, cosine, sine = types
    same_dtype(types, "rotary")
    if x.dtype.kind != "float" or max(cosine.rank, sine.rank) > x.rank:
        raise GraphError(f"rotary of {', '.join(map(str, types))}")
    axis = axis_of(attributes["axis"], x.rank, "rotary")
    require(x.shape[axis], 2, f"rotary of {x}: elements of a pair")
    return (TensorType(x.dtype, broadcast_shape([t.shape for t in types], require, "rotary")),)


def _define(types: Types, attributes: Attributes, results: Types) -> Nest:
    axis, shape = attributes["axis"], results[0].shape
    dtype = results[0].dtype

    def body(writer: Writer, index: Index) -> int:
        at = [broadcast_index(writer, t.shape, shape, index) for t in types]
        x, cosine, sine = (load(writer, types, i, position) for i, position in enumerate(at))
        across = list(at[0])
        across[axis] = writer.subtract(writer.integer(1), index[axis])
        turned = writer.step("multiply", dtype, load(writer, types, 0, across), sine)
        first = writer.compare("equal", index[axis], writer.integer(0))
        turned = writer.where(first, writer.step("negative", dtype, turned), turned)
        return writer.step("add", dtype, writer.step("multiply", dtype, x, cosine), turned)

    return injective(types, results[0], body)


def _reference(x: Any, cosine: Any, sine: Any, axis: int) -> Any:
    first, second = np.split(x, 2, axis)
    return x * cosine + np.concatenate([-second, first], axis) * sine


ROTARY = (Operator("rotary", _infer, _reference, _define, exact_from=1),)
