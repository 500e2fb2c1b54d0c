"""Attention as onnxruntime's optimisers write it: heads are merged into one axis, and an addend
hides masked keys, not minus infinity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, maximum, quotient, remainder
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.quantised_products import integer_product_as_float
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, concat, equal, iota, scalar, where, zero_padded
from ftuner.graph.checks import expect_shape, malformed, require, unsupported
from ftuner.graph.compositions.attention import after_past, default_scale, merged_heads, split_heads
from ftuner.graph.compositions.windows import with_bias
from ftuner.graph.ir import Value
from ftuner.graph.operator import expect_within

_MASKED = -10000.0
"""Default addend of scores of masked keys."""


def _padding(context: Context, node: NodeView, mask: Value, query: Value, keys: Dim) -> Value:
    """The addend of a mask of integers, with the axes of scores. A mask of one axis has the number
    of keys of each sequence, or all these numbers and then the first key of each; other masks are
    positive where a key counts."""
    if mask.dtype.kind not in ("int", "uint"):
        raise malformed(f"mask {mask.type}; expected integers")
    batch, rows = query.shape[0], query.shape[2]
    what = f"mask {mask.type} for {keys} keys of queries {query.type}"
    counted = scalar(0, query.dtype)
    hidden = scalar(node.number("mask_filter_value", _MASKED), query.dtype)
    if mask.rank == 1:
        key = iota(keys, 3, 4)
        count = mask.shape[0]
        require(remainder(count, maximum(batch, 1)), 0, what)
        expect_within(context.builder.require, batch, count, what)
        expect_within(context.builder.require, count, 2 * batch, what)
        # Zeros after the numbers are the first keys if none are given.
        whole = zero_padded(mask.cast(INT64), (0,), (batch,))
        ends, begins = (
            whole.slice(0, first, batch).reshape((batch, 1, 1, 1)) for first in (0, batch)
        )
        return where((key < ends) & (begins <= key), counted, hidden)
    if mask.rank not in (2, 3):
        raise unsupported(f"{what}; supported are masks of one to three axes")
    wanted = (batch, keys) if mask.rank == 2 else (batch, rows, keys)
    expect_shape(mask, wanted, what)
    visible = mask > 0
    axes = (1, 2) if mask.rank == 2 else (1,)
    return where(visible.unsqueeze(axes), counted, hidden)


def _causal(query: Value, keys: Dim, past: Dim, bias: Value | None) -> Value:
    """The addend of causal attention where the queries are not the last keys: onnxruntime lets the
    last query see all keys."""
    rows = query.shape[2]
    position = iota(rows, 2, 4)
    allowed = equal(position, rows - 1) | (iota(keys, 3, 4) <= position + past)
    addend = scalar(0, query.dtype) if bias is None else bias
    return where(allowed, addend, -math.inf)


def _attended(
    context: Context, node: NodeView, query: Value, key: Value, value: Value,
    mask: Value | None, bias: Value | None, past: Dim,
) -> Value:  # fmt: skip
    """Attention of split heads, merged again. `mask`: integers; see `_padding`. `bias`: an addend
    that broadcasts to [batch, heads, queries, keys]. `past`: keys before those of the queries."""
    for x in (key, value):
        what = f"attention of {query.type}, {key.type}, {value.type}"
        require(query.shape[0], x.shape[0], what)
    keys = key.shape[2]
    if bias is not None:
        if bias.rank != 4:
            raise malformed(f"attention_bias is {bias.type}; expected four axes")
        wanted = (*query.shape[:3], keys)
        for axis, (have, extent) in enumerate(zip(bias.shape, wanted, strict=True)):
            what = f"attention_bias {bias.type} for scores {list(wanted)}"
            require(have, extent, what, or_one=axis < 2)
    if mask is not None:
        padding = _padding(context, node, mask, query, keys)
        bias = padding if bias is None else padding + bias
    factor = node.number("scale", 0.0)
    if not factor:
        scale = default_scale(query)
        if scale.constant is not None:
            factor = float(scale.constant)
        else:
            factor, query = 1.0, query * scale
    causal = past if node.flag("unidirectional") else None
    if causal is not None and past + query.shape[2] != keys:
        causal, bias = None, _causal(query, keys, past, bias)
    result = apply(
        "attention", query, key.swapped(), value, *([] if bias is None else [bias]), scale=factor,
        causal=causal, safe=bias is not None,
    )  # fmt: skip
    return merged_heads(result)


def _of_projection(
    context: Context, node: NodeView, qkv: Value, sizes: Sequence[Dim], mask: Value | None,
    past: Value | None, bias: Value | None,
) -> Sequence[Value]:  # fmt: skip
    """Attention of queries, keys and values that are one product's columns."""
    for name in ("past_present_share_buffer", "do_rotary"):
        if node.flag(name):
            raise unsupported(f"attribute {name} is 1, which onnxruntime's CPU lacks too")
    heads = node.positive("num_heads")
    query, key, value = (split_heads(x, heads) for x in qkv.pieces(2, sizes))
    before: Dim = 0
    if past is not None:
        if past.rank != 5:
            raise malformed(f"past is {past.type}; expected five axes")
        require(past.shape[0], 2, f"past is {past.type}")
        old_key, old_value = (part.squeeze([0]) for part in past.pieces(0, (1, 1)))
        before = past.shape[3]
        key, value = concat([old_key, key], 2), concat([old_value, value], 2)
    result = _attended(context, node, query, key, value, mask, bias, before)
    if not node.gives(1):
        return [result]
    return [result, concat([x.unsqueeze([0]) for x in (key, value)], 0)]


@onnx("Attention", domain=MICROSOFT)
def _attention(
    context: Context, node: NodeView, x: Value, weight: Value, bias: Value | None,
    mask: Value | None, past: Value | None, addend: Value | None,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
) -> Sequence[Value]:  # fmt: skip
    if x.rank != 3 or weight.rank != 2:
        raise malformed(f"attention of {x.type} by weights {weight.type}")
    columns = weight.shape[1]
    sizes: Sequence[Dim] = [quotient(columns, 3)] * 3
    sizes = sizes if qkv_hidden_sizes is None else qkv_hidden_sizes
    if len(sizes) != 3:
        raise malformed(f"qkv_hidden_sizes is {list(sizes)}; expected three numbers")
    whole = sizes[0] + sizes[1] + sizes[2]
    require(whole, columns, f"queries, keys and values of {weight.type}")
    qkv = with_bias(x @ weight, bias)
    return _of_projection(context, node, qkv, sizes, mask, past, addend)


@onnx("QAttention", domain=MICROSOFT)
def _qattention(
    context: Context, node: NodeView, x: Value, weight: Value, bias: Value, x_scale: Value,
    scale: Value, mask: Value | None, x_zero: Value | None, zero: Value | None,
    past: Value | None,
) -> Sequence[Value]:  # fmt: skip
    """Attention of a quantised input and weight."""
    qkv = integer_product_as_float(x, weight, x_scale, scale, x_zero, zero, None)
    if qkv.rank != 3:
        raise malformed(f"attention of {x.type}")
    qkv = with_bias(qkv, bias)
    return _of_projection(context, node, qkv, [quotient(qkv.shape[2], 3)] * 3, mask, past, None)


@onnx("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(context: Context, node: NodeView) -> Sequence[Value]:
    heads = node.positive("num_heads")
    query, key, value, bias, padding, addend, old_key, old_value = (
        node.optional(i) for i in range(8)
    )
    for number, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if node.optional(number) is not None:
            raise unsupported(f"input {name}, of a cache that is shared with the output")
    if node.gives(3):
        raise unsupported("output qk")
    if query is None or key is None or value is None:
        raise unsupported("packed queries, keys and values")
    if query.rank != 3 or key.rank != value.rank or key.rank not in (3, 4):
        raise unsupported(f"attention of {query.type}, {key.type}, {value.type}")
    parts = [query, key, value]
    if bias is not None:
        if bias.rank != 1 or key.rank != 3:
            raise unsupported(f"bias {bias.type} of keys {key.type}")
        sizes = [x.shape[2] for x in parts]
        what = f"bias {bias.type} of {query.type}, {key.type}, {value.type}"
        require(bias.shape[0], sizes[0] + sizes[1] + sizes[2], what)
        pieces = bias.pieces(0, sizes)
        parts = [x + b for x, b in zip(parts, pieces, strict=True)]
    query, key, value = (x if x.rank == 4 else split_heads(x, heads) for x in parts)
    key, value, before = after_past(key, value, old_key, old_value)
    result = _attended(context, node, query, key, value, padding, addend, before)
    return [result, key, value]
