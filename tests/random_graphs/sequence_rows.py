"""Rows of sequences and optionals, which begin and end in tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import DTYPES, FLOATS, Tensor


def _sequence(maker: Maker, x: Tensor, length: int) -> tuple[str, list[Tensor]]:
    """The name of a sequence, and its tensors, of one shape."""
    values = [x] + [maker.shaped(x.shape, x.dtype) for _ in range(length - 1)]
    name = maker.name("s")
    names = [v.name for v in values]
    maker.nodes.append(helper.make_node("SequenceConstruct", names, [name]))
    return name, values


def _taken(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    """Take a tensor of a sequence."""
    at = maker.draws.below(len(values))
    back = maker.draws.chance(0.3)
    position = maker.constant(np.int64(at - len(values) if back else at))
    x = values[at]
    result = maker.new(x.shape, x.dtype, x.low, x.high)
    maker.node("SequenceAt", [], [result])
    maker.nodes[-1].input.extend([sequence, position.name])


def _enter(op: str, since: int, apply: Callable[[Maker, str, list[Tensor]], None]) -> None:
    @row(op, 0.15, since=since)
    def _row(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, "Identity", DTYPES), (1, 2, 3))
        apply(maker, *_sequence(maker, x, maker.draws.pick((1, 2, 3))))


def _inserted(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    after, new = maker.name("s"), values[0]
    names = [sequence, new.name]
    changed = [*values, new]
    if maker.draws.chance(0.5):
        at = maker.draws.below(len(values) + 1)
        names.append(maker.constant(np.int64(at)).name)
        changed = [*values[:at], new, *values[at:]]
    maker.nodes.append(helper.make_node("SequenceInsert", names, [after]))
    _taken(maker, after, changed)


def _erased(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    if len(values) < 2:
        raise DeclinedError("nothing would be left")
    after, at = maker.name("s"), maker.draws.below(len(values))
    names = [sequence, maker.constant(np.int64(at)).name]
    maker.nodes.append(helper.make_node("SequenceErase", names, [after]))
    _taken(maker, after, [*values[:at], *values[at + 1 :]])


def _begun(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    x = values[0]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
    empty, after = maker.name("s"), maker.name("s")
    maker.nodes += [
        helper.make_node("SequenceEmpty", [], [empty], dtype=element),
        helper.make_node("SequenceInsert", [empty, x.name], [after]),
    ]
    _taken(maker, after, [x])


def _counted(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    maker.add("SequenceLength", [], [], "int64", len(values), len(values))
    maker.nodes[-1].input.append(sequence)


def _stacked(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    x, count = values[0], len(values)
    low, high = min(v.low for v in values), max(v.high for v in values)
    axis = maker.draws.below(x.rank + 1)
    shape = (*x.shape[:axis], static(count), *x.shape[axis:])
    maker.add("ConcatFromSequence", [], shape, x.dtype, low, high, axis=axis, new_axis=1)
    maker.nodes[-1].input.append(sequence)


def _mapped(maker: Maker, sequence: str, values: list[Tensor]) -> None:
    x, after = values[0], maker.name("s")
    if x.dtype not in FLOATS:
        raise DeclinedError("no Tanh of these")
    given, found = maker.name("b"), maker.name("b")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
    infos = [helper.make_tensor_value_info(n, element, [None] * x.rank) for n in (given, found)]
    nodes = [helper.make_node("Tanh", [given], [found])]
    body = helper.make_graph(nodes, "body", infos[:1], infos[1:])
    maker.nodes.append(helper.make_node("SequenceMap", [sequence], [after], body=body))
    _taken(maker, after, [maker.new(v.shape, v.dtype) for v in values])


_enter("SequenceConstruct", 11, _taken)
_enter("SequenceAt", 11, _taken)
_enter("SequenceInsert", 11, _inserted)
_enter("SequenceErase", 11, _erased)
_enter("SequenceEmpty", 11, _begun)
_enter("SequenceLength", 11, _counted)
_enter("ConcatFromSequence", 11, _stacked)
_enter("SequenceMap", 17, _mapped)


@row("SplitToSequence", 0.15, since=11)
def _split(maker: Maker) -> None:
    """A tensor of an axis of any extent, taken from its pieces or put together of them again."""
    x = maker.operand(dtypes_of(maker, "Identity", DTYPES), (1, 2, 3))
    axis = maker.draws.below(x.rank)
    whole = x.shape[axis]
    if min(whole.at) < 1:
        raise DeclinedError("as many tensors as run time says")
    name = maker.name("s")
    keepdims = maker.draws.below(2)
    node = helper.make_node("SplitToSequence", [x.name], [name], axis=axis, keepdims=keepdims)
    maker.nodes.append(node)
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    if maker.draws.chance(0.4):
        at = axis if keepdims else maker.draws.below(x.rank)
        shape = (*rest[:at], whole, *rest[at:])
        maker.add("ConcatFromSequence", [], shape, x.dtype, x.low, x.high,
                  axis=at, new_axis=1 - keepdims)  # fmt: skip
        maker.nodes[-1].input.append(name)
        return
    element = (*x.shape[:axis], ONE, *x.shape[axis + 1 :]) if keepdims else rest
    _taken(maker, name, [maker.new(element, x.dtype, x.low, x.high)] * min(whole.at))


@row("Optional", 0.1, since=15)
def _optional(maker: Maker) -> None:
    _wrapped(maker, "OptionalGetElement")


@row("OptionalGetElement", 0.1, since=15)
def _get_element(maker: Maker) -> None:
    _wrapped(maker, "OptionalGetElement")


@row("OptionalHasElement", 0.1, since=15)
def _has_element(maker: Maker) -> None:
    _wrapped(maker, "OptionalHasElement")


def _wrapped(maker: Maker, op: str) -> None:
    x = maker.operand(dtypes_of(maker, "Identity", DTYPES), (1, 2, 3))
    name = maker.name("o")
    if op == "OptionalHasElement" and maker.draws.chance(0.5):
        type_ = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
        maker.nodes.append(helper.make_node("Optional", [], [name], type=type_))
    else:
        maker.nodes.append(helper.make_node("Optional", [x.name], [name]))
    if op == "OptionalHasElement":
        maker.add(op, [], [], "bool", 0, 1)
    else:
        maker.add(op, [], x.shape, x.dtype, x.low, x.high)
    maker.nodes[-1].input.append(name)
