"""Rows of loops."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, elements, static
from tests.random_graphs.indexing_rows import indices
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS, Fill, Tensor

MOST_TRIPS = 12


def info(name: str, x: Tensor) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
    return helper.make_tensor_value_info(name, element, [None] * x.rank)


def _branches(maker: Maker, name: str, x: Tensor) -> dict[str, onnx.GraphProto]:
    """Branches that read a value of the graph around them."""
    found = {}
    for branch in ("then_branch", "else_branch"):
        inner = maker.name(branch)
        op = maker.draws.pick(("Abs", "Neg", "Identity"))
        nodes = [helper.make_node(op, [name], [inner])]
        found[branch] = helper.make_graph(nodes, branch, [], [info(inner, x)])
    return found


@row("Loop", 0.4, since=11)
def _loop(maker: Maker) -> None:
    """Carries a tensor that it adds another to, and may stack it or append it to a sequence; some
    iterations take another branch than others, or add a part that their number chooses."""
    x = maker.operand(dtypes_of(maker, "Tanh", FLOATS), (1, 2, 3))
    other = maker.shaped(x.shape, x.dtype)
    number, go, carried, flat, total, after = (maker.name("b") for _ in range(6))
    odd, limit, begun = (maker.name("b") for _ in range(3))
    nodes = [
        helper.make_node("Tanh", [carried], [flat]),
        helper.make_node("Add", [flat, other.name], [total]),
    ]
    if maker.draws.chance(0.5):
        value = helper.make_tensor(limit, TensorProto.INT64, [], [maker.draws.pick((0, 2, 5))])
        nodes += [
            helper.make_node("Constant", [], [limit], value=value),
            helper.make_node("Less", [number, limit], [odd]),
            helper.make_node("If", [odd], [after], **_branches(maker, total, x)),
        ]
    else:
        nodes.append(helper.make_node("Identity", [total], [after]))
    spread = 1.0
    if maker.opset >= 13 and x.rank and maker.draws.chance(0.3):
        part = _part(maker, nodes, x, number, flat)
        spread += max(sizes(x))
        before, after = after, maker.name("b")
        nodes.append(helper.make_node("Add", [before, part], [after]))
    nodes.append(helper.make_node("Identity", [go], [begun]))
    stacks = maker.draws.chance(0.5)
    known = maker.draws.chance(0.5)
    # Tensors of one shape: how often they are appended may come at run time.
    alike = all(extent.static for extent in (*x.shape, *other.shape))
    appends = maker.opset >= 13 and (known or alike) and maker.draws.chance(0.3)
    infos = [helper.make_tensor_value_info(begun, TensorProto.BOOL, []), info(after, x)]
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        info(carried, x),
    ]
    if stacks:
        nodes.append(helper.make_node("Neg", [after], [maker.name("b")]))
        infos.append(info(nodes[-1].output[0], x))
    if appends:
        given, grown = (maker.name("s") for _ in range(2))
        element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
        nodes.append(helper.make_node("SequenceInsert", [given, after], [grown]))
        inputs.append(helper.make_tensor_sequence_value_info(given, element, None))
        infos.insert(2, helper.make_tensor_sequence_value_info(grown, element, None))
    body = helper.make_graph(nodes, "body", inputs, infos)
    low, high = other.low - spread, other.high + spread
    bound = max(abs(low), abs(high))
    last = maker.new(x.shape, x.dtype, min(-bound, x.low), max(bound, x.high))
    trips = 0
    results = []
    if known:
        trips = maker.draws.pick((1, 3, MOST_TRIPS))
        count = maker.constant(np.int64(trips))
        results = [maker.new((static(trips), *x.shape), x.dtype, -bound, bound)] if stacks else []
    else:
        fill = Fill("uniform", (0.0,) * BINDINGS, (float(MOST_TRIPS),) * BINDINGS)
        count = maker.input((), "int64", fill)
    maker.spend(tuple(MOST_TRIPS * n for n in sizes(x)))
    if not appends:
        maker.node("Loop", [count, None, x], [last, *results], body=body)
        loop = maker.nodes[-1]
    else:
        before, sequence = maker.name("s"), maker.name("s")
        element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
        if maker.draws.chance(0.5):
            maker.nodes.append(helper.make_node("SequenceEmpty", [], [before], dtype=element))
            first = 0
        else:
            maker.nodes.append(helper.make_node("SequenceConstruct", [x.name], [before]))
            first = 1
        maker.node("Loop", [count, None, x], [last], body=body)
        loop = maker.nodes[-1]
        loop.input.append(before)
        loop.output.append(sequence)
        loop.output.extend(y.name for y in results)
        maker.tensors.extend(results)
        if trips:
            _joined(maker, sequence, x, trips + first, bound)
    if stacks and not results:
        # Data tells its first extent, so that nothing reads it.
        maker.ends.append(maker.name())
        loop.output.append(maker.ends[-1])


def _part(maker: Maker, nodes: list[onnx.NodeProto], x: Tensor, number: str, read: str) -> str:
    """The sum, along an axis that is kept, of a slice of a tensor of the shape of x, whose bounds
    are computed from the number of the iteration."""
    axis, step = maker.draws.below(x.rank), maker.draws.pick((1, 1, 2, -1))
    row, begin, end, piece, total = (maker.name("b") for _ in range(5))
    constants = {
        maker.name("b"): values
        for values in ([0], [maker.draws.below(5) - 2], [maker.draws.below(7) - 2], [axis], [step])
    }
    nodes += [
        helper.make_node(
            "Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [1], values)
        )
        for name, values in constants.items()
    ]  # fmt: skip
    zero, first, last, along, by = constants
    nodes += [
        helper.make_node("Unsqueeze", [number, zero], [row]),
        helper.make_node("Add", [row, first], [begin]),
        helper.make_node("Add", [row, last], [end]),
        helper.make_node("Slice", [read, begin, end, along, by], [piece]),
        helper.make_node("ReduceSum", [piece, along], [total], keepdims=1),
    ]
    return total


def _joined(maker: Maker, sequence: str, x: Tensor, count: int, bound: float) -> None:
    """The tensors of a sequence, one after the other along an axis of theirs or along a new one."""
    fixed = [n for n, extent in enumerate(x.shape) if extent.static]
    bound = max(bound, abs(x.low), abs(x.high))
    if fixed and maker.draws.chance(0.5):
        axis = maker.draws.pick(fixed)
        shape = (*x.shape[:axis], static(count * x.shape[axis].at[0]), *x.shape[axis + 1 :])
        maker.add("ConcatFromSequence", [], shape, x.dtype, -bound, bound, axis=axis)
    else:
        axis = maker.draws.below(x.rank + 1)
        shape = (*x.shape[:axis], static(count), *x.shape[axis:])
        maker.add("ConcatFromSequence", [], shape, x.dtype, -bound, bound, axis=axis, new_axis=1)
    maker.nodes[-1].input.append(sequence)


def sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(int(np.prod([e.at[i] for e in x.shape])) for i in range(BINDINGS))


@row("loop over bags", 0.4, since=13, idiom=True)
def _bags(maker: Maker) -> None:
    """Sums the rows from one position to another, which are data: of a tensor, or those of it that
    indices choose. Each may have a weight."""
    x = maker.operand(dtypes_of(maker, "ReduceSum", FLOATS), (1, 2, 3))
    count = maker.extent(zero=0.0, large=0.0)
    if min(count.at) < 1:
        raise DeclinedError("of no iteration, onnxruntime has other extents")
    rows = x.shape[0] if maker.draws.chance(0.5) else maker.extent()
    ids = None if rows is x.shape[0] else indices(maker, (rows,), x.shape[0])
    fill = Fill("uniform", (-2.0,) * BINDINGS, tuple(n + 2.0 for n in rows.at))
    bounds = [maker.input((count,), "int64", fill) for _ in range(2)]
    number, go, begun, total = (maker.name("b") for _ in range(4))
    zero, last = maker.integers([0]).name, [*range(1, x.rank)]
    nodes = [helper.make_node("Identity", [go], [begun])]

    def made(op: str, *inputs: str, result: str = "", **attributes: int) -> str:
        nodes.append(helper.make_node(op, inputs, [result or maker.name("b")], **attributes))
        return str(nodes[-1].output[0])

    at = [made("Unsqueeze", made("Gather", bound.name, number), zero) for bound in bounds]
    if ids is None:
        part = made("Slice", x.name, *at, zero)
    else:
        part = made("Gather", x.name, made("Slice", ids.name, *at, zero))
    size = x.size
    if maker.draws.chance(0.5):
        weights = maker.shaped((rows,), x.dtype)
        own = made("Slice", weights.name, *at, zero)
        column = made("Unsqueeze", own, maker.integers(last).name) if last else own
        part, size = made("Mul", part, column), size * weights.size
    made("ReduceSum", part, zero, result=total, keepdims=0)
    size *= max(rows.most, 1)
    stacked = maker.new((count, *x.shape[1:]), x.dtype, -size, size)
    element = Tensor(total, x.dtype, x.shape[1:], -size, size)
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(begun, TensorProto.BOOL, []), info(total, element)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    each = zip(elements(x.shape[1:]), rows.at, count.at, strict=True)
    maker.spend(tuple(n * m * k for n, m, k in each))
    trips = maker.add("Size", [bounds[0]], (), "int64", 0, count.most)
    maker.node("Loop", [trips, maker.constant(np.array(True))], [stacked], body=body)


@row("Scan", 0.4, since=9)
def _scan(maker: Maker) -> None:
    """Adds up rows or columns, from either end, and stacks the sums."""
    x = maker.operand(dtypes_of(maker, "Tanh", FLOATS), (2, 3))
    axis = maker.draws.below(x.rank)
    element = (*x.shape[:axis], *x.shape[axis + 1 :])
    if min(x.shape[axis].at) < 1:
        raise DeclinedError("nothing to scan")
    part = Tensor(maker.name("b"), x.dtype, element, x.low, x.high)
    first = maker.shaped(element, x.dtype)
    state, flat, after, out = (maker.name("b") for _ in range(4))
    nodes = [
        helper.make_node("Tanh", [state], [flat]),
        helper.make_node("Add", [flat, part.name], [after]),
        helper.make_node("Neg", [after], [out]),
    ]
    inputs = [info(state, part), info(part.name, part)]
    body = helper.make_graph(nodes, "body", inputs, [info(after, part), info(out, part)])
    bound = max(abs(x.low), abs(x.high)) + 1
    last = maker.new(element, x.dtype, -bound, bound)
    to = maker.draws.below(x.rank)
    shape = (*element[:to], x.shape[axis], *element[to:])
    every = maker.new(shape, x.dtype, -bound, bound)
    maker.spend(sizes(x))
    maker.node(
        "Scan", [first, x], [last, every], body=body, num_scan_inputs=1,
        scan_input_axes=[axis - maker.draws.pick((0, x.rank))],
        scan_input_directions=[maker.draws.pick((0, 1))],
        scan_output_axes=[to], scan_output_directions=[maker.draws.pick((0, 1))],
    )  # fmt: skip
