"""Rows where kinds of networks meet: images, sequences, control flow, extents that data decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.random_graphs.contraction_rows import matmul
from tests.random_graphs.control_rows import info, sizes
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, ONE, Extent, derived, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.recurrent_rows import recurrent
from tests.random_graphs.table import ROWS, row
from tests.random_graphs.tensors import DTYPES, FLOATS, TAME, Fill, Tensor
from tests.random_graphs.views import reshape_node, with_axes
from tests.random_graphs.window_rows import image

TRIPS = 3


@row("tokens of an image", 1.5, idiom=True)
def _tokens(maker: Maker) -> None:
    """The positions of an image as a sequence, which may look at itself, and may become an image
    again."""
    draws = maker.draws
    x = image(maker, ("float32", "float32", "float64"), (4,))
    n, c, h, w = x.shape
    if draws.chance(0.3) and h.static:
        # Columns of all channels, as recognisers of text read them.
        turned = maker.moved("Transpose", x, (w, n, c, h), perm=[3, 0, 1, 2])
        reshape_node(maker, turned, (w, n, times([c, h])))
        return
    flat = reshape_node(maker, x, (n, c, times([h, w])))
    y = turned = maker.moved("Transpose", flat, (n, flat.shape[2], c), perm=[0, 2, 1])
    if draws.chance(0.6):
        if x.size**2 * c.at[0] > TAME:
            raise DeclinedError("a softmax of one element")
        scores = matmul(maker, turned, flat)
        if maker.opset >= 13 and draws.chance(0.5):
            scores = maker.add("Mul", [scores, maker.scalar(0.25, x.dtype)], scores.shape, x.dtype,
                               scores.low, scores.high)  # fmt: skip
        weights = maker.add("Softmax", [scores], scores.shape, x.dtype, 0, 1, axis=2)
        y = maker.bounded(matmul(maker, weights, turned), x.low, x.high)
    if draws.chance(0.6):
        back = maker.moved("Transpose", y, flat.shape, perm=[0, 2, 1])
        z = reshape_node(maker, back, x.shape)
        if draws.chance(0.5):
            maker.add("Add", [x, z], x.shape, x.dtype, 2 * x.low, 2 * x.high)


@row("features beside states", 0.8, idiom=True)
def _features(maker: Maker) -> None:
    """The means of an image's channels, beside the last state of a recurrent layer."""
    draws = maker.draws
    x = image(maker, ("float32",), (4,))
    n, c = x.shape[:2]
    pooled = maker.moved("GlobalAveragePool", x, (n, c, ONE, ONE))
    if draws.chance(0.5):
        features = maker.moved("Flatten", pooled, (n, c), axis=1)
    else:
        features = with_axes(maker, "Squeeze", pooled, (n, c), [2, 3], 4)
    length = maker.symbol()
    sequence = maker.shaped((length, n, static(draws.pick((4, 3, 8)))), x.dtype, TAME)
    state = recurrent(maker, draws.pick(("GRU", "LSTM", "RNN")), sequence, last=True)
    last = state.shape[2]
    if state.shape[0].key == "1":
        state = with_axes(maker, "Squeeze", state, (n, last), [0], 3)
    else:
        state = maker.moved("Transpose", state, (n, *state.shape[::2]), perm=[1, 0, 2])
        state = reshape_node(maker, state, (n, times(state.shape[1:])))
    whole = (n, static(c.at[0] + state.shape[1].at[0]))
    low, high = min(features.low, state.low), max(features.high, state.high)
    y = maker.add("Concat", [features, state], whole, x.dtype, low, high, axis=1)
    matmul(maker, y, maker.weight((whole[1].at[0], 5), x.dtype, 0.3))


def _number(maker: Maker, values: Sequence[int], shape: tuple[Extent, ...] = ()) -> Tensor:
    """An input whose element is known at each binding, to this generator alone."""
    fill = Fill("uniform", tuple(map(float, values)), tuple(v + 1.0 for v in values))
    return maker.input(shape, "int64", fill)


@row("length by data", 1.5, since=11, idiom=True)
def _by_data(maker: Maker) -> None:
    """As much of an axis as an input says, which may be nothing, or as many copies."""
    draws = maker.draws
    kinds = ("slice", "compress", "range", "expand", "pad")
    kind = draws.pick(kinds if maker.opset >= 13 else kinds[:3])
    x = maker.operand(FLOATS if kind == "pad" else DTYPES, (1, 2, 3, 4))
    axis = draws.below(x.rank)
    extent = x.shape[axis]
    more = 0 if kind in ("slice", "compress", "range") else 3
    share = draws.pick((1.0, 0.5, 0.0))
    at = [
        draws.below(more or n + 1) if draws.chance(0.5) else int(share * (more or n))
        for n in extent.at
    ]
    count = _number(maker, at, (ONE,))
    shape = (*x.shape[:axis], derived(f"{count.name}", at), *x.shape[axis + 1 :])
    zero, along = maker.integers([0]), maker.integers([axis])
    if kind == "slice":
        maker.moved("Slice", x, shape, zero, count, along)
    elif kind == "expand":
        ones = with_axes(maker, "Unsqueeze", x, (ONE, *x.shape), [0], x.rank + 1)
        target = maker._hidden(
            "Concat", [count, maker.integers([1] * x.rank)], [static(x.rank + 1)], axis=0
        )
        maker.moved("Expand", ones, (derived(count.name, at), *x.shape), target)
    elif kind == "pad":
        widths = [zero] * axis + [count] + [zero] * (2 * x.rank - axis - 1)
        pads = maker._hidden("Concat", widths, [static(2 * x.rank)], axis=0)
        padded = derived(f"{count.name}+", [a + b for a, b in zip(at, extent.at, strict=True)])
        maker.add("Pad", [x, pads], (*x.shape[:axis], padded, *x.shape[axis + 1 :]), x.dtype,
                  min(x.low, 0), max(x.high, 0))  # fmt: skip
    else:
        scalar = maker.constant(np.int64(0), share=True)
        one = maker.constant(np.int64(1), share=True)
        if kind == "range":
            end = maker._hidden("Reshape", [count, maker.constant(np.zeros(0, np.int64))], [])
            rows = maker._hidden("Range", [scalar, end, one], [shape[axis]])
            maker.moved("Gather", x, shape, rows, axis=axis)
            return
        if not maker.spells(extent):
            raise DeclinedError("no way to write the extent")
        whole = maker.spelled_one(extent)
        end = maker._hidden("Reshape", [whole, maker.constant(np.zeros(0, np.int64))], [])
        rows = maker._hidden("Range", [scalar, end, one], [extent])
        condition = maker.new([extent], "bool")
        maker.nodes.append(helper.make_node("Less", [rows.name, count.name], [condition.name]))
        maker.moved("Compress", x, shape, condition, axis=axis)


def _nodes_of_a_row(maker: Maker) -> tuple[list[onnx.NodeProto], Tensor]:
    """The nodes of a row, taken out of the graph, and a result of them."""
    rows = [r for r in ROWS if r.since <= maker.opset <= r.until and "any row" not in r.op]
    nodes, tensors, ends = len(maker.nodes), len(maker.tensors), len(maker.ends)
    maker.draws.weighted(rows, [r.weight for r in rows]).make(maker)
    taken = maker.nodes[nodes:]
    del maker.nodes[nodes:], maker.ends[ends:]
    made = {name for node in taken for name in node.output}
    new = maker.tensors[tensors:]
    results = [x for x in new if x.name in made and x.dtype in DTYPES and x.constant is None]
    maker.tensors[tensors:] = [x for x in new if x.name not in made]
    if not results:
        raise DeclinedError("results that no other node may read")
    return taken, results[-1]


@row("branch of any row", 1.2, since=11, idiom=True)
def _branch(maker: Maker) -> None:
    """The nodes of any row in a branch, beside a tensor that may have another extent."""
    draws = maker.draws
    nodes, x = _nodes_of_a_row(maker)
    chosen = [draws.below(2) for _ in range(BINDINGS)]
    shape = list(x.shape)
    if x.rank and draws.chance(0.3):
        shape[draws.below(x.rank)] = maker.symbol()
    other = maker.shaped(tuple(shape), x.dtype)
    one = maker.constant(np.int64(1), share=True)
    condition = maker.new([], "bool")
    number = _number(maker, chosen)
    maker.nodes.append(helper.make_node("Equal", [number.name, one.name], [condition.name]))
    nothing = maker.name("b")
    graphs = [
        helper.make_graph(nodes, "branch", [], [info(x.name, x)]),
        helper.make_graph(
            [helper.make_node("Identity", [other.name], [nothing])], "other", [],
            [info(nothing, other)],
        ),
    ]  # fmt: skip
    result = [
        a if a.at == b.at else derived(
            f"{condition.name}?{a.key}:{b.key}",
            [m if c else n for m, n, c in zip(a.at, b.at, chosen, strict=True)],
        )
        for a, b in zip(x.shape, other.shape, strict=True)
    ]  # fmt: skip
    y = maker.new(result, x.dtype, min(x.low, other.low), max(x.high, other.high))
    maker.node("If", [condition], [y], then_branch=graphs[0], else_branch=graphs[1])


@row("loop of any row", 1.0, since=13, idiom=True)
def _loop(maker: Maker) -> None:
    """The nodes of any row in a loop, which may read what it carries; their results are stacked."""
    draws = maker.draws
    x = maker.operand(("float32",), (1, 2, 3, 4), size=TAME)
    bound = x.size + TRIPS
    carried = maker.new(x.shape, x.dtype, -bound, bound)
    maker.tensors.append(carried)
    nodes, y = _nodes_of_a_row(maker)
    maker.tensors.remove(carried)
    flat, after, begun, stacked = (maker.name("b") for _ in range(4))
    number, go = maker.name("b"), maker.name("b")
    nodes += [
        helper.make_node("Tanh", [carried.name], [flat]),
        helper.make_node("Add", [flat, x.name], [after]),
        helper.make_node("Identity", [go], [begun]),
        helper.make_node("Identity", [y.name], [stacked]),
    ]
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        info(carried.name, x),
    ]
    outputs = [helper.make_tensor_value_info(begun, TensorProto.BOOL, []), info(after, x)]
    body = helper.make_graph(nodes, "body", inputs, [*outputs, info(stacked, y)])
    maker.spend([TRIPS * n for n in sizes(x)])
    last = maker.new(x.shape, x.dtype, -bound, bound)
    if draws.chance(0.4):
        trips = static(draws.pick((2, 1, TRIPS)))
        count = maker.constant(np.int64(trips.at[0]))
    else:
        at = [draws.below(TRIPS + 1) for _ in range(BINDINGS)]
        count = _number(maker, at)
        trips = derived(f"trips of {count.name}", at)
    every = maker.new((trips, *y.shape), y.dtype, y.low, y.high)
    maker.node("Loop", [count, None, x], [last, every], body=body)
