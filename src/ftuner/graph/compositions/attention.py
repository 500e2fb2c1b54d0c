"""Attention as one node, whose query heads may share heads of keys and values; rotary
embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, product, quotient
from ftuner.graph.algebra import apply, concat, counted, gather, scalar, sqrt, where
from ftuner.graph.checks import expect_shape, malformed, require
from ftuner.graph.ir import Value


def split_heads(x: Value, heads: int, check: bool = True) -> Value:
    """[batch, sequence, heads times head size] as [batch, heads, sequence, head size]. `check`:
    whether the heads are required to be all of x."""
    size = quotient(x.shape[2], heads)
    if check:
        require(heads * size, x.shape[2], f"{heads} heads of {x.type}")
    return x.reshape((*x.shape[:2], heads, size)).transpose((0, 2, 1, 3))


def merged_heads(x: Value) -> Value:
    """The inverse of `split_heads`: [batch, sequence, heads times head size]."""
    turned = x.transpose((0, 2, 1, 3))
    return turned.reshape((*turned.shape[:2], product(turned.shape[2:])))


def default_scale(query: Value) -> Value:
    """1 / sqrt(head size) for queries with the axes of `split_heads`."""
    size = query.shape[3]
    if isinstance(size, int):
        return scalar(1 / math.sqrt(size) if size else 1.0, query.dtype)
    return 1 / sqrt(counted([size], query.dtype))


def after_past(
    key: Value, value: Value, past_key: Value | None, past_value: Value | None
) -> tuple[Value, Value, Dim]:
    """Keys and values after those of the past, if there are any, and the number of these."""
    if (past_key is None) != (past_value is None):
        raise malformed("past_key and past_value are given together, or neither")
    if past_key is None or past_value is None:
        return key, value, 0
    if past_key.rank != 4 or past_value.rank != 4:
        raise malformed(f"past keys {past_key.type} and values {past_value.type}")
    return concat([past_key, key], 2), concat([past_value, value], 2), past_key.shape[2]


def one_mask(allowed: Value | None, bias: Value | None) -> Value | None:
    """Both masks as one."""
    if allowed is None or bias is None:
        return allowed if bias is None else bias
    return where(allowed, bias, -math.inf)


def fused(
    query: Value, key: Value, value: Value, scale: Value, mask: Value | None,
    causal: Dim | None, softcap: float, sinks: Value | None = None,
) -> Value:  # fmt: skip
    """Attention as one node, in which query heads share key and value heads. `sinks` are those of
    `AttentionSoftmax`, one of each head."""
    factor = 1.0
    if scale.constant is None:
        query = query * scale
    else:
        factor = float(scale.constant)
    shape = query.shape
    times = quotient(shape[1], key.shape[1])
    masks = [] if mask is None else [mask]
    if sinks is not None:
        masks.append(sinks.reshape((1, shape[1], 1, 1)))
    if times != 1:
        groups = (key.shape[1], times)
        query = query.reshape((shape[0], *groups, *shape[2:]))
        key, value = key.unsqueeze([2]), value.unsqueeze([2])
        masks = [_grouped(m, shape[1], groups) for m in masks]
    result = apply(
        "attention", query, key.swapped(), value, *masks, scale=factor, causal=causal,
        safe=mask is not None, softcap=softcap, sinks=sinks is not None,
    )  # fmt: skip
    return result.reshape((*shape[:3], value.shape[-1]))


def _grouped(mask: Value, heads: Dim, groups: Sequence[Dim]) -> Value:
    """A mask whose axis of heads is split in two: groups, and heads of a group."""
    if mask.rank < 3:
        return mask
    *batch, own, rows, keys = mask.shape
    if own == 1:
        return mask.reshape((*batch, 1, 1, rows, keys))
    mask = mask.broadcast((*batch, heads, rows, keys))
    return mask.reshape((*batch, *groups, rows, keys))


def rotated(
    heads: Value, tables: Sequence[Value], positions: Value | None, sequence_axis: int,
    width: Dim, interleaved: bool,
) -> Value:  # fmt: skip
    """Rotate pairs of elements along the last of four axes, of the first `width` elements, or of
    all if it is 0. `tables`: cosines and sines, of all positions if `positions` (batch, sequence)
    are given, of each position of the sequences otherwise; a batch of 1 has those of all
    sequences, as torch's exporter writes them."""
    size = heads.shape[3]
    width = width or size
    half = quotient(width, 2)
    turned, rest = heads.pieces(3, (width, size - width))
    outer = heads.shape[:3]
    pairs = turned.reshape((*outer, half, 2) if interleaved else (*outer, 2, half))
    if positions is not None:
        cosines, sines = tables
        what = f"cosines {cosines.type} and sines {sines.type}"
        if sines.rank != 2:
            raise malformed(f"{what}; expected two axes each")
        expect_shape(cosines, sines.shape, what)
        tables = [gather(t, positions) for t in tables]
    # Both are [batch, sequence, pairs]: shared by all heads and by both elements of a pair.
    shared = (3 - sequence_axis, 4 if interleaved else 3)
    batch, sequence = outer[0], outer[sequence_axis]
    for t in tables:
        if t.rank != 3:
            raise malformed(f"cosines or sines {t.type} for {heads.type}")
        first = 1 if t.shape[0] == 1 else batch
        for have, wanted in zip(t.shape, (first, sequence, half), strict=True):
            what = f"cosines or sines {t.type} for {half} pairs of each position of {heads.type}"
            require(have, wanted, what)
    tables = [t.unsqueeze(shared) for t in tables]
    found = apply("rotary", pairs, *tables, axis=4 if interleaved else 3)
    if width == size:
        return found.reshape(heads.shape)
    return concat([found.reshape(turned.shape), rest], 3).reshape(heads.shape)
