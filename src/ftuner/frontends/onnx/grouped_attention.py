"""Attention with a cache of keys and values, and rotary embeddings, as onnxruntime's builders of
decoders write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, maximum, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.onnx.attention import (
    default_scale,
    fused,
    merged_heads,
    one_mask,
    rotated,
)
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.selecting import written_from
from ftuner.graph.algebra import (
    apply,
    counted,
    iota,
    malformed,
    origin,
    require,
    scalar,
    unsupported,
    where,
    zero_padded,
)
from ftuner.graph.ir import Value


def _positions(context: Context, given: Value, batch: Dim, sequence: Dim) -> Value:
    """[batch, sequence] positions: as they are given, or counted from the one that is."""
    if given.dtype.kind != "int" or given.rank not in (1, 2):
        raise malformed(f"positions {given.type}; expected integers")
    if given.rank == 2:
        for have, wanted in zip(given.shape, (batch, sequence), strict=True):
            require(have, wanted, f"positions {given.type}")
        return given
    require(given.shape[0], 1, f"positions {given.type}")
    first = given.cast(INT64).unsqueeze([0])
    counted = first + iota(sequence, 1, 2)
    return counted.broadcast((batch, sequence))


def _rotary_embedding(context: Context, node: NodeView) -> Sequence[Value]:
    x, cosines, sines = node.input(0), node.input(2), node.input(3)
    if node.flag("is_packed_batching"):
        raise unsupported("attribute is_packed_batching")
    if node.number("scale", 1.0) != 1.0:
        raise unsupported(f"attribute scale is {node.number('scale')}")
    if x.rank not in (3, 4) or cosines.rank != 2:
        raise malformed(f"rotary embedding of {x.type} by cosines {cosines.type}")
    width, heads = node.integer("rotary_embedding_dim", 0), x
    if x.rank == 3:
        count: Dim = node.integer("num_heads", 0)
        if width and not count:
            raise malformed("rotary_embedding_dim without num_heads")
        count = count or quotient(x.shape[2], 2 * cosines.shape[1])
        size = quotient(x.shape[2], count)
        require(size * count, x.shape[2], f"{count} heads of {x.type}")
        heads = x.reshape((*x.shape[:2], count, size))
    axis = 1 if x.rank == 3 else 2
    positions = _positions(context, node.input(1), heads.shape[0], heads.shape[axis])
    turned = rotated(
        context, heads, (cosines, sines), positions, axis, width, node.flag("interleaved")
    )
    return [turned.reshape(x.shape)]


def _split(context: Context, x: Value, heads: int) -> Value:
    """[batch, sequence, heads times head size] as [batch, heads, sequence, head size]."""
    size = quotient(x.shape[2], heads)
    require(size * heads, x.shape[2], f"{heads} heads of {x.type}")
    return x.reshape((*x.shape[:2], heads, size)).transpose((0, 2, 1, 3))


def _expect_plain(context: Context, node: NodeView) -> None:
    for name in ("qk_output", "kv_cache_bit_width"):
        if node.has(name) and node.integer(name) > 0:
            raise unsupported(f"attribute {name} is {node.integer(name)}")
    if node.gives(3):
        raise unsupported("output output_qk")


def _grouped_query(context: Context, node: NodeView) -> Sequence[Value]:
    """Attention of grouped heads, causal, by a cache that has room for the longest sequence. Of
    each sequence, `seqlens_k` is the number of keys less one; those of this call are the last."""
    _expect_plain(context, node)
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise malformed(f"{heads} heads of queries for {groups} of keys")
    if not 0 <= node.number("softcap", 0.0) < math.inf:
        softcap = node.number("softcap")
        raise malformed(f"softcap is {softcap}; expected a finite number, zero or more")
    query, key, value = _projections(context, node, heads, groups)
    batch, sequence = query.shape[0], query.shape[2]
    last = node.input(5)
    if last.rank not in (1, 2) or last.dtype.kind != "int":
        raise malformed(f"seqlens_k is {last.type}; expected one integer a sequence")
    total = context.dim_of(node.input(6), "total_sequence_length")
    last = _within(context, last.cast(INT64).reshape((batch,)), total)
    ahead = last - counted([sequence], INT64) + 1
    # Sequences of the first call may be padded: they begin at zero.
    before = ahead.at_least(0)
    past_key, past_value = node.optional(3), node.optional(4)
    if (past_key is None) != (past_value is None):
        raise malformed("past_key and past_value are given together, or neither")
    first = before.unsqueeze([1])
    place = first + iota(sequence, 1, 2)
    if node.flag("do_rotary"):
        tables = node.input(7), node.input(8)
        if any(t.rank != 2 for t in tables):
            raise malformed(f"cosines {tables[0].type} and sines {tables[1].type}")
        given = node.optional(9)
        at = place if given is None else _positions(context, given, batch, sequence)
        width, interleaved = 2 * tables[0].shape[1], node.flag("rotary_interleaved")
        query, key = (rotated(context, x, tables, at, 2, width, interleaved) for x in (query, key))
    kept = [
        _cached(context, old, new, before, total)
        for old, new in ((past_key, key), (past_value, value))
    ]
    # Rows beyond them are room for later tokens.
    keys = [x.slice(2, 0, total) for x in kept]
    result = _attended(context, node, query, keys, place)
    return [merged_heads(context, result), *kept]


def _within(context: Context, last: Value, extent: Dim) -> Value:
    """The numbers of last keys; one beyond all keys is an index out of range, as is a negative
    one."""
    end = counted([extent], INT64)
    below = last < scalar(0, INT64)
    place = where(below, end, last)
    return apply("gather", iota(extent), place, axis=0, node=f"{origin()}: seqlens_k")


def _projections(
    context: Context, node: NodeView, heads: int, groups: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values with the axes of `_split`: given apart, or in one tensor."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
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
    return (
        _split(context, query, heads),
        _split(context, key, groups),
        _split(context, value, groups),
    )


def _cached(context: Context, past: Value | None, new: Value, before: Value, total: Dim) -> Value:
    """The past with the new keys or values of each sequence behind its own."""
    shape = new.shape
    if past is None:
        past = scalar(0, new.dtype).broadcast((*shape[:2], 0, shape[3]))
    elif past.rank != 4:
        raise malformed(f"past keys or values {past.type}; expected four axes")
    room = zero_padded(past, (0,) * 4, (0, 0, maximum(total - past.shape[2], 0), 0))
    return written_from(context, room, new, before, 2)


def _attended(
    context: Context, node: NodeView, query: Value, keys: Sequence[Value], place: Value
) -> Value:
    key, value = keys
    total = key.shape[2]
    number = iota(total, 3, 4)
    position = place.unsqueeze((1, 3))
    allowed = number <= position
    window = node.integer("local_window_size", -1)
    if window > 0:
        first = position + -window
        allowed = allowed & (first < number)
    bias = node.optional(10)
    if bias is not None:
        if bias.rank != 4:
            raise malformed(f"attention_bias is {bias.type}; expected four axes")
        require(bias.shape[3], total, f"attention_bias {bias.type}")
    factor = node.number("scale", 0.0)
    scale = scalar(factor, query.dtype) if factor else default_scale(context, query)
    mask, softcap = one_mask(context, allowed, bias), node.number("softcap", 0.0)
    sinks = _sinks(context, node, query)
    return fused(context, query, key, value, scale, mask, None, softcap, sinks)


def _sinks(context: Context, node: NodeView, query: Value) -> Value | None:
    """A score of each head without a key. A smooth softmax has one more power in its sum, of 0."""
    given, heads = node.optional(11), query.shape[1]
    if given is not None:
        if given.rank != 1:
            raise malformed(f"head_sink is {given.type}; expected one number a head")
        require(given.shape[0], heads, f"head_sink {given.type}")
        return given
    if node.integer("smooth_softmax", 0) <= 0:
        return None
    return scalar(0, query.dtype).broadcast((heads,))


GROUPED_ATTENTION: Table = {
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    (MICROSOFT, "RotaryEmbedding"): _rotary_embedding,
}
