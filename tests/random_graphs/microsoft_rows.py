"""Rows of onnxruntime's own attention, embeddings and products by weights of few bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto
from tests.random_graphs.attention_rows import joined, length, spend_attention
from tests.random_graphs.contraction_rows import PRODUCT_SIZE
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, ONE, Extent, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.quantised_product_rows import LEVELS, some_levels, some_scale, some_zero
from tests.random_graphs.table import row
from tests.random_graphs.tensors import MICROSOFT, TAME, Fill, Tensor
from tests.random_graphs.window_rows import spend

from ftuner.graph.passes.narrow_weights import LEAST_ELEMENTS

# Attention.

MASKS = ("none", "keys", "lengths", "pairs", "ends and begins")


def _below(
    maker: Maker, shape: Sequence[Extent], high: Sequence[int], dtype: str = "int32"
) -> Tensor:
    """An input of integers from zero to below a number at each binding."""
    fill = Fill("uniform", (0.0,) * BINDINGS, tuple(map(float, high)))
    return maker.input(tuple(shape), dtype, fill)


def _mask(
    maker: Maker, kinds: Sequence[str], b: Extent, s: Extent, keys: Extent
) -> Tensor | None:  # fmt: skip
    """A mask of integers: which keys count, or where they end and begin."""
    kind = maker.draws.pick(kinds)
    shapes = {
        "keys": (b, keys), "pairs": (b, s, keys), "lengths": (b,),
        "ends and begins": (times([static(2), b]),),
    }  # fmt: skip
    if kind == "none":
        return None
    places = kind in ("lengths", "ends and begins")
    return _below(maker, shapes[kind], [n + 1 for n in keys.at] if places else (2,) * BINDINGS)


def _addend(maker: Maker, b: Extent, heads: Extent, s: Extent, keys: Extent) -> Tensor:
    lead = maker.draws.pick(((b, heads), (ONE, heads), (b, ONE), (ONE, ONE)))
    return maker.shaped((*lead, s, keys), "float32", 100.0)


def _expect_some(*extents: Extent) -> None:
    if any(0 in e.at for e in extents):
        raise DeclinedError("attention of nothing")


def _scores(maker: Maker) -> dict[str, object]:
    """The attributes that say what becomes of scores."""
    draws = maker.draws
    return {
        "unidirectional": draws.pick((None, 1, 0)), "scale": draws.pick((None, 0.5, 0.125)),
        "mask_filter_value": draws.pick((None, -50.0)),
    }  # fmt: skip


def _of_projection(maker: Maker, op: str) -> None:
    """Attention that computes queries, keys and values itself, as one product."""
    draws, quantised = maker.draws, op == "QAttention"
    b, s, earlier = length(maker), length(maker), length(maker)
    heads, d = static(draws.pick((2, 1, 3))), static(draws.pick((4, 8, 1, 5, 16)))
    past = draws.chance(0.3)
    apart = not (past or quantised) and draws.chance(0.3)
    e = static(draws.pick((3, 8))) if apart else d
    _expect_some(b, s, earlier)
    keys = joined(s, earlier) if past else s
    sizes = [heads.at[0] * n for n in (d.at[0], d.at[0], e.at[0])]
    k = draws.pick((8, 7, 16, 1))
    spend(maker, (b, s, static(sum(sizes))), k)
    spend_attention(maker, [b, heads], s, keys, static(d.at[0] + e.at[0]))
    mask = _mask(maker, MASKS, b, s, keys)
    old = maker.shaped((static(2), b, heads, earlier, d), "float32", TAME) if past else None
    operands: list[Tensor | None]
    if quantised:
        levels = Fill("uniform", (0.0,) * BINDINGS, (256.0,) * BINDINGS)
        x = maker.input((b, s, static(k)), "uint8", levels)
        w = some_levels(maker, (k, sum(sizes)), draws.pick(LEVELS))
        operands = [x, w, maker.weight((sum(sizes),), "float32")]
        operands += [some_scale(maker, size=0.02) for _ in range(2)]
        operands += [mask, some_zero(maker, x.dtype), some_zero(maker, w.dtype), old]
    else:
        x = maker.shaped((b, s, static(k)), "float32", TAME)
        w = maker.weight((k, sum(sizes)), "float32", k**-0.5)
        # onnxruntime reads a bias even if none is given.
        bias = maker.weight((sum(sizes),), "float32")
        # onnxruntime takes no addend beside a past.
        addend = None
        if not past and draws.chance(0.3):
            addend = _addend(maker, b, heads, s, keys)
        operands = [x, w, bias, mask, old, addend]
    size = max((x.size * k + 1) * 4, TAME if past else 0)
    results = [maker.new((b, s, static(sizes[2])), "float32", -size, size)]
    if past:
        results.append(maker.new((static(2), b, heads, keys, d), "float32", -size, size))
    maker.node(op, operands, results, MICROSOFT, num_heads=heads.at[0],
               qkv_hidden_sizes=sizes if apart else None, **_scores(maker))  # fmt: skip


@row("Attention", 0.5, MICROSOFT)
def _attention(maker: Maker) -> None:
    _of_projection(maker, "Attention")


@row("QAttention", 0.2, MICROSOFT)
def _quantised_attention(maker: Maker) -> None:
    _of_projection(maker, "QAttention")


@row("MultiHeadAttention", 0.5, MICROSOFT)
def _multi_head(maker: Maker) -> None:
    draws = maker.draws
    b, s, t, earlier = (length(maker) for _ in range(4))
    heads, d = static(draws.pick((2, 1, 3))), static(draws.pick((4, 8, 1, 5, 16)))
    kind = draws.pick(("self", "cross", "split", "past"))
    if kind in ("self", "past"):
        t = s
    same = kind in ("split", "past") or draws.chance(0.7)
    e = d if same else static(draws.pick((3, 8)))
    _expect_some(b, s, t, earlier)
    keys = joined(earlier, t) if kind == "past" else t
    spend_attention(maker, [b, heads], s, keys, static(d.at[0] + e.at[0]))

    def operand(count: Extent, size: Extent) -> Tensor:
        shape = (b, heads, count, size) if kind == "split" else (b, count, times([heads, size]))
        return maker.shaped(shape, "float32", TAME)

    query = maker.shaped((b, s, times([heads, d])), "float32", TAME)
    key, value = operand(t, d), operand(t, e)
    columns = heads.at[0] * (2 * d.at[0] + e.at[0])
    biased = kind != "split" and draws.chance(0.3)
    operands = [
        query, key, value, maker.weight((columns,), "float32") if biased else None,
        _mask(maker, MASKS[:4], b, s, keys),
        _addend(maker, b, heads, s, keys) if draws.chance(0.3) else None,
    ]  # fmt: skip
    size = value.size + 4
    results = [maker.new((b, s, times([heads, e])), "float32", -size, size)]
    if kind == "past":
        operands += [maker.shaped((b, heads, earlier, d), "float32", TAME) for _ in range(2)]
        results += [maker.new((b, heads, keys, d), "float32", -TAME, TAME) for _ in range(2)]
    attributes = _scores(maker)
    maker.node("MultiHeadAttention", operands, results, MICROSOFT, num_heads=heads.at[0],
               **attributes)  # fmt: skip


@row("GroupQueryAttention", 0.5, MICROSOFT)
def _grouped_query(maker: Maker) -> None:
    """Of sequences that are as long as the past and the present together, or of a first call."""
    draws = maker.draws
    b, s, earlier = (length(maker) for _ in range(3))
    groups, times_, d = static(draws.pick((2, 1, 3))), draws.pick((1, 2, 4)), static(8)
    heads = static(groups.at[0] * times_)
    past = draws.chance(0.5)
    _expect_some(b, s, earlier)
    keys = joined(earlier, s) if past else s
    spend_attention(maker, [b, heads], s, keys, static(2 * d.at[0]))
    query = maker.shaped((b, s, times([heads, d])), "float32", TAME)
    key, value = (maker.shaped((b, s, times([groups, d])), "float32", TAME) for _ in range(2))
    old = [maker.shaped((b, groups, earlier, d), "float32", TAME) if past else None
           for _ in range(2)]  # fmt: skip
    last = Fill("uniform", tuple(float(n - 1) for n in keys.at), tuple(float(n) for n in keys.at))
    lengths = maker.input((b,), "int32", last)
    number = maker.new((ONE,), "int64", 0, TAME)
    if past:
        maker.node("Add", [maker.spelled_one(s), maker.spelled_one(earlier)], [number])
    else:
        maker.node("Identity", [maker.spelled_one(s)], [number])
    total = maker.new((ONE,), "int32", 0, TAME)
    maker.node("Cast", [number], [total], to=TensorProto.INT32)
    operands = [query, key, value, *old, lengths, total]
    if draws.chance(0.3):
        operands += [None] * 4 + [maker.shaped((heads,), "float32", TAME)]
    size = value.size + 4
    results = [maker.new((b, s, times([heads, d])), "float32", -size, size)]
    results += [maker.new((b, groups, keys, d), "float32", -TAME, TAME) for _ in range(2)]
    maker.node("GroupQueryAttention", operands, results, MICROSOFT, num_heads=heads.at[0],
               kv_num_heads=groups.at[0], local_window_size=draws.pick((-1, -1, 3)))  # fmt: skip


@row("RotaryEmbedding", 0.3, MICROSOFT)
def _rotary(maker: Maker) -> None:
    draws = maker.draws
    b, s = length(maker), length(maker)
    heads, d, split = (
        static(draws.pick((2, 1, 3))),
        static(draws.pick((8, 16, 4))),
        draws.chance(0.5),
    )
    _expect_some(b, s)
    if s.most > LONGEST // 2:
        raise DeclinedError("no such sequence")
    x = maker.shaped((b, heads, s, d) if split else (b, s, times([heads, d])), "float32", TAME)
    if draws.chance(0.5):
        positions = _below(maker, (b, s), (LONGEST,) * BINDINGS, "int64")
    else:
        positions = _below(maker, (static(1),), (LONGEST // 2,) * BINDINGS, "int64")
    tables = [maker.weight((LONGEST, d.at[0] // 2), "float32") for _ in range(2)]
    size = 4 * x.size
    result = maker.new(x.shape, "float32", -size, size)
    maker.node("RotaryEmbedding", [x, positions, *tables], [result], MICROSOFT,
               interleaved=int(draws.chance(0.5)))  # fmt: skip


# Embeddings.

TOKENS, SEGMENTS, LONGEST = 9, 2, 64


def _tokens(maker: Maker) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens, and now and then segments and a mask of them."""
    b, s = length(maker), length(maker)
    if any(0 in e.at for e in (b, s)) or s.most > LONGEST:
        raise DeclinedError("no such sequence")
    shape = (b, s)
    segments = _below(maker, shape, (SEGMENTS,) * BINDINGS) if maker.draws.chance(0.6) else None
    mask = _below(maker, shape, (2,) * BINDINGS) if maker.draws.chance(0.5) else None
    return _below(maker, shape, (TOKENS,) * BINDINGS), segments, mask


def _tables(segments: bool, width: int) -> list[tuple[int, ...] | None]:
    """The shapes of embeddings of words, positions and segments, and of the norm's parameters."""
    last = (SEGMENTS, width) if segments else None
    return [(TOKENS, width), (LONGEST, width), last, (width,), (width,)]


@row("EmbedLayerNormalization", 0.3, MICROSOFT)
def _embedding(maker: Maker) -> None:
    draws = maker.draws
    ids, segments, mask = _tokens(maker)
    b, s = ids.shape
    width = draws.pick((8, 6, 16, 33))
    tables = [
        shape and maker.weight(shape, "float32") for shape in _tables(segments is not None, width)
    ]
    positions = None
    if draws.chance(0.4):
        positions = _below(maker, (draws.pick((ONE, b)), s), (LONGEST,) * BINDINGS)
    shape = (b, s, static(width))
    results = [maker.new(shape, "float32", -30, 30), maker.new((b,), "int32", 0, LONGEST)]
    if draws.chance(0.5):
        results.append(maker.new(shape, "float32", -15, 15))
    maker.node("EmbedLayerNormalization", [ids, segments, *tables, mask, positions], results,
               MICROSOFT, epsilon=draws.pick((None, 1e-5, 1e-3)))  # fmt: skip


@row("QEmbedLayerNormalization", 0.2, MICROSOFT)
def _quantised_embedding(maker: Maker) -> None:
    draws = maker.draws
    ids, segments, mask = _tokens(maker)
    b, s = ids.shape
    width, dtype = draws.pick((8, 6, 16, 33)), draws.pick(LEVELS)
    info, random = np.iinfo(dtype), maker.random()
    tables = [
        shape and maker.constant(random.integers(info.min, info.max + 1, shape).astype(dtype))
        for shape in _tables(segments is not None, width)
    ]
    scales = [x and some_scale(maker, size=0.02) for x in tables]
    zeros = [x and some_zero(maker, dtype) for x in tables]
    results = [
        maker.new((b, s, static(width)), "float32", -40, 40), maker.new((b,), "int32", 0, LONGEST),
    ]  # fmt: skip
    maker.node("QEmbedLayerNormalization", [ids, segments, *tables, mask, *scales, *zeros], results,
               MICROSOFT, epsilon=draws.pick((None, 1e-5, 1e-3)))  # fmt: skip


@row("GatherBlockQuantized", 0.4, MICROSOFT)
def _rows_of_few_bits(maker: Maker) -> None:
    draws = maker.draws
    bits, block, blocks = draws.pick((4, 8)), draws.pick((16, 32)), draws.pick((1, 2, 3))
    vocabulary, width = draws.pick((1, 9, 40)), block * blocks - draws.pick((0, 2, 14))
    extents = tuple(length(maker) for _ in range(draws.pick((1, 2))))
    ids = _below(maker, extents, (vocabulary,) * BINDINGS, draws.pick(("int32", "int64")))
    random = maker.random()

    def packed(count: int) -> Tensor:
        words = -(-count * bits // 8)
        return maker.constant(random.integers(0, 256, (vocabulary, words)).astype(np.uint8))

    scales = maker.weight((vocabulary, blocks), "float32", 0.1)
    zeros = packed(blocks) if draws.chance(0.5) else None
    size = 2.0**bits
    maker.add("GatherBlockQuantized", [packed(width), ids, scales, zeros],
              (*extents, static(width)), "float32", -size, size, MICROSOFT, bits=bits,
              block_size=block, quantize_axis=draws.pick((None, 1, -1)))  # fmt: skip


# Products.


@row("MatMulBnb4", 0.2, MICROSOFT)
def _four_bit_levels(maker: Maker) -> None:
    draws = maker.draws
    a = maker.operand(
        ("float32",), (2, 3), lambda x: x.shape[-1].static and x.shape[-1].at[0] > 0, PRODUCT_SIZE
    )
    depth, columns = a.shape[-1].at[0], draws.pick((16, 7, 1, 8, 33))
    shape = (*a.shape[:-1], static(columns))
    if any(0 in e.at for e in shape):
        raise DeclinedError("a product of nothing")
    spend(maker, shape, depth)
    count, block = depth * columns, draws.pick((16, 32, 64))
    weight = maker.constant(maker.random().integers(0, 256, -(-count // 2)).astype(np.uint8))
    scales = maker.weight((-(-count // block),), "float32", 0.1)
    size = a.size * depth
    maker.add("MatMulBnb4", [a, weight, scales], shape, "float32", -size, size, MICROSOFT,
              block_size=block, K=depth, N=columns, quant_type=draws.pick((0, 1)))  # fmt: skip


@row("MatMulNBits", 0.4, MICROSOFT)
def _few_bits(maker: Maker) -> None:
    draws = maker.draws
    if draws.chance(0.4):
        # Enough elements to stay packed.
        a = maker.shaped((length(maker), static(draws.pick((128, 97)))), "float32", PRODUCT_SIZE)
        columns = -(-LEAST_ELEMENTS // a.shape[-1].at[0])
    else:
        a = maker.operand(
            ("float32",), (2, 3), lambda x: x.shape[-1].static and x.shape[-1].at[0] > 0,
            PRODUCT_SIZE,
        )  # fmt: skip
        columns = draws.pick((16, 7, 1, 8, 33))
    depth, bits, block = a.shape[-1].at[0], draws.pick((4, 8, 2)), draws.pick((16, 32, 64))
    blocks = -(-depth // block)
    shape = (*a.shape[:-1], static(columns))
    if any(0 in e.at for e in shape):
        raise DeclinedError("a product of nothing")
    spend(maker, shape, depth)
    random = maker.random()

    def packed(*shape: int) -> Tensor:
        return maker.constant(random.integers(0, 256, shape).astype(np.uint8))

    weight = packed(columns, blocks, block * bits // 8)
    scales = maker.weight((columns, blocks), "float32", 0.1)
    # onnxruntime has no floats as zero points of 8 bits.
    kind = draws.pick(("none", "packed") if bits == 8 else ("none", "packed", "floats"))
    zeros = None
    if kind == "packed":
        zeros = packed(columns, -(-blocks * bits // 8))
    elif kind == "floats":
        zeros = maker.weight((columns, blocks), "float32", 3.0)
    bias = maker.weight((columns,), "float32") if draws.chance(0.4) else None
    size = a.size * depth * 2.0**bits
    maker.add("MatMulNBits", [a, weight, scales, zeros, None, bias], shape, "float32", -size, size,
              MICROSOFT, bits=bits, block_size=block, K=depth, N=columns)  # fmt: skip


@row("CDist", 0.3, MICROSOFT)
def _distances(maker: Maker) -> None:
    """Distances of the rows of two matrices; equal ones have a distance that rounding decides."""
    draws = maker.draws
    x = maker.operand(("float32", "float32", "float64"), (2,), size=1e3)
    y = maker.shaped((length(maker), x.shape[1]), x.dtype, 1e3)
    _expect_some(*x.shape, y.shape[0])
    shape = (x.shape[0], y.shape[0])
    spend(maker, shape, x.shape[1].most)
    metric = draws.pick(("sqeuclidean", "euclidean"))
    size = (x.size + y.size) ** 2 * x.shape[1].most
    maker.add("CDist", [x, y], shape, x.dtype, 0, size, MICROSOFT, metric=metric)
