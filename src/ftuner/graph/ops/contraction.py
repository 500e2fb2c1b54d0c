"""Matrix products. The nodes that read a product may become its epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ftuner.core.dim import quotient, remainder
from ftuner.core.dtype import (
    BFLOAT16,
    BFLOAT16X2,
    FLOAT32,
    NARROW_DTYPES,
    UINT8,
    UINT8X4,
    WORDS,
    DType,
    moved_as,
)
from ftuner.core.index_expr import Index, Nest, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.arrays import held_in, of_bfloat16
from ftuner.graph.buffers import View, as_rows, contiguous_rows
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Array, Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    Numerics,
    Operator,
    Require,
    elements_of,
    load,
    reduction,
    same_dtype,
)
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape
from ftuner.graph.placement import Placement
from ftuner.graph.steps import ProductStep

Types = Sequence[TensorType]
NUMPY_MULTIPLY_ADDS = 8
"""Float multiply-adds that NumPy does in the time of reading one element."""


def _infer_matmul(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    a, b = types
    same_dtype(types, "matmul")
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"matmul of {a} and {b}: expected two axes or more")
    if a.dtype.kind == "bool":
        raise GraphError(f"matmul of {a} and {b}")
    require(a.shape[-1], b.shape[-2], f"matmul of {a} and {b}")
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]], require, f"matmul of {a} and {b}")
    return (TensorType(a.dtype, (*batch, a.shape[-2], b.shape[-1])),)


def _define_matmul(types: Types, attributes: Attributes, results: Types) -> Nest:
    a, b = types
    shape = results[0].shape

    def body(writer: Writer, kept: Index, reduced: Index) -> int:
        *batch, m, n = kept
        a_at = broadcast_index(writer, a.shape[:-2], shape[:-2], batch)
        b_at = broadcast_index(writer, b.shape[:-2], shape[:-2], batch)
        x = load(writer, types, 0, [*a_at, m, reduced[0]])
        y = load(writer, types, 1, [*b_at, reduced[0], n])
        return writer.step("multiply", a.dtype, x, y)

    return reduction(types, shape, a.shape[-1:], "sum", body)


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    steps = elements_of((*results[0].shape, types[0].shape[-1]))
    return steps // NUMPY_MULTIPLY_ADDS if results[0].dtype.kind == "float" else steps


def _infer_narrow_matmul(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType]:
    """A matrix or several, times one of 8-bit integers or of half precision."""
    a, b = types
    if a.dtype.kind != "float" or b.dtype not in NARROW_DTYPES:
        raise GraphError(f"narrow_matmul of {a} and {b}")
    if a.rank < 2 or b.rank != 2:
        raise ShapeError(f"narrow_matmul of {a} and {b}: expected two axes or more, and two")
    require(a.shape[-1], b.shape[0], f"narrow_matmul of {a} and {b}")
    return (TensorType(a.dtype, (*a.shape[:-1], b.shape[1])),)


def _narrow_matmul(a: Any, b: Any) -> Any:
    return np.matmul(a, b.astype(a.dtype))


_WORDS_OF_A: Mapping[DType, DType] = {UINT8: UINT8X4, BFLOAT16: BFLOAT16X2}


def _infer_word_matmul(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """Rows of uint8 or bfloat16 times a matrix (k, n) of int8 or bfloat16, which is given as words
    of several steps of k. The sums, of uint8 in int32, are float32."""
    a, b = types
    if WORDS.get(a.dtype) != b.dtype:
        raise GraphError(f"word_matmul of {a} and {b}")
    if a.rank < 2 or b.rank != 2:
        raise ShapeError(f"word_matmul of {a} and {b}: expected two axes or more, and two")
    require(a.shape[-1], b.shape[0] * b.dtype.numbers, f"word_matmul of {a} and {b}")
    return (TensorType(FLOAT32, (*a.shape[:-1], b.shape[1])),)


def words_of(weight: Array, dtype: DType) -> Array:
    """A matrix (k, n) of narrow numbers as words (k / numbers, n)."""
    k, n = weight.shape
    numbers = dtype.numbers
    steps = weight.reshape(k // numbers, numbers, n).transpose(0, 2, 1)
    return np.ascontiguousarray(steps).view(held_in(dtype))[..., 0]


def _word_matmul(a: Any, b: Any) -> Any:
    integers = a.dtype == np.uint8
    steps = b[..., None].view(np.int8 if integers else np.uint16)
    weight = steps.transpose(0, 2, 1).reshape(-1, b.shape[1])
    if not integers:
        weight = of_bfloat16(weight)
    # Sums of products of integers are exact in float64.
    return np.matmul(a.astype(np.float64), weight.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class PendingProduct(PendingRows):
    """A matrix product whose epilogue may still grow. If it is flat, A has two axes."""

    a: View
    b: View

    @property
    def dtype(self) -> DType:
        return moved_as(self.a.layout.dtype)

    @property
    def strided_rows(self) -> bool:
        return not self.flat

    def store(self, target: View, placement: Placement) -> None:
        # All rows are walked as one axis, and written in the dtype that is multiplied.
        rows = contiguous_rows(target)
        if not self.flat and target.layout.strides[-1] == 1:
            rows = target
        if target.layout.dtype != self.dtype or rows is None:
            placement.store_by_copy(self, self.dtype, target)
            return
        expr, operands = self.epilogue.expr, self.ordered_operands()
        placement.add(ProductStep(self.title, self.a, self.b, rows, expr, operands))


def _lower(node: Node, placement: Placement) -> tuple[PendingProduct] | None:
    a, b = node.inputs
    if a.dtype.kind != "float":
        return None
    dtype = placement.type_of(node.output).dtype
    left, right = placement.view(a, dtype), placement.view(b)
    if node.op != "narrow_matmul":
        right = placement.converted(right, dtype)
    flat = b.rank == 2
    if flat:
        # All rows are one product, so one stride must separate them.
        in_place = as_rows(left) if node.op == "matmul" else None
        left = in_place or placement.rows(a, dtype)
    return (PendingProduct(node.output, flat, NO_EPILOGUE, node.op, left, right),)


def _lower_words(node: Node, placement: Placement) -> tuple[PendingProduct]:
    a, b = node.inputs
    rows = _as_words(placement.rows(a, a.dtype))
    if rows is None:
        rows = _as_words(as_rows(placement.contiguous(a, a.dtype)))
    assert rows is not None
    right = placement.view(b, b.dtype)
    return (PendingProduct(node.output, True, NO_EPILOGUE, node.op, rows, right),)


def _as_words(rows: View | None) -> View | None:
    """Rows of narrow numbers as rows of words; None unless each row begins with a whole word."""
    if rows is None:
        return None
    layout, dtype = rows.layout, _WORDS_OF_A[rows.layout.dtype]
    k, distance = layout.shape[-1], layout.strides[0]
    if any(remainder(n, dtype.numbers) != 0 for n in (k, distance, layout.offset)):
        return None
    shape = (layout.shape[0], quotient(k, dtype.numbers))
    strides = (quotient(distance, dtype.numbers), 1)
    # The offset counts elements of the buffer.
    return View(rows.buffer, replace(layout, dtype=dtype, shape=shape, strides=strides))


CONTRACTIONS = (
    Operator("matmul", _infer_matmul, np.matmul, _define_matmul, _lower,
             work=_work, numerics=Numerics.PRODUCT),
    Operator("narrow_matmul", _infer_narrow_matmul, _narrow_matmul, lower=_lower,
             work=_work, numerics=Numerics.PRODUCT, widened=1),
    Operator("word_matmul", _infer_word_matmul, _word_matmul, lower=_lower_words,
             work=_work, numerics=Numerics.PRODUCT),
)  # fmt: skip
