"""Rows of operators on shapes and layout."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper
from tests.random_graphs import views
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import Extent, derived, elements, number, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import DTYPES, FLOATS, NUMBERS, Fill, Tensor
from tests.random_graphs.views import View


def _view(op: str, weight: float, view: View, since: int = 7) -> None:
    @row(op, weight, since=since)
    def make(maker: Maker) -> None:
        view(maker, maker.operand(dtypes_of(maker, op, DTYPES)))


_view("Transpose", 1.0, views.transpose)
_view("Slice", 1.2, views.slice_)
_view("Reshape", 1.0, views.reshape)
_view("Squeeze", 0.5, views.squeeze)
_view("Unsqueeze", 0.5, views.unsqueeze)
_view("Expand", 0.6, views.expand, since=8)
_view("Split", 0.8, views.split)
_view("Concat", 1.0, views.concat)
_view("Flatten", 0.4, views.flatten)


@row("split by data", 0.3, since=13, idiom=True)
def _split_by_data(maker: Maker) -> None:
    """Its results have as many rows as data says, so that nothing reads them."""
    x = maker.operand(dtypes_of(maker, "Split", DTYPES), (1, 2, 3))
    axis = maker.draws.below(x.rank)
    most = tuple(float(n) + 1 for n in x.shape[axis].at)
    first = maker.input((static(1),), "int64", Fill("uniform", (0.0,) * len(most), most))
    names = {part: maker.name() for part in ("shape", "whole", "second", "sizes", "y", "z")}
    maker.nodes += [
        helper.make_node("Shape", [x.name], [names["shape"]]),
        helper.make_node("Gather", [names["shape"], maker.constant(np.array([axis])).name],
                         [names["whole"]]),
        helper.make_node("Sub", [names["whole"], first.name], [names["second"]]),
        helper.make_node("Concat", [first.name, names["second"]], [names["sizes"]], axis=0),
        helper.make_node("Split", [x.name, names["sizes"]], [names["y"], names["z"]], axis=axis),
    ]  # fmt: skip
    maker.ends += [names["y"], names["z"]]


@row("Pad", 1.2)
def _pad(maker: Maker) -> None:
    draws = maker.draws
    dtypes = ("float32",) if maker.opset < 11 else dtypes_of(maker, "Pad", DTYPES)
    x = maker.operand(dtypes, (1, 2, 3, 4))
    mode = draws.weighted(("constant", "reflect", "edge", "wrap"), (0.5, 0.2, 0.2, 0.1))
    if mode == "wrap" and maker.opset < 19:
        mode = "edge"
    axes = list(range(x.rank))
    if maker.opset >= 18 and draws.chance(0.3):
        axes = draws.some(draws.shuffled(axes), 1)
    before, after = [0] * len(axes), [0] * len(axes)
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        extent = x.shape[axis]
        least = min(extent.at)
        if draws.chance(0.4):
            continue
        most = 3
        if mode == "reflect":
            most = min(least - 1, 3)
        elif mode in ("edge", "wrap"):
            most = min(least, 3)
        if most < 0:
            continue
        before[i], after[i] = draws.below(most + 1), draws.below(most + 1)
        if mode == "constant" and least > 3 and draws.chance(0.15):
            # Negative widths cut.
            before[i] = -draws.pick((1, 2))
        added = before[i] + after[i]
        if extent.static:
            shape[axis] = static(extent.at[0] + added)
        elif added:
            shape[axis] = derived(f"{extent.key}+{added}", [n + added for n in extent.at])
    low, high = x.low, x.high
    if maker.opset < 11:
        value = {"value": 0.5} if mode == "constant" and draws.chance(0.5) else {}
        maker.add("Pad", [x], shape, x.dtype, low, high, pads=[*before, *after], mode=mode, **value)
        return
    operands: list[Tensor | None] = [x, maker.integers([*before, *after])]
    given = mode == "constant" and draws.chance(0.5)
    fill = draws.pick((0, 1, 2))
    operands.append(maker.constant(np.array(fill, x.dtype), share=True) if given else None)
    if axes != list(range(x.rank)):
        written = [a - x.rank for a in axes] if draws.chance(0.3) else axes
        operands.append(maker.integers(written))
    maker.add("Pad", operands, shape, x.dtype, min(low, 0), max(high, 2), mode=mode)


@row("Tile", 0.6)
def _tile(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Tile", DTYPES), (1, 2, 3, 4))
    shape: list[Extent] = []
    repeats: list[Extent] = []
    for extent in x.shape:
        count = static(maker.draws.pick((1, 2, 3, 1, 0 if maker.draws.chance(0.1) else 1)))
        known = [s for s in maker.symbols.values() if maker.spells(s)]
        if known and maker.draws.chance(0.1):
            count = maker.draws.pick(known)
        repeats.append(count)
        if count.key == "1":
            shape.append(extent)
        elif extent.static and count.static:
            shape.append(static(extent.at[0] * count.at[0]))
        else:
            at = [n * c for n, c in zip(extent.at, count.at, strict=True)]
            shape.append(derived(f"{extent.key}*{count.key}", at))
    maker._expect_small(shape)
    maker.moved("Tile", x, shape, maker.spelled(repeats))


def _numbers(maker: Maker, extent: Extent, element: Tensor | None) -> Tensor:
    """0, 1, 2, ... by Range."""
    zero, one = (maker.constant(np.int64(v), share=True) for v in (0, 1))
    if element is None:
        element = maker.constant(np.int64(extent.at[0]), share=True)
    return maker.add("Range", [zero, element, one], [extent], "int64", 0, extent.most)


def iota(maker: Maker, extent: Extent) -> Tensor:
    """0, 1, 2, ... along an axis as long as another."""
    if maker.opset < 11:
        raise DeclinedError("no Range yet")
    if extent.static:
        return _numbers(maker, extent, None)
    if not maker.spells(extent):
        raise DeclinedError("no way to write the extent")
    one = maker.spelled_one(extent)
    if maker.opset >= 13:
        element = maker._hidden("Squeeze", [one, maker.integers([0])], [])
    else:
        element = maker._hidden("Squeeze", [one], [], axes=[0])
    return _numbers(maker, extent, element)


@row("Range", 0.8, since=11)
def _range(maker: Maker) -> None:
    if maker.symbols and maker.draws.chance(0.5):
        iota(maker, maker.draws.pick(list(maker.symbols.values())))
        return
    dtype = maker.draws.pick(dtypes_of(maker, "Range", ("int64", "float32", "int32", "float64")))
    start = maker.draws.pick((0, 1, -3, 5))
    step = maker.draws.pick((1, 2, -1, -2, 3))
    if dtype in FLOATS and maker.draws.chance(0.3):
        step = step * 0.5
    count = number(maker.draws)
    limit = start + step * count
    parts = [maker.constant(np.array(v, dtype), share=True) for v in (start, limit, step)]
    maker.add("Range", parts, [static(count)], dtype, min(start, limit), max(start, limit))


@row("Shape", 0.6)
def _shape(maker: Maker) -> None:
    x = maker.operand(DTYPES, (1, 2, 3, 4))
    bounds: dict[str, int] = {}
    axes = range(x.rank)
    if maker.opset >= 15 and maker.draws.chance(0.5):
        start, end = maker.draws.pick((0, 1, -1, -2)), maker.draws.pick((None, -1, 2))
        bounds = {"start": start} if end is None else {"start": start, "end": end}
        axes = axes[start:end]
    count = static(len(axes))
    maker.add("Shape", [x], [count], "int64", 0, max(elements(x.shape)), **bounds)


@row("Size", 0.3)
def _size(maker: Maker) -> None:
    x = maker.operand(DTYPES)
    maker.add("Size", [x], [], "int64", 0, max(elements(x.shape)))


@row("Constant", 0.3)
def _constant(maker: Maker) -> None:
    kinds = ["tensor"] + ["int", "ints", "float", "floats"] * (maker.opset >= 12)
    kind = maker.draws.pick(kinds)
    if kind == "tensor":
        dtype = maker.dtype(DTYPES)
        shape = [number(maker.draws, large=0) for _ in range(maker.draws.pick((1, 2, 0)))]
        random = maker.random()
        low = 0 if dtype.startswith("u") else -4
        array = np.asarray(random.integers(low, 9, shape)).astype(dtype)
        name = maker.name("c")
        value = numpy_helper.from_array(array, name)
        result = maker.new(map(static, array.shape), dtype, low, 9)
        maker.node("Constant", [], [result], value=value)
        return
    dtype = "int64" if kind.startswith("int") else "float32"
    count = maker.draws.pick((3, 1, 2))
    numbers = [float(i) - 0.5 for i in range(count)] if dtype == "float32" else list(range(count))
    shape_ = [static(count)] if kind.endswith("s") else []
    result = maker.new(shape_, dtype, -1, 3)
    maker.node("Constant", [], [result], **{f"value_{kind}": numbers if shape_ else numbers[0]})


@row("ConstantOfShape", 0.5, since=9)
def _constant_of_shape(maker: Maker) -> None:
    shape = maker.some_shape((1, 2, 3, 0))
    if not all(maker.spells(e) for e in shape):
        raise DeclinedError("no way to write the shape")
    written = maker.spelled(shape) if shape else maker.constant(np.zeros(0, np.int64))
    dtype = maker.dtype(dtypes_of(maker, "Cast", DTYPES))
    value = None
    if maker.draws.chance(0.8):
        value = numpy_helper.from_array(np.array([maker.draws.pick((1, 0, 3))], dtype), "value")
    else:
        dtype = "float32"
    maker.add("ConstantOfShape", [written], shape, dtype, 0, 3, value=value)


@row("If", 0.4)
def _if(maker: Maker) -> None:
    """A condition that is known, and branches that read what is around them."""
    x = maker.operand(NUMBERS)
    if maker.opset < 13 and x.dtype not in FLOATS:
        raise DeclinedError("no Abs or Neg of these")
    result = maker.new(x.shape, x.dtype, -x.size, x.size)
    graphs = {}
    for branch in ("then_branch", "else_branch"):
        inner = f"{result.name}_{branch}"
        op = maker.draws.pick(("Abs", "Identity"))
        element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
        info = helper.make_tensor_value_info(inner, element, [None] * x.rank)
        nodes = [helper.make_node(op, [x.name], [inner])]
        graphs[branch] = helper.make_graph(nodes, branch, [], [info])
    condition = maker.constant(np.array(maker.draws.chance(0.5)))
    if maker.draws.chance(0.3) and x.rank:
        # Known from the rank alone.
        rank = maker._hidden("Shape", [maker.tensors[-1]], [static(maker.tensors[-1].rank)])
        size = maker._hidden("Size", [rank], [])
        known = maker.constant(np.int64(maker.draws.pick((1, 2, 3))))
        condition = maker.new([], "bool")
        maker.nodes.append(helper.make_node("Equal", [size.name, known.name], [condition.name]))
    maker.node("If", [condition], [result], **graphs)
