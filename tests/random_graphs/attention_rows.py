"""Rows of attention and rotary positions, as nodes and as exporters write them out."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.contraction_rows import matmul
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import (
    BINDINGS,
    ONE,
    Extent,
    Shape,
    derived,
    elements,
    static,
    times,
)
from tests.random_graphs.making import Maker
from tests.random_graphs.table import broadcast, row
from tests.random_graphs.tensors import TAME, Fill, Tensor


def length(maker: Maker) -> Extent:
    """The length of a sequence or a number of requests."""
    return maker.symbol() if maker.draws.chance(0.7) else static(maker.draws.pick((1, 2, 3, 5, 16)))


def spend_attention(maker: Maker, batch: list[Extent], s: Extent, t: Extent, d: Extent) -> None:
    work = elements([*batch, s, t, d])
    maker.spend([2 * n for n in work])


def joined(x: Extent, y: Extent) -> Extent:
    at = [a + b for a, b in zip(x.at, y.at, strict=True)]
    return static(at[0]) if x.static and y.static else derived(f"{x.key}+{y.key}", at)


@row("Attention", 2.0, since=23)
def _attention(maker: Maker) -> None:
    draws = maker.draws
    dtype = "float32" if draws.chance(0.9) else "float64"
    b, s, t = length(maker), length(maker), length(maker)
    groups, times_ = draws.pick((1, 2, 3)), draws.pick((1, 1, 2))
    heads, kv_heads = static(groups * times_), static(groups)
    d = static(draws.pick((8, 4, 16, 1, 5, 32, 64)))
    e = d if draws.chance(0.6) else static(draws.pick((8, 3, 16)))
    if draws.chance(0.4):
        t = s
    flat = draws.chance(0.4)
    past = draws.chance(0.2) and not flat
    earlier = length(maker)
    if any(0 in n.at for n in (b, s, t, earlier)) and not draws.chance(0.1):
        raise DeclinedError("attention of nothing")

    def operand(count: Extent, length: Extent, depth: Extent) -> Tensor:
        if flat:
            return maker.shaped((b, length, times([count, depth])), dtype, TAME)
        return maker.shaped((b, count, length, depth), dtype, TAME)

    q, k, v = operand(heads, s, d), operand(kv_heads, t, d), operand(kv_heads, t, e)
    keys = joined(t, earlier) if past else t
    spend_attention(maker, [b, heads], s, keys, static(d.at[0] + e.at[0]))
    mask = None
    if draws.chance(0.5):
        kind = draws.pick((dtype, "bool"))
        shape = draws.pick(((s, keys), (b, ONE, s, keys), (b, heads, s, keys), (ONE, ONE, s, keys)))
        mask = maker.shaped(shape, kind, 100.0)
    pasts: list[Tensor | None] = [None, None]
    if past:
        pasts = [maker.shaped((b, kv_heads, earlier, depth), dtype, TAME) for depth in (d, e)]
    result_shape = (b, s, times([heads, e])) if flat else (b, heads, s, e)
    results: list[Tensor | None] = [maker.new(result_shape, dtype, -v.size, v.size)]
    if past:
        results += [maker.new((b, kv_heads, keys, depth), dtype, -TAME, TAME) for depth in (d, e)]
    mode = None
    if draws.chance(0.1) and not past:
        results += [None, None, maker.new((b, heads, s, keys), dtype, -TAME, TAME)]
        mode = draws.pick((0, 1, 2, 3))
    attributes = {
        "is_causal": draws.pick((None, 1, 0)), "scale": draws.pick((None, 0.5, 0.125)),
        "softcap": 5.0 if draws.chance(0.1) else None,
        "q_num_heads": heads.at[0] if flat else None,
        "kv_num_heads": groups if flat else None, "qk_matmul_output_mode": mode,
    }  # fmt: skip
    maker.node("Attention", [q, k, v, mask, *pasts], results, **attributes)


@row("attention", 2.5, idiom=True)
def _written_out(maker: Maker) -> None:
    """Products, scale, mask, softmax, with or without the heads of projections."""
    draws = maker.draws
    dtype = "float32" if draws.chance(0.9) else "float64"
    b, s, t = length(maker), length(maker), length(maker)
    if draws.chance(0.5):
        t = s
    heads = static(draws.pick((2, 1, 3)))
    d = static(draws.pick((8, 4, 16, 1, 5, 32)))
    if any(0 in n.at for n in (b, s, t)) and not draws.chance(0.1):
        raise DeclinedError("attention of nothing")
    projected = draws.chance(0.4)

    def operand(length: Extent, turned: bool) -> Tensor:
        shape = (b, heads, d, length) if turned else (b, heads, length, d)
        if not projected:
            x = maker.shaped((b, heads, length, d), dtype, TAME)
            if not turned:
                return x
            return maker.add("Transpose", [x], shape, dtype, x.low, x.high, perm=[0, 1, 3, 2])
        rows = maker.shaped((b, length, times([heads, d])), dtype, TAME)
        target = maker.integers([0, 0, heads.at[0], d.at[0]])
        if min(min(e.at) for e in rows.shape) == 0:
            raise DeclinedError("no way to write the shape")
        apart = maker.add("Reshape", [rows, target], (b, length, heads, d), dtype, rows.low,
                          rows.high)  # fmt: skip
        perm = [0, 2, 3, 1] if turned else [0, 2, 1, 3]
        return maker.add("Transpose", [apart], shape, dtype, rows.low, rows.high, perm=perm)

    q, k, v = operand(s, False), operand(t, True), operand(t, False)
    spend_attention(maker, [b, heads], s, t, d)
    where = draws.pick(("scores", "query", "none"))
    factor = maker.constant(np.array(draws.pick((0.5, 0.25, 1.0)), dtype), share=True)
    if where == "query":
        q = maker.add("Mul", [q, factor], q.shape, dtype, q.low, q.high)
    merged = s.static and t.static and draws.chance(0.7)
    if merged:
        q, k, v = (_merged(maker, x) for x in (q, k, v))
    scores = matmul(maker, q, k)
    if where == "scores":
        op = draws.pick(("Mul", "Div"))
        scores = maker.add(op, [scores, factor], scores.shape, dtype, scores.low, scores.high)
    if draws.chance(0.3):
        axes = (times([b, heads]),) if merged else draws.pick(((b, heads), (heads,)))
        bias = maker.shaped((*axes, draws.pick((ONE, s)), t), dtype, TAME)
        size = scores.size + bias.size
        scores = maker.add("Add", [scores, bias], scores.shape, dtype, -size, size)
    if merged:
        scores = _split(maker, scores, (b, heads))
    mask = draws.pick(("none", "added", "where", "causal"))
    if mask == "added":
        shape = draws.pick(((b, ONE, ONE, t), (s, t), (b, ONE, s, t), (b, heads, s, t)))
        addend = maker.shaped(shape, dtype, 1e4)
        scores = maker.add("Add", [scores, addend], scores.shape, dtype, scores.low, scores.high)
    elif mask == "where" and maker.opset >= 9:
        shape = draws.pick(((b, ONE, ONE, t), (s, t), (b, ONE, s, t)))
        shown = maker.shaped(shape, "bool")
        hidden = maker.constant(np.array(draws.pick((-1e9, -np.inf, -1e4)), dtype), share=True)
        scores = maker.add("Where", [shown, scores, hidden], scores.shape, dtype, scores.low,
                           scores.high)  # fmt: skip
    elif mask == "causal" and maker.opset >= 14 and maker.spells(s) and maker.spells(t):
        ones = maker.add("ConstantOfShape", [maker.spelled((s, t))], (s, t), "float32", 0, 0)
        full = maker.constant(np.array(-1e9, np.float32), share=True)
        filled = maker.add("Add", [ones, full], (s, t), "float32", -1e9, 0)
        one = maker.constant(np.int64(1), share=True)
        triangle = maker.add("Trilu", [filled, one], (s, t), "float32", -1e9, 0, upper=1)
        if dtype != "float32":
            triangle = maker.add("Cast", [triangle], (s, t), dtype, -1e9, 0, to=11)
        scores = maker.add("Add", [scores, triangle], scores.shape, dtype, scores.low, scores.high)
    sinks = maker.opset >= 13 and draws.chance(0.3)
    if sinks:
        column = maker.shaped((b, heads, s, ONE), dtype, TAME)
        scores = maker.add("Concat", [scores, column], (b, heads, s, joined(t, ONE)), dtype,
                           min(scores.low, column.low), max(scores.high, column.high),
                           axis=3)  # fmt: skip
    weights = maker.add("Softmax", [scores], scores.shape, dtype, 0, 1,
                        axis=-1 if maker.opset >= 13 else 3)  # fmt: skip
    if sinks:
        ends = [maker.integers([n]) for n in (0, -1, 3)]
        weights = maker.add("Slice", [weights, *ends], (b, heads, s, t), dtype, 0, 1)
    if merged:
        weights = _merged(maker, weights)
    mixed = matmul(maker, weights, v)
    if merged:
        mixed = _split(maker, mixed, (b, heads))
    if draws.chance(0.5) and min(min(e.at) for e in mixed.shape) > 0:
        turned = maker.add("Transpose", [mixed], (b, s, heads, d), dtype, mixed.low, mixed.high,
                           perm=[0, 2, 1, 3])  # fmt: skip
        target = maker.integers([0, 0, heads.at[0] * d.at[0]])
        maker.add("Reshape", [turned, target], (b, s, times([heads, d])), dtype, mixed.low,
                  mixed.high)  # fmt: skip


def _merged(maker: Maker, x: Tensor) -> Tensor:
    """A tensor of matrices with one batch axis in place of two."""
    batch, heads, rows, columns = x.shape
    if 0 in (*batch.at, rows.at[0], columns.at[0]):
        raise DeclinedError("no way to write the shape")
    target = maker.integers([-1, rows.at[0], columns.at[0]])
    shape = (times([batch, heads]), rows, columns)
    return maker.moved("Reshape", x, shape, target)


def _split(maker: Maker, x: Tensor, batch: tuple[Extent, Extent]) -> Tensor:
    _, rows, columns = x.shape
    target = maker.integers([-1, batch[1].at[0], rows.at[0], columns.at[0]])
    return maker.moved("Reshape", x, (*batch, rows, columns), target)


def _positions(maker: Maker, shape: Shape, count: Extent) -> Tensor:
    """Which rows of tables of cosines and sines belong to which element."""
    high = (float(count.at[0]),) * BINDINGS
    return maker.input(shape, "int64", Fill("uniform", (0.0,) * BINDINGS, high))


@row("RotaryEmbedding", 1.0, since=23)
def _rotary_embedding(maker: Maker) -> None:
    draws = maker.draws
    b, s = length(maker), length(maker)
    if any(0 in n.at for n in (b, s)):
        raise DeclinedError("positions of nothing")
    heads, half = static(draws.pick((2, 1, 3))), static(draws.pick((4, 2, 8, 1)))
    size = static(half.at[0] * 2)
    width = half
    partial = None
    if draws.chance(0.3) and half.at[0] > 1:
        width = static(half.at[0] // 2)
        partial = width.at[0] * 2
    flat = draws.chance(0.4)
    shape = (b, s, times([heads, size])) if flat else (b, heads, s, size)
    x = maker.shaped(shape, "float32", TAME)
    operands = [x]
    if draws.chance(0.5):
        count = static(draws.pick((16, 5, 64)))
        operands += [maker.shaped((count, width), "float32", TAME) for _ in range(2)]
        operands.append(_positions(maker, (b, s), count))
    else:
        operands += [maker.shaped((b, s, width), "float32", TAME) for _ in range(2)]
    attributes = {
        "interleaved": draws.pick((None, 1, 0)), "num_heads": heads.at[0] if flat else None,
        "rotary_embedding_dim": partial,
    }  # fmt: skip
    maker.add("RotaryEmbedding", operands, shape, "float32", -x.size * 2, x.size * 2, **attributes)


@row("rotary positions", 1.0, since=10, idiom=True)
def _rotary(maker: Maker) -> None:
    """`x cos + turned(x) sin`, with halves of the last axis exchanged."""
    draws = maker.draws
    half = draws.pick((4, 2, 8, 1, 3))
    size = static(half * 2)
    lead = (length(maker), length(maker)) if draws.chance(0.5) else (length(maker),)
    shape = (*lead, size)
    dtype = "float32" if draws.chance(0.9) else "float64"
    x = maker.shaped(shape, dtype, TAME)
    tables = [maker.shaped(shape[-2:], dtype, TAME) for _ in range(2)]
    part = (*lead, static(half))
    halves = [
        maker.add("Slice", [x, *(maker.integers([v]) for v in (start, end, len(shape) - 1))],
                  part, dtype, x.low, x.high)
        for start, end in ((0, half), (half, 2**63 - 1))
    ]  # fmt: skip
    negative = maker.add("Neg", [halves[1]], part, dtype, x.low, x.high)
    turned = maker.add("Concat", [negative, halves[0]], shape, dtype, -x.size, x.size, axis=-1
                       if maker.opset >= 11 else len(shape) - 1)  # fmt: skip
    whole = broadcast([shape, tables[0].shape])
    terms = [
        maker.add("Mul", draws.shuffled([y, table]), whole, dtype, -TAME, TAME)
        for y, table in zip((x, turned), tables, strict=True)
    ]
    maker.add("Add", draws.shuffled(terms), whole, dtype, -x.size * 2, x.size * 2)
