"""Matrix products, which the nodes that read them may become an epilogue of, those of a mixture of
experts, whose weights are chosen at run time, and determinants, by the LAPACK of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ftuner.core.dtype import FLOAT32, NARROW_DTYPES, UINT8, DType, has_signed_levels
from ftuner.core.index_expr import Index, Nest, Stage, Store
from ftuner.core.product import WORD_PRODUCTS
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.arrays import held_in, of_bfloat16
from ftuner.graph.blocks import of_blocks
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import (
    Attributes,
    Infer,
    NestWriter,
    Numerics,
    Operator,
    Require,
    Types,
    elements_of,
    expect_elements,
    reduction,
    same_dtype,
)
from ftuner.graph.ops.indexing import expect_indices
from ftuner.graph.ops.pointwise import broadcast_index, broadcast_shape

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

    def body(writer: NestWriter, kept: Index, reduced: Index) -> int:
        *batch, m, n = kept
        a_at = broadcast_index(writer, a.shape[:-2], shape[:-2], batch)
        b_at = broadcast_index(writer, b.shape[:-2], shape[:-2], batch)
        x, y = writer.load(0, [*a_at, m, reduced[0]]), writer.load(1, [*b_at, reduced[0], n])
        return writer.step("multiply", a.dtype, x, y)

    return reduction(types, shape, a.shape[-1:], "sum", body)


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    steps = elements_of((*results[0].shape, types[0].shape[-1]))
    return steps // NUMPY_MULTIPLY_ADDS if results[0].dtype.kind == "float" else steps


def _by_matrix(op: str, takes: Callable[[DType, DType, Attributes], bool]) -> Infer:
    """The shape rule of a product of a matrix or several, of a dtype that it takes, and of a matrix
    (k, n) of another, which is given as words or blocks of several steps of k."""

    def infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
        a, b = types
        what = f"{op} of {a} and {b}"
        if not takes(a.dtype, b.dtype, attributes):
            raise GraphError(what)
        if a.rank < 2 or b.rank != 2:
            raise ShapeError(f"{what}: expected two axes or more, and two")
        require(a.shape[-1], b.shape[0] * b.dtype.numbers, what)
        dtype = a.dtype if op == "narrow_matmul" else FLOAT32
        return (TensorType(dtype, (*a.shape[:-1], b.shape[1])),)

    return infer


def _are_words(a: DType, b: DType, attributes: Attributes) -> bool:
    """Rows of uint8 or bfloat16, and words of int8 or bfloat16. Sums of uint8 are in int32."""
    return a in WORD_PRODUCTS and b == WORD_PRODUCTS[a].b


def _are_blocks(a: DType, b: DType, attributes: Attributes) -> bool:
    """Rows of float32, or of uint8 where levels are signed, and blocks of levels."""
    blocks = b.kind == "block" and b == attributes["block"]
    return blocks and a == (UINT8 if has_signed_levels(b) else FLOAT32)


def words_of(weight: Array, dtype: DType) -> Array:
    """Matrices (..., k, n) of narrow numbers as words (..., k / numbers, n)."""
    *batch, k, n = weight.shape
    steps = weight.reshape(*batch, k // dtype.numbers, dtype.numbers, n)
    return np.ascontiguousarray(np.moveaxis(steps, -2, -1)).view(held_in(dtype))[..., 0]


def _word_matmul(a: Any, b: Any) -> Any:
    integers = a.dtype == np.uint8
    steps = b[..., None].view(np.int8 if integers else np.uint16)
    weight = steps.transpose(0, 2, 1).reshape(-1, b.shape[1])
    if not integers:
        weight = of_bfloat16(weight)
    # Sums of products of integers are exact in float64.
    return np.matmul(a.astype(np.float64), weight.astype(np.float64)).astype(np.float32)


def _infer_determinant(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """The operand is (batch axes..., M, M), the result has the batch axes. A matrix of no rows has
    the determinant 1."""
    (x,) = types
    what = f"determinant of {x}; expected square matrices"
    if x.dtype.kind != "float":
        raise GraphError(f"determinant of {x}; expected floats")
    if x.rank < 2:
        raise ShapeError(what)
    require(x.shape[-2], x.shape[-1], what)
    return (TensorType(x.dtype, x.shape[:-2]),)


def _infer_experts(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """x (tokens, k), weight (experts, k, n), or (experts, n, k) if `transposed`; index (tokens,
    slots); and perhaps a bias (experts, n). The result is (tokens, slots, n). A token may have the
    same expert several times."""
    x, weight, index, *bias = types
    what = f"expert_matmul of {', '.join(map(str, types))}"
    same_dtype((x, weight, *bias), what)
    expect_indices(index.dtype, what)
    if x.dtype.kind != "float":
        raise GraphError(f"{what}: expected floats")
    if [t.rank for t in types] != [2, 3, 2, 2][: len(types)]:
        raise ShapeError(f"{what}: expected x, weight, index and bias of 2, 3, 2 and 2 axes")
    experts, k, n = weight.shape
    if attributes["transposed"]:
        k, n = n, k
    require(x.shape[1], k, what)
    require(x.shape[0], index.shape[0], what)
    for given in bias:
        require(given.shape[0], experts, what)
        require(given.shape[1], n, what)
    expect_elements(require, index.shape, experts, f"{what}: no expert")
    return (TensorType(x.dtype, (*index.shape, n)),)


def _define_experts(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, weight, _, *bias = types
    writer = NestWriter(types, attributes)
    token, slot, column, step = (writer.index(axis) for axis in range(4))
    expert = writer.checked(writer.load(2, [token, slot]), writer.integer(weight.shape[0]))
    at = [expert, column, step] if attributes["transposed"] else [expert, step, column]
    a, b = writer.load(0, [token, step]), writer.load(1, at)
    value = writer.step("multiply", x.dtype, a, b)
    total = writer.step("stage", x.dtype, payload=0)
    if bias:
        total = writer.step("add", x.dtype, total, writer.load(3, [expert, column]))
    store = Store(total, (0, 1, 2))
    return writer.nest(results[0].shape, x.shape[1:], [Stage("sum", value)], store)


def _reference_experts(
    x: Any, weight: Any, index: Any, bias: Any = None, *, transposed: bool, node: str = ""
) -> Any:
    experts, k, n = weight.shape
    if transposed:
        weight, n = np.swapaxes(weight, 1, 2), k
    if np.any((index < -experts) | (index >= experts)):
        raise IndexError(f"{node or 'expert_matmul'}: an index is out of range")
    found = np.empty((*index.shape, n), x.dtype)
    for expert in range(experts):
        token, slot = np.nonzero(index % experts == expert)
        found[token, slot] = x[token] @ weight[expert]
        if bias is not None:
            found[token, slot] += bias[expert]
    return found


OPERATORS = (
    Operator("matmul", _infer_matmul, np.matmul, _define_matmul,
             work=_work, numerics=Numerics.PRODUCT),
    Operator("narrow_matmul",
             _by_matrix("narrow_matmul", lambda a, b, _: a.kind == "float" and b in NARROW_DTYPES),
             lambda a, b: np.matmul(a, b.astype(a.dtype)),
             work=_work, numerics=Numerics.PRODUCT, widened=1),
    Operator("word_matmul", _by_matrix("word_matmul", _are_words), _word_matmul,
             work=_work, numerics=Numerics.PRODUCT),
    Operator("block_matmul", _by_matrix("block_matmul", _are_blocks),
             lambda a, b, block: np.matmul(a.astype(np.float32), of_blocks(b, block)),
             work=_work, numerics=Numerics.PRODUCT),
    Operator("expert_matmul", _infer_experts, _reference_experts, _define_experts,
             work=lambda types, _, results: elements_of((*results[0].shape, types[0].shape[1])),
             numerics=Numerics.PRODUCT),
    Operator("determinant", _infer_determinant,
             # LAPACK may take a NaN on the diagonal for a pivot of zero.
             lambda x: np.where(np.isnan(x).any((-2, -1)), np.nan, np.linalg.det(x)),
             # A multiply-add for each element and row. LAPACK does several in that time.
             work=lambda types, *_: elements_of((*types[0].shape, types[0].shape[-1])),
             numerics=Numerics.REDUCTION),
)  # fmt: skip
"""`transposed` of `expert_matmul`: the weight is (experts, n, k)."""
