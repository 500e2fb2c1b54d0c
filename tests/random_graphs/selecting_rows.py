"""Rows of operators that select or place elements by computed positions."""

from __future__ import annotations

from onnx import helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import DTYPES, FLOATS, NUMBERS, Fill


@row("Compress", 0.3, since=9)
def _compress(maker: Maker) -> None:
    """Its result has as many elements as data says, so that nothing reads it."""
    x = maker.operand(dtypes_of(maker, "Compress", DTYPES), (1, 2, 3))
    axis = maker.draws.below(x.rank)
    condition = maker.input((x.shape[axis],), "bool", Fill("bool"))
    found = maker.name()
    maker.nodes.append(helper.make_node("Compress", [x.name, condition.name], [found], axis=axis))
    maker.ends.append(found)


@row("EyeLike", 0.3, since=9)
def _eye_like(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "EyeLike", NUMBERS), (2,))
    maker.add("EyeLike", [x], x.shape, x.dtype, 0, 1, k=maker.draws.pick((None, 0, 1, -2, 50)))


@row("Hardmax", 0.4)
def _hardmax(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "Hardmax", FLOATS), (1, 2, 3, 4))
    low = 0 if maker.opset < 13 else maker.draws.below(x.rank)
    axis = low if maker.opset < 13 or maker.draws.chance(0.6) else low - x.rank
    if min(min(e.at) for e in x.shape) < 1:
        axis = None
    maker.add("Hardmax", [x], x.shape, x.dtype, 0, 1, axis=axis)


@row("ReverseSequence", 0.3, since=10)
def _reverse_sequence(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "ReverseSequence", DTYPES), (2, 3, 4))
    time = maker.draws.below(2)
    most = tuple(float(n) + 1 for n in x.shape[time].at)
    lengths = maker.input(
        (x.shape[1 - time],), "int64", Fill("uniform", tuple(min(1.0, n - 1) for n in most), most)
    )
    maker.moved("ReverseSequence", x, x.shape, lengths,
        time_axis=time, batch_axis=1 - time,
    )  # fmt: skip


@row("TensorScatter", 0.4, since=24)
def _tensor_scatter(maker: Maker) -> None:
    x = maker.operand(dtypes_of(maker, "TensorScatter", DTYPES), (3, 4), size=1e4)
    axis = maker.draws.pick((-2, 1))
    at = axis % x.rank
    count = maker.draws.pick((1, 2, 3))
    room = [n - count for n in x.shape[at].at]
    if min(room) < 0:
        count, room = 0, list(x.shape[at].at)
    shape = (*x.shape[:at], static(count), *x.shape[at + 1 :])
    update = maker.shaped(shape, x.dtype, 1e4)
    start = maker.input(
        x.shape[:1], "int64", Fill("uniform", (0.0,) * BINDINGS, tuple(n + 1.0 for n in room))
    )
    mode = maker.draws.pick((None, "linear", "circular"))
    maker.add(
        "TensorScatter", [x, update, start], x.shape, x.dtype, -1e4, 1e4, axis=axis, mode=mode
    )


@row("Unique", 0.3, since=11)
def _unique(maker: Maker) -> None:
    """Its first result has as many elements as data says; by the third they are put together
    again. Peers have orders of their own for NaN."""
    draws = maker.draws
    dtypes = dtypes_of(maker, "Unique", ("int64", "float32", "int8", "float64", "int32", "bool"))
    if draws.chance(0.5):
        x = maker.operand(tuple(t for t in dtypes if t not in FLOATS), (1, 2, 3))
    else:
        dtype = maker.dtype(dtypes)
        fill = maker.fill(dtype) if dtype not in FLOATS else Fill("ties")
        x = maker.viewing(maker, maker.input(maker.some_shape((1, 2, 3)), dtype, fill))
    axis = draws.below(x.rank) if x.rank and draws.chance(0.5) else None
    if axis is not None and any(0 in e.at for e in x.shape):
        raise DeclinedError("parts of nothing: onnxruntime ends the process")
    shape = x.shape if axis is not None else (times(x.shape),)
    extent = shape[axis or 0]
    found = maker.new(x.shape, x.dtype, x.low, x.high)
    numbers = maker.new((extent,), "int64", 0, extent.most)
    others = [maker.name() if draws.chance(0.5) else "" for _ in range(2)]
    names = [found.name, others[0], numbers.name, others[1]]
    attributes = {"axis": axis, "sorted": draws.pick((None, 1, 0))}
    given = {name: value for name, value in attributes.items() if value is not None}
    maker.nodes.append(helper.make_node("Unique", [x.name], names, **given))
    maker.ends += [name for name in (found.name, *others) if name]
    maker.add("Gather", [found, numbers], shape, x.dtype, x.low, x.high, axis=axis)
