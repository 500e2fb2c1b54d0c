"""Rows of loops."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS, Fill, Tensor

MOST_TRIPS = 12


def _info(name: str, x: Tensor) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
    return helper.make_tensor_value_info(name, element, [None] * x.rank)


def _branches(maker: Maker, name: str, x: Tensor) -> dict[str, onnx.GraphProto]:
    """Branches that read a value of the graph around them."""
    found = {}
    for branch in ("then_branch", "else_branch"):
        inner = maker.name(branch)
        op = maker.draws.pick(("Abs", "Neg", "Identity"))
        nodes = [helper.make_node(op, [name], [inner])]
        found[branch] = helper.make_graph(nodes, branch, [], [_info(inner, x)])
    return found


@row("Loop", 0.4, since=11)
def _loop(maker: Maker) -> None:
    """Carries a tensor that it adds another to, and may stack it; some iterations take another
    branch than others."""
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
    nodes.append(helper.make_node("Identity", [go], [begun]))
    stacks = maker.draws.chance(0.5)
    infos = [helper.make_tensor_value_info(begun, TensorProto.BOOL, []), _info(after, x)]
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        _info(carried, x),
    ]
    if stacks:
        nodes.append(helper.make_node("Neg", [after], [maker.name("b")]))
        infos.append(_info(nodes[-1].output[0], x))
    body = helper.make_graph(nodes, "body", inputs, infos)
    low, high = other.low - 1, other.high + 1
    bound = max(abs(low), abs(high))
    last = maker.new(x.shape, x.dtype, min(-bound, x.low), max(bound, x.high))
    if maker.draws.chance(0.5):
        trips = maker.draws.pick((1, 3, MOST_TRIPS))
        count = maker.constant(np.int64(trips))
        results = [maker.new((static(trips), *x.shape), x.dtype, -bound, bound)] if stacks else []
    else:
        fill = Fill("uniform", (0.0,) * BINDINGS, (float(MOST_TRIPS),) * BINDINGS)
        count = maker.input((), "int64", fill)
        results = []
    maker.spend(tuple(MOST_TRIPS * n for n in _sizes(x)))
    maker.node("Loop", [count, None, x], [last, *results], body=body)
    if stacks and not results:
        # Data tells its first extent, so that nothing reads it.
        maker.ends.append(maker.name())
        maker.nodes[-1].output.append(maker.ends[-1])


def _sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(int(np.prod([e.at[i] for e in x.shape])) for i in range(BINDINGS))


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
    inputs = [_info(state, part), _info(part.name, part)]
    body = helper.make_graph(nodes, "body", inputs, [_info(after, part), _info(out, part)])
    bound = max(abs(x.low), abs(x.high)) + 1
    last = maker.new(element, x.dtype, -bound, bound)
    to = maker.draws.below(x.rank)
    shape = (*element[:to], x.shape[axis], *element[to:])
    every = maker.new(shape, x.dtype, -bound, bound)
    maker.spend(_sizes(x))
    maker.node(
        "Scan", [first, x], [last, every], body=body, num_scan_inputs=1,
        scan_input_axes=[axis - maker.draws.pick((0, x.rank))],
        scan_input_directions=[maker.draws.pick((0, 1))],
        scan_output_axes=[to], scan_output_directions=[maker.draws.pick((0, 1))],
    )  # fmt: skip
