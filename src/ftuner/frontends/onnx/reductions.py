"""Operators that reduce axes, and operators composed of reductions: softmax and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL, INT32, INT64, UINT8
from ftuner.frontends.onnx.context import Context, Importer, NodeView, Table
from ftuner.frontends.onnx.reading import dtype_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.algebra import (
    apply,
    exp,
    fitting,
    isinf,
    log,
    malformed,
    origin,
    require,
    scalar,
    sqrt,
    unsupported,
    where,
)
from ftuner.graph.ir import Value

Reduce = Callable[[Context, Value, Sequence[int], bool], Value]
"""Reduces axes; the last argument says whether they are kept with extent 1."""


def _reduction(reduce: Reduce, axes_input_since: int = 18) -> Importer:
    """The importer of a Reduce* operator, whose axes are an input since some version and were an
    attribute before."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x, keep = node.input(0), node.flag("keepdims", True)
        axes: Sequence[int] = ()
        if node.opset < axes_input_since:
            axes = node.integers("axes", ())
        else:
            given = node.optional(1)
            if given is not None:
                axes = context.integers_of(given, "the axes")
        if not axes and not node.flag("noop_with_empty_axes"):
            axes = range(x.rank)
        return [reduce(context, x, context.axes(axes, x.rank), keep)]

    return convert


def _plain(kind: str) -> Reduce:
    def reduce(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
        if x.dtype != BOOL:
            return x.reduce(kind, axes, keep)
        return x.cast(UINT8).reduce(kind, axes, keep).cast(BOOL)

    return reduce


def _sum(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """A sum. The number of elements of a tensor that are true is an extent, too: exporters make
    room so for what they look up where a condition holds."""
    total = _plain("sum")(context, x, axes, keep)
    if total.dims is None and x.dtype in (INT32, INT64) and len(axes) == x.rank:
        condition = context.condition_of(x)
        if condition is not None:
            (_, count) = context.non_zero(condition, "true").shape
            context.builder.presume(total, (count,))
    return total


def _mean(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return x.mean(axes, keep)


def _absolute_sum(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return abs(x).reduce("sum", axes, keep)


def _square_sum(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return (x * x).reduce("sum", axes, keep)


def _length(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    squares = _square_sum(context, x.computed(), axes, keep)
    return sqrt(squares).cast(x.dtype)


def _log_sum(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    total = x.computed().reduce("sum", axes, keep)
    return log(total).cast(x.dtype)


def _log_sum_exp(context: Context, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """log(sum(exp(x))), with the largest element subtracted first so that nothing overflows."""
    computed = x.computed()
    largest = computed.reduce("maximum", axes)
    # An infinity minus an infinity would be NaN.
    zero = scalar(0, computed.dtype)
    largest = where(isinf(largest), zero, largest)
    powers = exp(computed - largest)
    total = log(powers.reduce("sum", axes))
    result = (total + largest).cast(x.dtype)
    return result if keep else result.squeeze(axes)


def _arg(kind: str) -> Importer:
    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x = node.input(0)
        axis = context.axis(node.integer("axis", 0), x.rank)
        last = node.flag("select_last_index")
        result = apply("arg_reduce", x, kind=kind, axis=axis, last=last)
        return [result.unsqueeze([axis]) if node.flag("keepdims", True) else result]

    return convert


def _softmax(log: bool) -> Importer:
    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x = node.input(0)
        if node.opset >= 13:
            axis = context.axis(node.integer("axis", -1), x.rank)
            return [apply("softmax", x, axis=axis, log=log)]
        # The axes from `axis` on are merged into one.
        axis = context.axis(node.integer("axis", 1), x.rank)
        flat = x.reshape((*x.shape[:axis], product(x.shape[axis:])))
        return [apply("softmax", flat, axis=axis, log=log).reshape(x.shape)]

    return convert


def _parameter(context: Context, value: Value, rank: int, whole: int) -> Value:
    """A scale or bias, reshaped to the number of normalised axes."""
    if value.rank > whole:
        raise malformed(f"a scale or bias {value.type} for {whole} axes")
    if value.rank > rank:
        return value.squeeze(range(value.rank - rank))
    return value.unsqueeze(range(rank - value.rank))


def _norm(
    context: Context, x: Value, parameters: Sequence[Value | None], axis: int, epsilon: float,
    rms: bool,
) -> Value:  # fmt: skip
    given = [_parameter(context, p, x.rank - axis, x.rank) for p in parameters if p is not None]
    return apply("norm", x, *given, axis=axis, epsilon=epsilon, rms=rms)


def epsilon_of(context: Context, node: NodeView, default: float) -> float:
    """The number that is added to a mean square or variance before the square root."""
    found = node.number("epsilon", default)
    if found < 0:
        raise malformed(f"epsilon is {found}; expected zero or more")
    return found


def expect_stash(context: Context, node: NodeView) -> None:
    """Raise GraphError unless the node's `stash_type` is a floating dtype; it has no other
    effect."""
    if node.has("stash_type"):
        what = f"{origin()}: attribute stash_type"
        found = dtype_of(node.integer("stash_type"), what)
        if found.kind != "float":
            raise malformed(f"stash_type is {found}; expected floats")


def _deviation(context: Context, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """1 / sqrt(mean(x^2) + epsilon)."""
    square = (x * x).mean(axes)
    root = sqrt(square + epsilon)
    return scalar(1, x.dtype) / root


def _statistics(
    context: Context, node: NodeView, x: Value, axis: int, epsilon: float
) -> list[Value]:
    """The mean and the inverse standard deviation, if the node has these outputs."""
    if not node.gives(1) and not node.gives(2):
        return []
    axes = range(axis, x.rank)
    mean = x.mean(axes)
    return [mean, _deviation(context, x - mean, axes, epsilon)]


def _layer_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    expect_stash(context, node)
    axis = context.axis(node.integer("axis", -1), x.rank)
    epsilon = epsilon_of(context, node, 1e-5)
    parameters = [node.input(1), node.optional(2)]
    result = _norm(context, x, parameters, axis, epsilon, rms=False)
    return [result, *_statistics(context, node, x, axis, epsilon)]


def _rms_norm(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    expect_stash(context, node)
    axis = context.axis(node.integer("axis", -1), x.rank)
    epsilon = epsilon_of(context, node, 1e-5)
    result = _norm(context, x, [node.input(1)], axis, epsilon, rms=True)
    if not node.gives(1):
        return [result]
    return [result, _deviation(context, x, range(axis, x.rank), epsilon)]


def _expect_row(context: Context, row: Value, x: Value) -> None:
    """Require that a scale or bias has one element for each element of the last axis."""
    if row.rank != 1:
        raise malformed(f"a scale or bias {row.type} for {x.type}")
    require(row.shape[0], x.shape[-1], f"scale or bias of {x.type}")


def _skip_norm(rms: bool) -> Importer:
    """The importer of the norm of a sum: input, skip connection and an optional bias."""

    def convert(context: Context, node: NodeView) -> Sequence[Value]:
        x, skip = node.input(0), node.input(1)
        what = f"{x.type} with a skipped {skip.type}"
        if x.rank not in (2, 3) or not 2 <= skip.rank <= x.rank:
            raise malformed(f"{what}; expected two axes or three each")
        # The whole batch may share one skip matrix.
        for have, wanted in zip(skip.shape[-2:], x.shape[-2:], strict=True):
            require(have, wanted, what)
        total = x + fitting(skip, x, "a skipped")
        bias = node.optional(3 if rms else 4)
        parameters = [node.input(2), None if rms else node.optional(3)]
        for row in (bias, *parameters):
            if row is not None:
                _expect_row(context, row, x)
        if bias is not None:
            total = total + bias
        axis = total.rank - 1
        epsilon = epsilon_of(context, node, 1e-5 if rms else 1e-12)
        result = _norm(context, total, parameters, axis, epsilon, rms)
        if rms:
            if node.gives(1):
                raise unsupported("the mean of a norm that has none")
            scale = result
            if node.gives(2):
                scale = _deviation(context, total, [axis], epsilon)
            return [result, result, scale, total]
        statistics = _statistics(context, node, total, axis, epsilon) or [result, result]
        return [result, *statistics, total]

    return convert


def _batch_norm(context: Context, node: NodeView) -> Sequence[Value]:
    """Normalise each channel (second axis) by given statistics, or in training by its own. Before
    opset 9, `spatial=0` has statistics for each element of an example."""
    x = node.input(0)
    if x.rank < 2:
        raise unsupported(f"a batch norm of {x.type}, which has no axis of channels")
    given = [node.input(i) for i in range(1, 5)]
    spatial = node.opset >= 9 or node.flag("spatial", True)
    normed, what = (x.shape[1:2], "channels") if spatial else (x.shape[1:], "elements")
    for v in given:
        if v.rank != len(normed):
            raise malformed(f"{v.type} for the {what} of {x.type}; expected {len(normed)} axes")
        for have, wanted in zip(v.shape, normed, strict=True):
            require(have, wanted, f"{v.type} for the {what} of {x.type}")
    across = (1,) * (x.rank - 1 - len(normed))
    scale, bias, mean, variance = (v.cast(x.dtype).reshape((*v.shape, *across)) for v in given)
    running: list[Value] = []
    if node.flag("training_mode"):
        axes = [axis for axis in range(x.rank) if axis != 1]
        momentum = node.number("momentum", 0.9)
        before = (mean, variance)
        mean = x.mean(axes).squeeze([0])
        centred = x - mean
        variance = (centred * centred).mean(axes).squeeze([0])
        for value, old, new in zip(given[2:], before, (mean, variance), strict=True):
            moved = old * momentum + new * (1 - momentum)
            running.append(moved.reshape(value.shape).cast(value.dtype))
    root = sqrt(variance + epsilon_of(context, node, 1e-5))
    normal = (x - mean) * (scale / root)
    return [normal + bias, *running]


_REDUCTIONS: dict[str, tuple[Reduce, int]] = {
    "ReduceL1": (_absolute_sum, 18),
    "ReduceL2": (_length, 18),
    "ReduceLogSum": (_log_sum, 18),
    "ReduceLogSumExp": (_log_sum_exp, 18),
    "ReduceMax": (_plain("maximum"), 18),
    "ReduceMean": (_mean, 18),
    "ReduceMin": (_plain("minimum"), 18),
    "ReduceProd": (_plain("product"), 18),
    "ReduceSum": (_sum, 13),
    "ReduceSumSquare": (_square_sum, 18),
}
"""Reductions by operator, with the version since which the axes are an input."""
REDUCTIONS: Table = {
    **{("", name): _reduction(*entry) for name, entry in _REDUCTIONS.items()},
    ("", "ArgMax"): _arg("argmax"),
    ("", "ArgMin"): _arg("argmin"),
    ("", "BatchNormalization"): _batch_norm,
    ("", "LayerNormalization"): _layer_norm,
    ("", "LogSoftmax"): _softmax(log=True),
    ("", "RMSNormalization"): _rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    ("", "Softmax"): _softmax(log=False),
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm(rms=False),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm(rms=True),
}
