"""Matrix products. The nodes that read a product may become its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftuner.core.dtype import NARROW_DTYPES, DType
from ftuner.core.index_expr import Index, Nest, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View, as_rows, contiguous_rows
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, TensorType
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


@dataclass(frozen=True)
class PendingProduct(PendingRows):
    """A matrix product whose epilogue may still grow. If it is flat, A has two axes."""

    a: View
    b: View

    @property
    def dtype(self) -> DType:
        return self.a.layout.dtype

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


CONTRACTIONS = (
    Operator("matmul", _infer_matmul, np.matmul, _define_matmul, _lower,
             work=_work, numerics=Numerics.PRODUCT),
    Operator("narrow_matmul", _infer_narrow_matmul, _narrow_matmul, lower=_lower,
             work=_work, numerics=Numerics.PRODUCT, widened=1),
)  # fmt: skip
