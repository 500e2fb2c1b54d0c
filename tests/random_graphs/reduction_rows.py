"""Rows of operators that reduce axes, softmax and the norms."""

from __future__ import annotations

from collections.abc import Sequence

from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, ONE, Extent, times
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS, MICROSOFT, NUMBERS, TAME, Fill, Tensor

RANKS = (2, 1, 3, 4)
WILD = 1e38
"""Magnitude of what no row but that of products takes."""


def reduced(x: Tensor, axes: Sequence[int], keep: bool) -> list[Extent]:
    """The shape without some axes, or with one element along them."""
    if keep:
        return [ONE if i in axes else e for i, e in enumerate(x.shape)]
    return [e for i, e in enumerate(x.shape) if i not in axes]


def _axes(maker: Maker, x: Tensor) -> list[int]:
    kind = maker.draws.weighted(("last", "some", "all", "one"), (0.35, 0.35, 0.1, 0.2))
    if kind == "last" and x.rank:
        return [x.rank - 1]
    if kind == "one" and x.rank:
        return [maker.draws.below(x.rank)]
    return list(range(x.rank)) if kind == "all" else maker.draws.some(range(x.rank), min(x.rank, 1))


def reduce_node(
    maker: Maker, op: str, x: Tensor, axes: Sequence[int], keep: bool, low: float, high: float,
    since: int = 18,
) -> Tensor:  # fmt: skip
    """A node of the family Reduce*, whose axes became an input in some version."""
    shape = reduced(x, axes, keep)
    written = list(axes)
    if maker.opset >= 11 and maker.draws.chance(0.4):
        written = [a - x.rank for a in axes]
    flag = None if keep and maker.draws.chance(0.5) else int(keep)
    if list(axes) == list(range(x.rank)) and (not axes or maker.draws.chance(0.5)):
        return maker.add(op, [x], shape, x.dtype, low, high, keepdims=flag)
    if maker.opset >= since:
        return maker.add(op, [x, maker.integers(written)], shape, x.dtype, low, high, keepdims=flag)
    return maker.add(op, [x], shape, x.dtype, low, high, axes=written, keepdims=flag)


def _reduce(op: str, weight: float) -> None:
    since = 13 if op == "ReduceSum" else 18

    @row(op, weight)
    def make(maker: Maker) -> None:
        ranks = (2, 1, 3, 4, 0)
        wanted = (*NUMBERS, "bool") if op in ("ReduceMax", "ReduceMin") else NUMBERS
        x = maker.operand(dtypes_of(maker, op, wanted), ranks, size=1e6)
        if op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and not x.floating:
            raise DeclinedError("logarithms of integers")
        if op == "ReduceProd" and x.floating and maker.draws.chance(0.4):
            # Nothing else reads them, or what becomes of them.
            fill = Fill("wild", (-WILD,) * BINDINGS, (WILD,) * BINDINGS)
            x = maker.viewing(maker, maker.input(x.shape, x.dtype, fill))
            reduce_node(maker, op, x, _axes(maker, x), maker.draws.chance(0.5), -WILD, WILD, since)
            return
        axes = _axes(maker, x)
        count = max(times([x.shape[a] for a in axes]).most, 1)
        size = x.size
        if op == "ReduceProd":
            if x.floating or count > 8:
                if count > 64 or not x.floating:
                    raise DeclinedError("products grow")
                x = maker.tamed(x, -1.5, 1.5)
            size = max(x.size, 1.0) ** count
        elif op in ("ReduceSumSquare", "ReduceSum", "ReduceL1"):
            size = max(x.size, 1.0) ** 2 * count
        if op == "ReduceLogSum":
            x = maker.positive(x, 0.1)
        if op == "ReduceLogSumExp":
            x = maker.tamed(x, -30, 30) if maker.opset < 18 else x
        low = -size if not x.dtype.startswith("u") else 0
        noop = maker.opset >= since and maker.draws.chance(0.05)
        if noop:
            # No axes, and nothing is reduced. What else an operator does, it does.
            maker.add(op, [x], x.shape, x.dtype, low, size, noop_with_empty_axes=1)
            return
        reduce_node(maker, op, x, axes, maker.draws.chance(0.5), low, size, since)


for _name, _weight in (
    ("ReduceSum", 2.0), ("ReduceMean", 1.5), ("ReduceMax", 1.2), ("ReduceMin", 0.8),
    ("ReduceProd", 0.5), ("ReduceL1", 0.5), ("ReduceL2", 0.6), ("ReduceLogSum", 0.4),
    ("ReduceLogSumExp", 0.5), ("ReduceSumSquare", 0.6),
):  # fmt: skip
    _reduce(_name, _weight)


def _arg(op: str) -> None:
    @row(op, 0.8)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, NUMBERS), RANKS)
        axis = maker.draws.below(x.rank)
        if min(x.shape[axis].at) == 0:
            raise DeclinedError("nothing to choose from")
        keep = maker.draws.chance(0.5)
        written = axis - x.rank if maker.opset >= 11 and maker.draws.chance(0.4) else axis
        last = maker.draws.pick((None, 1, 0)) if maker.opset >= 12 else None
        maker.add(op, [x], reduced(x, [axis], keep), "int64", 0, x.shape[axis].most,
                  axis=written, keepdims=int(keep), select_last_index=last)  # fmt: skip


_arg("ArgMax")
_arg("ArgMin")


def _softmax(op: str, weight: float) -> None:
    @row(op, weight)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, FLOATS), RANKS)
        axis = x.rank - 1 if maker.draws.chance(0.6) else maker.draws.below(x.rank)
        written = axis - x.rank if maker.opset >= 11 and maker.draws.chance(0.5) else axis
        low = 0.0 if op == "Softmax" else -100.0
        maker.add(op, [x], x.shape, x.dtype, low, 1, axis=written)


_softmax("Softmax", 2.0)
_softmax("LogSoftmax", 0.7)


def parameter(maker: Maker, x: Tensor, axis: int) -> Tensor:
    """A scale or bias of the axes from one on."""
    return maker.shaped(x.shape[axis:], x.dtype, TAME)


def _not_empty(x: Tensor) -> Tensor:
    if any(0 in e.at for e in x.shape):
        raise DeclinedError("statistics of nothing")
    return x


def _norm(op: str, weight: float, since: int, rms: bool) -> None:
    @row(op, weight, since=since)
    def make(maker: Maker) -> None:
        # SimplifiedLayerNormalization is ONNX Runtime's, of no version of ONNX.
        dtypes = FLOATS if op == "LayerNormalization" else ("float32",)
        x = _not_empty(maker.operand(dtypes, RANKS, size=TAME))
        axis = x.rank - 1 if maker.draws.chance(0.7) else maker.draws.below(x.rank)
        operands = [x, parameter(maker, x, axis)]
        if not rms and maker.draws.chance(0.7):
            operands.append(parameter(maker, x, axis))
        epsilon = maker.draws.pick((None, 1e-5, 1e-3, 1e-6, 0.1))
        written = axis - x.rank if maker.draws.chance(0.5) else axis
        results = [maker.new(x.shape, x.dtype, -20, 20)]
        if op == "LayerNormalization" and x.dtype == "float32" and maker.draws.chance(0.15):
            kept = [*x.shape[:axis], *([ONE] * (x.rank - axis))]
            results += [maker.new(kept, x.dtype, -x.size, x.size), maker.new(kept, x.dtype, 0, 300)]
        maker.node(op, operands, results, axis=written, epsilon=epsilon)


_norm("LayerNormalization", 1.5, 17, False)
_norm("RMSNormalization", 1.0, 23, True)
_norm("SimplifiedLayerNormalization", 0.5, 13, True)


def _skip(op: str) -> None:
    rms = op != "SkipLayerNormalization"

    @row(op, 0.5, domain=MICROSOFT)
    def make(maker: Maker) -> None:
        x = _not_empty(maker.operand(("float32",), (3,), size=TAME))
        skip = maker.shaped(x.shape, x.dtype, TAME)
        operands: list[Tensor | None] = [x, skip, parameter(maker, x, 2)]
        for optional in range(1 if rms else 2):
            given = maker.draws.chance(0.6)
            operands.append(parameter(maker, x, 2) if given else None)
            assert optional < 2
        results: list[Tensor | None] = [maker.new(x.shape, x.dtype, -20, 20)]
        if maker.draws.chance(0.5):
            size = x.size + skip.size + 4
            results += [None, None, maker.new(x.shape, x.dtype, -size, size)]
        maker.node(op, operands, results, MICROSOFT, epsilon=maker.draws.pick((1e-5, 1e-3)))


_skip("SkipLayerNormalization")
_skip("SkipSimplifiedLayerNormalization")


@row("BatchNormalization", 1.0)
def _batch_norm(maker: Maker) -> None:
    x = _not_empty(maker.operand(FLOATS if maker.opset >= 9 else ("float32",), (2, 3, 4)))
    channels = x.shape[1]
    if not channels.static and maker.draws.chance(0.5):
        raise DeclinedError("channels are static")
    if channels.static and maker.draws.chance(0.8):
        n = channels.at[0]
        random = maker.random()
        scale, bias, mean = (
            maker.constant(random.standard_normal(n).astype(x.dtype)) for _ in range(3)
        )
        variance = maker.constant((random.random(n) + 0.3).astype(x.dtype))
    else:
        scale, bias, mean = (maker.shaped((channels,), x.dtype, TAME) for _ in range(3))
        variance = maker.positive(maker.shaped((channels,), x.dtype, TAME), 0.3)
    epsilon = maker.draws.pick((None, 1e-3, 1e-5))
    size = (x.size + mean.size) * max(scale.size, 1) * 2 + bias.size
    maker.add("BatchNormalization", [x, scale, bias, mean, variance], x.shape, x.dtype,
              -size, size, epsilon=epsilon)  # fmt: skip
