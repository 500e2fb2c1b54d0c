"""Rows of operators that select elements by data, order them, or write to chosen places."""

from __future__ import annotations

import numpy as np
from onnx import helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, Extent, Shape, static
from tests.random_graphs.making import Maker
from tests.random_graphs.shape_rows import iota
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import DTYPES, FLOATS, NUMBERS, Array, Fill, Tensor


def indices(maker: Maker, shape: Shape, extent: Extent, negative: bool = True) -> Tensor:
    """Indices into an axis: an input, or a constant."""
    least = min(extent.at)
    if least == 0 and not maker.draws.chance(0.1):
        raise DeclinedError("no index into nothing")
    dtype = maker.draws.pick(("int64", "int32"))
    negative = negative and maker.draws.chance(0.5)
    if all(e.static for e in shape) and least and maker.draws.chance(0.4):
        low = -least if negative else 0
        array: Array = maker.random().integers(low, least, [e.at[0] for e in shape])
        return maker.constant(array.astype(dtype))
    # Now and then one more than there are: an error.
    beyond = int(maker.draws.chance(0.02))
    low = tuple(-float(n) if negative else 0.0 for n in extent.at)
    return maker.input(shape, dtype, Fill("uniform", low, tuple(n + beyond for n in extent.at)))


def _few(maker: Maker, ranks: tuple[int, ...] = (1, 2, 0)) -> Shape:
    """The shape of indices."""
    return tuple(maker.extent(0.03, 0.0) for _ in range(maker.draws.pick(ranks)))


@row("Gather", 2.0)
def _gather(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Gather", DTYPES), (1, 2, 3, 4))
    axis = maker.draws.below(x.rank)
    at = indices(maker, _few(maker), x.shape[axis], maker.opset >= 11)
    shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    written = axis - x.rank if maker.draws.chance(0.2) else axis
    maker.moved("Gather", x, shape, at, axis=written)


def _part(maker: Maker, x: Tensor, axis: int, every: bool) -> Shape:
    """A shape whose extents, but along an axis, are at most those of another."""
    shape = []
    for i, extent in enumerate(x.shape):
        if i == axis:
            shape.append(maker.extent(0.03, 0.0) if maker.draws.chance(0.6) else extent)
        elif every or maker.draws.chance(0.6) or min(extent.at) < 2:
            shape.append(extent)
        elif extent.static:
            shape.append(static(maker.draws.pick(range(1, extent.at[0] + 1)[:8])))
        else:
            shape.append(maker.named([max(n - maker.draws.below(2), 1) for n in extent.at]))
    return tuple(shape)


@row("GatherElements", 1.0, since=11)
def _gather_elements(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "GatherElements", DTYPES), (1, 2, 3, 4))
    axis = maker.draws.below(x.rank)
    at = indices(maker, _part(maker, x, axis, False), x.shape[axis])
    maker.moved("GatherElements", x, at.shape, at, axis=axis)


def _tuples(maker: Maker, outer: Shape, extents: Shape) -> Tensor:
    """Indices into several axes, one tuple a row."""
    if 0 in (n for e in extents for n in e.at):
        raise DeclinedError("no index into nothing")
    least = [min(e.at) for e in extents]
    shape = (*outer, static(len(extents)))
    if all(e.static for e in outer) and maker.draws.chance(0.5):
        array = maker.random().integers(0, least or [1], [e.at[0] for e in shape])
        return maker.constant(array.astype(np.int64))
    high = float(min(least, default=1))
    low = -high if maker.draws.chance(0.4) else 0.0
    return maker.input(shape, "int64", Fill("uniform", (low,) * BINDINGS, (high,) * BINDINGS))


@row("GatherND", 0.8, since=11)
def _gather_nd(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "GatherND", DTYPES), (1, 2, 3, 4))
    batch = (
        maker.draws.below(min(x.rank, 3)) if maker.opset >= 12 and maker.draws.chance(0.3) else 0
    )
    depth = 1 + maker.draws.below(x.rank - batch)
    outer = (*x.shape[:batch], *_few(maker, (1, 2)))
    at = _tuples(maker, outer, x.shape[batch : batch + depth])
    shape = (*outer, *x.shape[batch + depth :])
    maker.moved("GatherND", x, shape, at, batch_dims=batch or None)


def _reduction(maker: Maker, dtype: str, least: int, most: int) -> str | None:
    """What becomes of several updates of one place."""
    options: list[str | None] = [None]
    if maker.opset >= least and dtype in NUMBERS:
        options += ["add", "mul"]
    if maker.opset >= most and dtype in NUMBERS:
        options += ["max", "min"]
    return maker.draws.pick(options)


def _scatter_elements(op: str, weight: float, since: int, until: int) -> None:
    @row(op, weight, since=since, until=until)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, DTYPES), (1, 2, 3, 4), size=1e4)
        axis = maker.draws.below(x.rank)
        at = indices(maker, _part(maker, x, axis, False), x.shape[axis], maker.opset >= 11)
        updates = maker.shaped(at.shape, x.dtype, 1e4)
        kind = _reduction(maker, x.dtype, 16, 18) if op == "ScatterElements" else None
        maker.add(op, [x, at, updates], x.shape, x.dtype, -1e6, 1e6, axis=axis, reduction=kind)


_scatter_elements("ScatterElements", 1.0, 11, 1000)
_scatter_elements("Scatter", 0.4, 9, 10)


@row("ScatterND", 0.8, since=11)
def _scatter_nd(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "ScatterND", DTYPES), (1, 2, 3, 4), size=1e4)
    depth = 1 + maker.draws.below(x.rank)
    at = _tuples(maker, _few(maker, (1, 2)), x.shape[:depth])
    updates = maker.shaped((*at.shape[:-1], *x.shape[depth:]), x.dtype, 1e4)
    kind = _reduction(maker, x.dtype, 16, 18)
    maker.add("ScatterND", [x, at, updates], x.shape, x.dtype, -1e6, 1e6, reduction=kind)


@row("OneHot", 0.6, since=9)
def _one_hot(maker: Maker) -> None:
    dtype = maker.dtype(("int64", "int32", "float32"))
    known = [
        t for t in maker.tensors if t.dtype == dtype and 1 <= t.rank <= 3 and t.dtype != "float32"
    ]
    if known and maker.draws.chance(0.3):
        at = maker.draws.pick(known)
    else:
        fill = Fill("uniform", (-3.0,) * BINDINGS, (6.0,) * BINDINGS)
        at = maker.input(_few(maker, (1, 2)), dtype, fill)
    if dtype == "float32":
        at = maker.add("Round", [at], at.shape, dtype, -3, 6) if maker.opset >= 11 else at
        if maker.opset < 11:
            raise DeclinedError("no Round yet")
    depth = maker.draws.pick((4, 1, 3, 8, 17))
    values_dtype = maker.dtype(("float32", "int64", "int32"))
    axis = maker.draws.pick((-1, *range(at.rank + 1)))
    place = axis % (at.rank + 1)
    shape = (*at.shape[:place], static(depth), *at.shape[place:])
    kind = maker.draws.pick(("constant", "input"))
    values = (
        maker.constant(np.array([0, 1], values_dtype), share=True) if kind == "constant"
        else maker.shaped((static(2),), values_dtype)
    )  # fmt: skip
    rank = maker.draws.pick((0, 1))
    count = maker.constant(np.array(depth, np.int64).reshape((1,) * rank), share=True)
    maker.add("OneHot", [at, count, values], shape, values_dtype, values.low, values.high,
              axis=None if axis == -1 else axis)  # fmt: skip


@row("Trilu", 0.7, since=14)
def _trilu(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Trilu", DTYPES), (2, 3, 4))
    offset = maker.draws.pick((None, 0, 1, -1, 3, -4, 100))
    given = [] if offset is None else [maker.constant(np.int64(offset), share=True)]
    upper = maker.draws.pick((None, 0, 1))
    maker.add("Trilu", [x, *given], x.shape, x.dtype, min(x.low, 0), max(x.high, 0), upper=upper)


@row("CumSum", 0.8, since=11)
def _cumulative_sum(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "CumSum", NUMBERS), (1, 2, 3, 4), size=1e6)
    axis = maker.draws.below(x.rank)
    written = axis - x.rank if maker.draws.chance(0.3) else axis
    at = maker.constant(np.array(written, maker.draws.pick(("int64", "int32"))), share=True)
    flags = {n: maker.draws.pick((None, 1, 0)) for n in ("exclusive", "reverse")}
    size = x.size * max(x.shape[axis].most, 1)
    maker.add("CumSum", [x, at], x.shape, x.dtype, -size, size, **flags)


@row("CumProd", 0.4, since=26)
def _cumulative_product(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "CumProd", FLOATS), (1, 2, 3, 4))
    # Products of larger numbers would overflow.
    x = maker.add("Tanh", [x], x.shape, x.dtype, -1, 1)
    axis = maker.draws.below(x.rank)
    written = axis - x.rank if maker.draws.chance(0.3) else axis
    at = maker.constant(np.array(written, maker.draws.pick(("int64", "int32"))), share=True)
    flags = {n: maker.draws.pick((None, 1, 0)) for n in ("exclusive", "reverse")}
    maker.add("CumProd", [x, at], x.shape, x.dtype, -1, 1, **flags)


@row("TopK", 0.9)
def _top_k(maker: Maker) -> None:
    dtypes = dtypes_of(maker, "TopK", (*FLOATS, "int64", "int32"))
    x = maker.operand(dtypes, (1, 2, 3, 4))
    axis = maker.draws.below(x.rank)
    least = min(x.shape[axis].at)
    if least < 1:
        raise DeclinedError("nothing to choose from")
    k = maker.draws.pick([1, *(n for n in (2, 3, 5, 8, least, 17) if n <= least)])
    extent = static(k)
    if maker.opset >= 10 and maker.draws.chance(0.1) and maker.spells(x.shape[axis]):
        # All of them, however many there are.
        extent = x.shape[axis]
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    values, places = maker.new(shape, x.dtype, x.low, x.high), maker.new(shape, "int64", 0, least)
    written = axis - x.rank if maker.draws.chance(0.3) else axis
    if maker.opset < 10:
        maker.node("TopK", [x], [values, places], axis=written, k=k)
        return
    count = maker.spelled([extent])
    largest = maker.draws.pick((None, 0, 1)) if maker.opset >= 11 else None
    maker.node("TopK", [x, count], [values, places], axis=written, largest=largest)


@row("NonZero", 0.3, since=9)
def _non_zero(maker: Maker) -> None:
    """Its result has as many columns as data says, so that what reads it is drawn at once."""
    x = maker.operand(dtypes_of(maker, "NonZero", ("float32", "bool", "int64", "int32")), (1, 2, 3))
    if x.floating:
        x = maker.add("Relu", [x], x.shape, x.dtype, 0, max(x.high, 0))
    found = maker.name()
    maker.nodes.append(helper.make_node("NonZero", [x.name], [found]))
    kind = maker.draws.pick(("whole", "turned", "gathered"))
    if kind == "whole":
        maker.ends.append(found)
        return
    turned = maker.name()
    maker.nodes.append(helper.make_node("Transpose", [found], [turned], perm=[1, 0]))
    if kind == "turned" or maker.opset < 11:
        maker.ends.append(turned)
        return
    chosen = maker.name()
    maker.nodes.append(helper.make_node("GatherND", [x.name, turned], [chosen]))
    if x.dtype == "float32":
        last = maker.name()
        maker.nodes.append(helper.make_node("Exp", [chosen], [last]))
        chosen = last
    maker.ends.append(chosen)


@row("one hot by comparison", 0.3, since=11, idiom=True)
def _compared(maker: Maker) -> None:
    """Positions along an axis, compared with a tensor."""
    x = maker.operand(("int64",), (1, 2, 3))
    numbers = iota(maker, maker.draws.pick([*x.shape, static(5)]))
    column = maker.add(
        "Unsqueeze", [x, maker.integers([x.rank])] if maker.opset >= 13 else [x],
        (*x.shape, static(1)), x.dtype, x.low, x.high,
        **({} if maker.opset >= 13 else {"axes": [x.rank]}),
    )  # fmt: skip
    maker.add("Equal", [column, numbers], (*x.shape, numbers.shape[0]), "bool", 0, 1)
