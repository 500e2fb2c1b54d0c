"""Rows of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import (
    BINDINGS,
    MAX_ELEMENTS,
    ONE,
    Extent,
    elements,
    shape_at,
    static,
)
from tests.random_graphs.indexing_rows import indices
from tests.random_graphs.making import Maker
from tests.random_graphs.table import broadcast, dtypes_of, row
from tests.random_graphs.tensors import FLOATS, MICROSOFT, Fill, Tensor
from tests.random_graphs.views import concat, slice_, split, transpose

PRODUCT_SIZE = 1e5
LONG_K = 4096
MAX_SIDE = 8
"""Of matrices whose determinants float32 holds."""


def _spend(maker: Maker, shape: Sequence[Extent], k: Extent) -> None:
    work = [n * e for n, e in zip(elements(shape), k.at, strict=True)]
    maker.spend(work)


def weight_for(maker: Maker, k: Extent, n: Extent, dtype: str) -> Tensor:
    """A constant matrix for a product, of about unit columns."""
    if not (k.static and n.static) or k.at[0] * n.at[0] > MAX_ELEMENTS:
        raise DeclinedError("no such weight")
    return maker.weight((k.at[0], n.at[0]), dtype, 1 / max(k.at[0], 1) ** 0.5)


def _grown(a: Tensor, b: Tensor, k: Extent) -> float:
    return min(a.size, 100.0) * min(b.size, 100.0) * max(k.most, 1)


def _operand(maker: Maker, ranks: tuple[int, ...], dtypes: Sequence[str]) -> Tensor:
    """The first operand of a product; now and then one with a long k."""
    if maker.draws.chance(0.02):
        m = maker.draws.pick((static(3), ONE, static(17)))
        return maker.leaf((m, static(maker.draws.pick((LONG_K, 4099, 2048)))), "float32")
    return maker.operand(dtypes, ranks, size=PRODUCT_SIZE)


def _second(maker: Maker, a: Tensor) -> Tensor:
    """A tensor that a can be multiplied with."""
    k = a.shape[-1]
    kinds = ("weight", "turned weight", "matrix", "batched", "turned", "vector", "itself")
    kind = maker.draws.weighted(kinds, (0.4, 0.1, 0.12, 0.15, 0.12, 0.04, 0.07))
    n = maker.extent(zero=0.02, large=0.03)
    if kind == "itself" and a.rank >= 2:
        perm = [*range(a.rank - 2), a.rank - 1, a.rank - 2]
        shape = [a.shape[p] for p in perm]
        return maker.moved("Transpose", a, shape, perm=perm)
    if kind in ("weight", "turned weight") and k.static:
        n = n if n.static else static(maker.draws.pick((16, 1, 8, 33, 64)))
        if kind == "weight":
            return weight_for(maker, k, n, a.dtype)
        w = weight_for(maker, n, k, a.dtype)
        return maker.add("Transpose", [w], (k, n), a.dtype, w.low, w.high, perm=[1, 0])
    if kind == "vector":
        return maker.shaped((k,), a.dtype, PRODUCT_SIZE)
    if kind == "batched" and a.rank >= 3:
        batch = [e if maker.draws.chance(0.7) else ONE for e in a.shape[:-2]]
        if maker.draws.chance(0.15):
            batch = batch[1:]
        return maker.shaped((*batch, k, n), a.dtype, PRODUCT_SIZE)
    if kind == "turned":
        b = maker.shaped((n, k), a.dtype, PRODUCT_SIZE)
        return maker.add("Transpose", [b], (k, n), a.dtype, b.low, b.high, perm=[1, 0])
    return maker.shaped((k, n), a.dtype, PRODUCT_SIZE)


def product_shape(a: Tensor, b: Tensor) -> list[Extent]:
    """The shape of a product as NumPy has it."""
    left = a.shape if a.rank > 1 else (ONE, *a.shape)
    right = b.shape if b.rank > 1 else (*b.shape, ONE)
    shape = [*broadcast([left[:-2] or (), right[:-2] or ()]), left[-2], right[-1]] if (
        len(left) > 2 or len(right) > 2) else [left[-2], right[-1]]  # fmt: skip
    if b.rank == 1:
        shape.pop()
    if a.rank == 1:
        shape.pop(-1 if b.rank == 1 else -2)
    return shape


def matmul(maker: Maker, a: Tensor, b: Tensor, op: str = "MatMul", domain: str = "",
           **attributes: object) -> Tensor:  # fmt: skip
    """A product of two tensors that fit."""
    if max(elements(a.shape)) > MAX_ELEMENTS or a.shape[-1].at != b.shape[max(b.rank - 2, 0)].at:
        raise DeclinedError("operands that do not fit")
    shape = product_shape(a, b)
    _spend(maker, shape, a.shape[-1])
    size = _grown(a, b, a.shape[-1])
    return maker.add(op, [a, b], shape, a.dtype, -size, size, domain, **attributes)


@row("MatMul", 7.0)
def _matmul(maker: Maker) -> None:
    wanted = FLOATS if maker.draws.chance(0.9) else ("int32", "int64")
    a = _operand(maker, (2, 3, 4, 1), dtypes_of(maker, "MatMul", wanted))
    matmul(maker, a, _second(maker, a))


@row("products of one tensor", 1.0, idiom=True)
def _several(maker: Maker) -> None:
    """Several weights of one operand, as of queries, keys and values, some with a bias."""
    x = maker.operand(("float32",), (2, 3), size=PRODUCT_SIZE)
    k = x.shape[-1]
    if not k.static:
        raise DeclinedError("no such weights")
    for _ in range(maker.draws.pick((2, 3))):
        n = static(maker.draws.pick((8, 16, 3, 32)))
        y = matmul(maker, x, weight_for(maker, k, n, x.dtype))
        if maker.draws.chance(0.6):
            bias = maker.shaped((n,), x.dtype)
            maker.add("Add", [y, bias], y.shape, y.dtype, y.low - 4, y.high + 4)


@row("experts", 1.5, since=12, idiom=True)
def _experts(maker: Maker) -> None:
    """Products by weights that an index chooses for each token, with a chosen bias, and perhaps a
    second layer by the same choice."""
    draws = maker.draws
    x = maker.operand(("float32", "float64"), (2,), lambda t: t.shape[-1].static, 1e3)
    (tokens, k), count = x.shape, static(draws.pick((3, 1, 4)))
    index = indices(maker, (tokens,), count)
    if index.constant is not None:
        raise DeclinedError("what is chosen by a constant is folded")
    for _ in range(draws.pick((1, 2))):
        n = static(draws.pick((8, 16, 3, 33)))
        as_column = draws.chance(0.5)
        shape = (count, n, k) if as_column else (count, k, n)
        if k.at[0] * n.at[0] * count.at[0] > MAX_ELEMENTS or not k.at[0]:
            raise DeclinedError("no such weights")
        extents = [extent.at[0] for extent in shape]
        table = maker.weight(extents, x.dtype, 1 / k.at[0] ** 0.5)
        weight = _chosen(maker, table, index)
        vector = (tokens, k, ONE) if as_column else (tokens, ONE, k)
        rows = maker.moved("Reshape", x, vector, maker.spelled(vector))
        y = matmul(maker, *((weight, rows) if as_column else (rows, weight)))
        y = maker.add(
            "Reshape", [y, maker.spelled((tokens, n))], (tokens, n), y.dtype, y.low, y.high
        )
        if draws.chance(0.5):
            bias = _chosen(maker, maker.weight((count.at[0], n.at[0]), x.dtype), index)
            pair = draws.shuffled([y, bias])
            y = maker.add("Add", pair, y.shape, y.dtype, y.low - 8, y.high + 8)
        x, k = y, n


def _chosen(maker: Maker, table: Tensor, index: Tensor) -> Tensor:
    """Elements of a table along its first axis."""
    shape, dtype, low, high = (*index.shape, *table.shape[1:]), table.dtype, table.low, table.high
    if maker.draws.chance(0.5):
        return maker.add("Gather", [table, index], shape, dtype, low, high, axis=0)
    tuples = (*index.shape, ONE)
    at = maker.moved("Reshape", index, tuples, maker.spelled(tuples))
    if index.dtype != "int64":
        at = maker.add("Cast", [at], tuples, "int64", at.low, at.high, to=onnx.TensorProto.INT64)
    return maker.add("GatherND", [table, at], shape, dtype, low, high)


@row("weight in two layouts", 1.0, idiom=True)
def _two_layouts(maker: Maker) -> None:
    """One weight, read as it is and transposed."""
    a = maker.operand(("float32",), (2, 3), lambda x: x.shape[-1].static, PRODUCT_SIZE)
    k = a.shape[-1]
    n = k if maker.draws.chance(0.5) else static(maker.draws.pick((8, 16, 5, 33)))
    w = weight_for(maker, k, n, a.dtype)
    y = matmul(maker, a, w)
    kind = maker.draws.pick(("turned operand", "gemm", "transposed", "again"))
    if kind == "turned operand" and maker.opset >= 11:
        m = maker.extent(0.0, 0.0)
        b = maker.shaped((k, m), a.dtype, PRODUCT_SIZE)
        _spend(maker, (m, n), k)
        size = _grown(b, w, k)
        maker.add("Gemm", [b, w], (m, n), a.dtype, -size, size, transA=1)
    elif kind == "again" and n.at == k.at:
        matmul(maker, y, w)
    elif kind == "transposed" or y.rank != 2 or maker.opset < 11:
        turned = maker.moved("Transpose", w, (n, k), perm=[1, 0])
        matmul(maker, y, turned)
    else:
        _spend(maker, (y.shape[0], k), n)
        size = _grown(y, w, n)
        maker.add("Gemm", [y, w], (y.shape[0], k), y.dtype, -size, size, transB=1)


@row("product of a view", 2.5, idiom=True)
def _product_of_view(maker: Maker) -> None:
    """Axes of one element within the batch axes, cut, turned or reversed, times a weight."""
    draws = maker.draws
    k = static(draws.pick((16, 8, 4, 3, 33, 64)))
    axes = [maker.extent(0.01, 0.0) for _ in range(draws.pick((1, 2)))]
    for _ in range(draws.pick((1, 2))):
        axes.insert(draws.below(len(axes) + 1), ONE)
    x = maker.given(("float32",), (len(axes) + 1,)) if draws.chance(0.2) else (
        maker.input((*axes, k), "float32"))  # fmt: skip
    for _ in range(draws.pick((1, 2, 3))):
        x = draws.pick((slice_, slice_, transpose, split, concat))(maker, x)
    if draws.chance(0.2):
        x = maker.add("Relu", [x], x.shape, x.dtype, 0, x.high)
        x = slice_(maker, x)
    if x.shape[-1].static and draws.chance(0.8):
        n = static(draws.pick((8, 16, 1, 33)))
        matmul(maker, x, weight_for(maker, x.shape[-1], n, x.dtype))
    else:
        matmul(maker, x, _second(maker, x))


@row("Gemm", 3.0)
def _gemm(maker: Maker) -> None:
    draws = maker.draws
    wanted = FLOATS if draws.chance(0.95) else ("int32", "int64")
    a = _operand(maker, (2,), dtypes_of(maker, "Gemm", wanted))
    turned_a, turned_b = draws.chance(0.3), draws.chance(0.4)
    m, k = a.shape[::-1] if turned_a else a.shape
    n = maker.extent(0.02, 0.03)
    if k.static and draws.chance(0.7):
        n = n if n.static else static(draws.pick((16, 1, 8, 33)))
        b = weight_for(maker, *((n, k) if turned_b else (k, n)), a.dtype)
    else:
        b = maker.shaped((n, k) if turned_b else (k, n), a.dtype, PRODUCT_SIZE)
    operands = [a, b]
    if (maker.opset < 11) or draws.chance(0.6):
        shapes = [(n,), (m, n), (ONE, n), (m, ONE), (ONE,)] + ([()] if maker.opset >= 11 else [])
        operands.append(maker.shaped(draws.pick(shapes), a.dtype, PRODUCT_SIZE))
    scales = {}
    if a.floating and draws.chance(0.3):
        scales = {"alpha": draws.pick((0.5, 1.0, 2.0)), "beta": draws.pick((0.5, 1.0, 0.0, 2.0))}
    flags = {"transA": int(turned_a) or None, "transB": int(turned_b) or None}
    _spend(maker, (m, n), k)
    size = _grown(a, b, k) * 2 + (operands[2].size * 2 if len(operands) > 2 else 0)
    maker.add("Gemm", operands, (m, n), a.dtype, -size, size, **flags, **scales)


@row("FusedMatMul", 1.0, domain=MICROSOFT)
def _fused(maker: Maker) -> None:
    draws = maker.draws
    a = _operand(maker, (2, 3, 4), ("float32",))
    turned_a, turned_b = draws.chance(0.3), draws.chance(0.4)
    *batch, m, k = a.shape
    if turned_a:
        m, k = k, m
    n = maker.extent(0.0, 0.0)
    right = [e if draws.chance(0.7) else ONE for e in batch] if draws.chance(0.5) else []
    b = maker.shaped((*right, *((n, k) if turned_b else (k, n))), a.dtype, PRODUCT_SIZE)
    shape = [*broadcast([batch, right]), m, n] if batch or right else [m, n]
    if any(0 in e.at for e in (*shape, k)):
        raise DeclinedError("a product of nothing")
    _spend(maker, shape, k)
    size = _grown(a, b, k)
    attributes = {
        "transA": int(turned_a) or None, "transB": int(turned_b) or None,
        "alpha": draws.pick((None, 0.5, 1.0, 0.125)),
    }  # fmt: skip
    maker.add("FusedMatMul", [a, b], shape, a.dtype, -size, size, MICROSOFT, **attributes)


EQUATIONS = (
    "ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "ij->ji", "ij->i", "i,j->ij", "i,i->", "ii->i",
    "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bij,jk->bik", "ij,ij->ij",
    "ij,ij->", "...ij,...jk->...ik", "abc,cd,de->abe", "ij,jk", "bnm,bm->bn", "abc->b", "iij->ij",
)  # fmt: skip


@row("Einsum", 1.2, since=12)
def _einsum(maker: Maker) -> None:
    draws = maker.draws
    equation = draws.pick(EQUATIONS)
    left, _, right = equation.partition("->")
    dtype = "float32" if draws.chance(0.9) else "float64"
    known: dict[str, Extent] = {}
    ellipsis = [maker.extent(0.0, 0.0) for _ in range(draws.below(3))]
    operands = []
    for text in left.split(","):
        labels = text.replace("...", "")
        if not operands and len(set(labels)) == len(labels) and "..." not in text:
            x = maker.operand((dtype,), (len(labels),), size=PRODUCT_SIZE)
            known.update(zip(labels, x.shape, strict=True))
            operands.append(x)
            continue
        for label in labels:
            if label not in known:
                known[label] = maker.extent(0.02, 0.02)
        shape = [known[label] for label in labels]
        if "..." in text:
            shape = [*(e if draws.chance(0.8) else ONE for e in ellipsis), *shape]
        operands.append(maker.shaped(tuple(shape), dtype, PRODUCT_SIZE))
    if "->" not in equation:
        right = "ik"
    result = [known[label] for label in right.replace("...", "")]
    if "..." in right:
        outer = [x.shape[: x.rank - 2] for x in operands]
        result = [*broadcast(outer), *result]
    for binding in range(BINDINGS):
        extents = [e.at[binding] for e in (*known.values(), *ellipsis)]
        if np.prod(extents, dtype=np.float64) > 1 << 21:
            raise DeclinedError("too much work")
        assert all(n >= 0 for n in shape_at(result, binding))
    size = 1.0
    for x in operands:
        size *= min(x.size, 100.0)
    maker.add("Einsum", operands, result, dtype, -size * 64, size * 64, equation=equation)


@row("Det", 0.3, since=11)
def _determinant(maker: Maker) -> None:
    draws = maker.draws
    side = maker.extent(large=0.0)
    if side.most > MAX_SIDE:
        side = static(draws.pick((3, 2, 1, 5, 8)))
    batch = maker.some_shape((1, 0, 2))
    dtype = maker.dtype(dtypes_of(maker, "Det", FLOATS))
    x = maker.input((*batch, side, side), dtype, Fill("normal"))
    _spend(maker, x.shape, side)
    maker.add("Det", [x], batch, dtype, -1e6, 1e6)
