"""Products of matrices and of tensors; attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftuner.core.dim import Shape, product
from ftuner.core.dtype import INT64, DType
from ftuner.frontends.torch.pointwise import add, multiply
from ftuner.frontends.torch.promotion import Number, valued
from ftuner.frontends.torch.reductions import search
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import equal, gather, iota, sqrt, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.compositions.attention import default_scale, fused
from ftuner.graph.einsum import einsum
from ftuner.graph.ir import Value
from ftuner.graph.ops.pointwise import broadcast_shape

GROUPED = ("_grouped_mm.default", "transformers::grouped_mm_fallback.default")
"""Products by the matrices of groups of rows. A CPU reads the matrices in place; on a GPU each row
would have a copy of one."""


@aten("linear")
def linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    """Rows of the input by those of a weight."""
    found = input @ (weight.swapped() if weight.rank > 1 else weight)
    return found if bias is None else found + bias


aten("mm", "bmm", "matmul", "mv", "dot", "linalg_matmul", "vdot")(lambda x, y: x @ y)


@aten("outer", "ger")
def _outer(x: Value, y: Value) -> Value:
    return multiply(x.unsqueeze([1]), y.unsqueeze([0]))


def _scaled(x: Value, factor: Number) -> Value:
    return x if factor == 1 else multiply(x, valued(factor, x.dtype))


@aten("addmm", "baddbmm", "addmv", multiplied=Value.__matmul__)
@aten("addbmm", multiplied=lambda x, y: (x @ y).reduce("sum", [0], False))
@aten("addr", multiplied=_outer)
def _added(
    c: Value, x: Value, y: Value, beta: Number = 1, alpha: Number = 1, *,
    multiplied: Callable[[Value, Value], Value],
) -> Value:  # fmt: skip
    found = _scaled(multiplied(x, y), alpha)
    return found if beta == 0 else add(_scaled(c, beta), found)


@aten(*GROUPED)
def _grouped(
    x: Value, weight: Value, offs: Value | None = None, bias: Value | None = None,
    out_dtype: DType | None = None,
) -> Value:  # fmt: skip
    """Each row by the matrix of its group, whose rows end before its offset: the experts of
    `transformers`. Rows after the last group are zeros."""
    rows_by_matrices = x.rank == 2 and weight.rank == 3 and weight.constant is not None
    if offs is None or bias is not None or not rows_by_matrices:
        raise unsupported("a grouped product other than of rows by constant matrices")
    groups, _, n = weight.shape
    group = search(offs, iota(x.shape[0]), right=True).at_most(groups - 1)
    found = (x.unsqueeze([1]) @ gather(weight, group)).reshape((x.shape[0], n))
    grouped = iota(x.shape[0]) < offs.cast(INT64).slice(0, groups - 1, 1)
    return where(grouped.unsqueeze([1]), found, 0).cast(out_dtype or x.dtype)


@aten("einsum")
def _einsum(equation: str, tensors: Sequence[Value]) -> Value:
    if any(x.dtype.kind != "float" for x in tensors):
        raise unsupported("an einsum of integers, which torch sums in one of two dtypes")
    return einsum(equation, tensors)


@aten("bilinear")
def _bilinear(input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Value:
    outer = input1.shape[:-1]
    rows = input1.reshape((product(outer), input1.shape[-1]))
    columns = input2.reshape((product(outer), input2.shape[-1]))
    count, first, second = weight.shape
    by_first = rows @ weight.transpose((1, 0, 2)).reshape((first, count * second))
    parts = by_first.reshape((product(outer), count, second)) * columns.unsqueeze([1])
    found = parts.reduce("sum", [2], False).reshape((*outer, count))
    return found if bias is None else found + bias


@aten("cdist", "_cdist_forward")
def _distances(x1: Value, x2: Value, p: float = 2) -> Value:
    """The distance of each row of x1 to each row of x2, from their differences."""
    apart = abs(x1.unsqueeze([x1.rank - 1]) - x2.unsqueeze([x2.rank - 2]))
    last = [apart.rank - 1]
    if p == 2:
        return sqrt((apart * apart).reduce("sum", last, False))
    if p == 1:
        return apart.reduce("sum", last, False)
    if p == float("inf"):
        return apart.reduce("maximum", last, False).at_least(0)
    if p == 0:
        return where(equal(apart, 0), apart, 1).reduce("sum", last, False)
    if p < 0:
        raise unsupported(f"distances of the norm {p}")
    return (apart ** apart.like(p)).reduce("sum", last, False) ** (1 / p)


# Attention.


@aten("scaled_dot_product_attention")
def attention(
    query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Number | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """The attention of queries (..., length, size). A causal query sees the keys up to its own
    position, counted from the first; one that sees no key has zeros."""
    if dropout_p:
        raise unsupported("attention with dropout; call module.eval()")
    if min(query.rank, key.rank, value.rank) < 2:
        raise malformed(f"attention of {query.type}, {key.type}, {value.type}")
    if key.rank != query.rank or value.rank != query.rank:
        raise unsupported(f"attention of {query.type}, {key.type}, {value.type}")
    given = [query, key, value]
    if not enable_gqa:
        shapes = [x.shape[:-2] for x in given]
        batch = broadcast_shape(shapes, require, "batches of queries, keys and values")
        given = [x.broadcast((*batch, *x.shape[-2:])) for x in given]
    outer = given[0].shape[:-2]
    q, k, v = (_of_four_axes(x) for x in given)
    mask = attn_mask
    if mask is not None:
        if mask.dtype.kind == "float":
            mask = mask.cast(query.dtype)
        mask = _mask_of_four_axes(mask, outer, (query.shape[-2], key.shape[-2]))
    factor = default_scale(q) if scale is None else valued(scale, q.dtype)
    found = fused(q, k, v, factor, mask, 0 if is_causal else None, 0.0)
    return found.reshape((*outer, *found.shape[-2:]))


def _of_four_axes(x: Value) -> Value:
    """x with one axis of batches and one of heads."""
    if x.rank < 4:
        return x.unsqueeze(range(4 - x.rank))
    return x.reshape((product(x.shape[:-3]), *x.shape[-3:]))


def _mask_of_four_axes(mask: Value, outer: Shape, scores: Shape) -> Value:
    if mask.rank <= 4 and len(outer) <= 2:
        return mask.unsqueeze(range(2 - mask.rank))
    return _of_four_axes(mask.broadcast((*outer, *scores)))


@aten("_scaled_dot_product_attention_math")
@aten("_scaled_dot_product_flash_attention_for_cpu", enable_gqa=None)
def _attention_alone(
    query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, dropout_mask: Value | None = None, scale: Number | None = None,
    enable_gqa: bool | None = False,
) -> Sequence[Value | None]:  # fmt: skip
    """The attention, without what a gradient needs of it."""
    gqa = query.shape[1] != key.shape[1] if enable_gqa is None else enable_gqa
    return [attention(query, key, value, attn_mask, dropout_p, is_causal, scale, gqa), None]
