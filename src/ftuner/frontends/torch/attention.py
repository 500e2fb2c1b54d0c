"""Attention."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Shape, product
from ftuner.frontends.torch.promotion import Number, valued
from ftuner.frontends.torch.registry import aten
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.compositions.attention import default_scale, fused
from ftuner.graph.ir import Value
from ftuner.graph.ops.pointwise import broadcast_shape


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
