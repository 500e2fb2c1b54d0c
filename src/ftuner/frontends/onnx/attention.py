"""Attention, as one node or composed of products, masks and softmax. Rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, minimum, quotient
from ftuner.core.dtype import BOOL, FLOAT32, HALF_DTYPES, INT64, DType
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, iota, scalar, tanh, where
from ftuner.graph.checks import malformed, require
from ftuner.graph.compositions.attention import (
    after_past,
    default_scale,
    fused,
    merged_heads,
    one_mask,
    rotated,
    split_heads,
)
from ftuner.graph.ir import Value

SCORE_MODES = 4
"""Number of modes of the scores output: raw, after the soft cap, masked, after the softmax."""


def _heads(node: NodeView, x: Value, count: str) -> Value:
    """A tensor as [batch, heads, sequence, head size]."""
    if x.rank == 4:
        if node.has(count):
            heads = node.integer(count)
            require(x.shape[1], heads, f"{count} is {heads} for {x.type}")
        return x
    if x.rank != 3:
        raise malformed(f"attention of {x.type}; expected three axes or four")
    return split_heads(x, node.positive(count), check=False)


def _repeated(x: Value, heads: Dim) -> Value:
    """Keys or values with each head repeated for the query heads that share it."""
    times = quotient(heads, x.shape[1])
    if times == 1:
        return x
    require(x.shape[1] * times, heads, "heads of keys for heads of queries")
    batch, own, *matrix = x.shape
    wide = x.unsqueeze([2]).broadcast((batch, own, times, *matrix))
    return wide.reshape((batch, own * times, *matrix))


def _scale(node: NodeView, query: Value) -> Value:
    """The scale of scores, by default 1 / sqrt(head size)."""
    if node.has("scale"):
        scale = node.number("scale")
        # Queries and keys are each multiplied by its square root, as ONNX specifies.
        if not 0 <= scale < math.inf:
            raise malformed(f"scale is {scale}; expected a finite number, zero or more")
        return scalar(scale, query.dtype)
    return default_scale(query)


def _both(x: Value | None, y: Value) -> Value:
    return y if x is None else x & y


def _positions(
    node: NodeView, query: Value, keys: Dim, past: Dim, valid: Value | None, causal: bool
) -> Value | None:
    """Which keys a query may see by their positions: causal, within a window, not padding.

    None if all of them may be seen.
    """
    key = iota(keys, 3, 4)
    position = iota(query.shape[2], 2, 4)
    if valid is not None:
        valid = valid.cast(INT64).reshape((query.shape[0], 1, 1, 1))
        position = position + (valid - query.shape[2])
    elif past != 0:
        position = position + past
    allowed = key <= position if causal else None
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    if left >= 0:
        allowed = _both(allowed, position + -left <= key)
    if right >= 0:
        allowed = _both(allowed, key <= position + right)
    if valid is not None:
        allowed = _both(allowed, key < valid)
    return allowed


def _padded_mask(mask: Value, keys: Dim) -> Value:
    """The mask extended to all keys; keys beyond it are not seen."""
    if mask.rank == 0:
        return mask.unsqueeze([0])
    have = mask.shape[-1]
    if have in (keys, 1):
        return mask
    after = keys - have
    if not isinstance(after, int):
        # The mask has as many keys. A longer one is refused.
        require(minimum(have, keys), have, "keys of the mask")
    fill = scalar(0, BOOL) if mask.dtype == BOOL else scalar(-math.inf, mask.dtype)
    before = (0,) * mask.rank
    return apply("pad", mask, fill, before=before, after=(*before[1:], after), mode="constant")


def _weights(
    node: NodeView, scores: Value, allowed: Value | None, bias: Value | None, precision: DType
) -> tuple[Value, Value]:
    """The masked scores, and their softmax: zero for a row that sees no key."""
    dtype = scores.dtype
    hidden, zero = scalar(-math.inf, dtype), scalar(0, dtype)
    masked = scores if bias is None else scores + bias
    if allowed is not None:
        masked = where(allowed, masked, hidden)
    weights = apply("softmax", masked.cast(precision), axis=3, log=False).cast(dtype)
    given = [node.optional(3), node.optional(6)]
    if all(v is None for v in given) and node.integer("left_window_size", -1) < 0:
        # Each query sees the first key.
        return masked, weights
    if allowed is not None:
        visible = where(allowed, zero if bias is None else bias, hidden)
    else:
        assert bias is not None
        visible = bias
    return masked, where(hidden < visible.reduce("maximum", [visible.rank - 1]), weights, zero)


def written_out(
    node: NodeView, query: Value, key: Value, value: Value, scale: Value, allowed: Value | None,
    bias: Value | None, precision: DType,
) -> tuple[Value, Sequence[Value]]:  # fmt: skip
    """Attention composed of products and a softmax: the result, and the scores in each mode."""
    heads = query.shape[1]
    wide_key, wide_value = _repeated(key, heads), _repeated(value, heads)
    raw = query @ wide_key.swapped() * scale
    softcap = node.number("softcap", 0.0)
    scores = tanh(raw * (1 / softcap)) * softcap if softcap else raw
    masked, weights = _weights(node, scores, allowed, bias, precision)
    return weights @ wide_value, (raw, scores, masked, weights)


def _is_fused(node: NodeView, operands: Sequence[Value], precision: DType) -> bool:
    """Whether the attention operator can compute the node: it needs no scores."""
    dtype = operands[0].dtype
    return (
        dtype.kind == "float"
        and all(v.dtype in (dtype, BOOL) for v in operands)
        and not node.gives(3)
        # The kernel computes a softmax of half precision in float32.
        and precision in (dtype, FLOAT32 if dtype.name in HALF_DTYPES else dtype)
    )


@onnx("Attention")
def _attention(
    node: NodeView, q: Value, k: Value, v: Value, mask: Value | None, past_key: Value | None,
    past_value: Value | None, valid: Value | None, qk_matmul_output_mode: int = 0,
    is_causal: bool = False, softcap: float = 0.0, softmax_precision: DType | None = None,
) -> Sequence[Value]:  # fmt: skip
    flat, precision = q.rank == 3, softmax_precision or q.dtype
    query = _heads(node, q, "q_num_heads")
    key = _heads(node, k, "kv_num_heads")
    value = _heads(node, v, "kv_num_heads")
    for x in (key, value):
        require(query.shape[0], x.shape[0], "batches of queries, keys and values")
    key, value, past = after_past(key, value, past_key, past_value)
    if not 0 <= softcap < math.inf:
        raise malformed(f"softcap is {softcap}; expected a finite number, zero or more")
    if not 0 <= qk_matmul_output_mode < SCORE_MODES:
        raise malformed(f"qk_matmul_output_mode is {qk_matmul_output_mode}")
    keys = key.shape[2]
    operands = [query, key, value, *([] if mask is None else [mask])]
    scale = _scale(node, query)
    is_fused = _is_fused(node, operands, precision)
    limited = is_fused and is_causal and valid is None
    allowed = _positions(node, query, keys, past, valid, is_causal and not limited)
    bias: Value | None = None
    if mask is not None:
        mask = _padded_mask(mask, keys)
        if mask.dtype == BOOL:
            allowed = _both(allowed, mask)
        else:
            bias = mask
    results = [key, value]
    if is_fused:
        mask = one_mask(allowed, bias)
        limit = past if limited else None
        result = fused(query, key, value, scale, mask, limit, softcap)
    else:
        parts = query, key, value, scale, allowed, bias, precision
        result, scores = written_out(node, *parts)
        results.append(scores[qk_matmul_output_mode])
    return [merged_heads(result) if flat else result, *results]


@onnx("RotaryEmbedding")
def _rotary_embedding(
    node: NodeView, x: Value, cosines: Value, sines: Value, positions: Value | None,
    rotary_embedding_dim: int = 0, interleaved: bool = False,
) -> Value:  # fmt: skip
    """Rotate pairs of elements of each head by an angle that depends on the position."""
    if x.rank not in (3, 4):
        raise malformed(f"rotary embedding of {x.type}; expected three axes or four")
    heads = x
    if x.rank == 3:
        count = node.positive("num_heads")
        heads = x.reshape((*x.shape[:2], count, quotient(x.shape[2], count)))
    turned = rotated(
        heads, (cosines, sines), positions, 2 if x.rank == 4 else 1,
        rotary_embedding_dim, interleaved,
    )  # fmt: skip
    return turned.reshape(x.shape)
