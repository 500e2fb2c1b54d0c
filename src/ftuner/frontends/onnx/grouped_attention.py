"""Attention with a cache of keys and values, and rotary embeddings, as onnxruntime's builders of
decoders write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, maximum, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.context import Context
from ftuner.frontends.onnx.indexing import written_from
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Gives, Positive, onnx
from ftuner.graph.algebra import apply, counted, iota, scalar, where, zero_padded
from ftuner.graph.checks import expect_shape, malformed, origin, require, unsupported
from ftuner.graph.compositions.attention import (
    default_scale,
    fused,
    merged_heads,
    one_mask,
    rotated,
    split_heads,
)
from ftuner.graph.ir import Value


def _positions(given: Value, batch: Dim, sequence: Dim) -> Value:
    """[batch, sequence] positions: as they are given, or counted from the one that is."""
    if given.dtype.kind != "int" or given.rank not in (1, 2):
        raise malformed(f"positions {given.type}; expected integers")
    if given.rank == 2:
        expect_shape(given, (batch, sequence), f"positions {given.type}")
        return given
    require(given.shape[0], 1, f"positions {given.type}")
    counted = given.cast(INT64).unsqueeze([0]) + iota(sequence, 1, 2)
    return counted.broadcast((batch, sequence))


@onnx("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(
    x: Value, given: Value, cosines: Value, sines: Value,
    is_packed_batching: bool = False, scale: float = 1.0, rotary_embedding_dim: int = 0,
    num_heads: int = 0, interleaved: bool = False,
) -> Value:  # fmt: skip
    if is_packed_batching:
        raise unsupported("attribute is_packed_batching")
    if scale != 1.0:
        raise unsupported(f"attribute scale is {scale}")
    if x.rank not in (3, 4) or cosines.rank != 2:
        raise malformed(f"rotary embedding of {x.type} by cosines {cosines.type}")
    heads = x
    if x.rank == 3:
        count: Dim = num_heads
        if rotary_embedding_dim and not count:
            raise malformed("rotary_embedding_dim without num_heads")
        count = count or quotient(x.shape[2], 2 * cosines.shape[1])
        size = quotient(x.shape[2], count)
        require(size * count, x.shape[2], f"{count} heads of {x.type}")
        heads = x.reshape((*x.shape[:2], count, size))
    axis = 1 if x.rank == 3 else 2
    positions = _positions(given, heads.shape[0], heads.shape[axis])
    turned = rotated(heads, (cosines, sines), positions, axis, rotary_embedding_dim, interleaved)
    return turned.reshape(x.shape)


@onnx("GroupQueryAttention", domain=MICROSOFT)
def _grouped_query(
    context: Context, gives: Gives, q: Value, k: Value | None, v: Value | None,
    past_key: Value | None, past_value: Value | None, last: Value, length: Value,
    cosines: Value | None, sines: Value | None, given: Value | None, bias: Value | None,
    sinks: Value | None, k_scale: Value | None, v_scale: Value | None, num_heads: Positive,
    kv_num_heads: Positive, do_rotary: bool = False, softcap: float = 0.0,
    rotary_interleaved: bool = False, scale: float = 0.0, local_window_size: int = -1,
    smooth_softmax: int = 0, qk_output: int = 0, kv_cache_bit_width: int = 0,
    k_quant_type: str = "", v_quant_type: str = "",
) -> Sequence[Value]:  # fmt: skip
    """Attention of grouped heads, causal, by a cache that has room for the longest sequence. Of
    each sequence, `seqlens_k` is the number of keys less one; those of this call are the last."""
    for name, asked in (("qk_output", qk_output), ("kv_cache_bit_width", kv_cache_bit_width)):
        if asked > 0:
            raise unsupported(f"attribute {name} is {asked}")
    if gives(3):
        raise unsupported("output output_qk")
    if num_heads % kv_num_heads:
        raise malformed(f"{num_heads} heads of queries for {kv_num_heads} of keys")
    if not 0 <= softcap < math.inf:
        raise malformed(f"softcap is {softcap}; expected a finite number, zero or more")
    query, key, value = _projections(q, k, v, num_heads, kv_num_heads)
    batch, sequence = query.shape[0], query.shape[2]
    if last.rank not in (1, 2) or last.dtype.kind != "int":
        raise malformed(f"seqlens_k is {last.type}; expected one integer a sequence")
    total = context.dim_of(length, "total_sequence_length")
    last = _within(last.cast(INT64).reshape((batch,)), total)
    ahead = (last - sequence) + 1
    # Sequences of the first call may be padded: they begin at zero.
    before = ahead.at_least(0)
    if (past_key is None) != (past_value is None):
        raise malformed("past_key and past_value are given together, or neither")
    place = before.unsqueeze([1]) + iota(sequence, 1, 2)
    if do_rotary:
        if cosines is None or sines is None:
            raise malformed("cosines or sines are missing")
        tables = cosines, sines
        if any(t.rank != 2 for t in tables):
            raise malformed(f"cosines {cosines.type} and sines {sines.type}")
        at = place if given is None else _positions(given, batch, sequence)
        width, interleaved = 2 * tables[0].shape[1], rotary_interleaved
        query, key = (rotated(x, tables, at, 2, width, interleaved) for x in (query, key))
    kept = [_cached(old, new, before, total) for old, new in ((past_key, key), (past_value, value))]
    # Rows beyond them are room for later tokens.
    key, value = (x.slice(2, 0, total) for x in kept)
    number, position = iota(total, 3, 4), place.unsqueeze((1, 3))
    allowed = number <= position
    if local_window_size > 0:
        allowed = allowed & (position + -local_window_size < number)
    if bias is not None:
        if bias.rank != 4:
            raise malformed(f"attention_bias is {bias.type}; expected four axes")
        require(bias.shape[3], total, f"attention_bias {bias.type}")
    factor = scalar(scale, query.dtype) if scale else default_scale(query)
    if sinks is not None:
        expect_shape(sinks, (num_heads,), f"head_sink {sinks.type}")
    elif smooth_softmax > 0:
        # One more power in the sum, of 0.
        sinks = scalar(0, query.dtype).broadcast((num_heads,))
    result = fused(query, key, value, factor, one_mask(allowed, bias), None, softcap, sinks)
    return [merged_heads(result), *kept]


def _within(last: Value, extent: Dim) -> Value:
    """The numbers of last keys; one beyond all keys is an index out of range, as is a negative
    one."""
    place = where(last < 0, counted([extent], INT64), last)
    return apply("gather", iota(extent), place, axis=0, node=f"{origin()}: seqlens_k")


def _projections(
    query: Value, key: Value | None, value: Value | None, heads: int, groups: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values with the axes of `split_heads`: given apart, or in one tensor."""
    given = [x for x in (query, key, value) if x is not None]
    if any(x.rank != 3 for x in given) or len(given) == 2:
        raise malformed(f"attention of {', '.join(str(x.type) for x in given)}")
    if key is None or value is None:
        size = quotient(query.shape[2], heads + 2 * groups)
        sizes = [heads * size, groups * size, groups * size]
        what = f"heads of {query.type}"
        require(size * (heads + 2 * groups), query.shape[2], what)
        query, key, value = query.pieces(2, sizes)
    for x in (key, value):
        what = f"keys or values {x.type} for queries {query.type}"
        require(x.shape[2] * heads, query.shape[2] * groups, what)
        require(x.shape[0], query.shape[0], what)
        require(x.shape[1], query.shape[1], what)
    return split_heads(query, heads), split_heads(key, groups), split_heads(value, groups)


def _cached(past: Value | None, new: Value, before: Value, total: Dim) -> Value:
    """The past with the new keys or values of each sequence behind its own."""
    shape = new.shape
    if past is None:
        past = scalar(0, new.dtype).broadcast((*shape[:2], 0, shape[3]))
    elif past.rank != 4:
        raise malformed(f"past keys or values {past.type}; expected four axes")
    room = zero_padded(past, (0,) * 4, (0, 0, maximum(total - past.shape[2], 0), 0))
    return written_from(room, new, before, 2)
