"""The rewrites that are patterns: what exporters write out, and what is computed instead."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ftuner.core.dim import maximum, minimum, product
from ftuner.core.dtype import BOOL, FLOAT32, HALF_DTYPES
from ftuner.core.functions import MAX_SLOPE, MIN_SLOPE, ROUNDINGS
from ftuner.graph import algebra
from ftuner.graph.algebra import apply, exp, iota, log, sigmoid, sqrt, tanh, where
from ftuner.graph.concat_placement import is_slice_along
from ftuner.graph.ir import Node, Value
from ftuner.graph.known_values import SAME_ELEMENTS
from ftuner.graph.ops.resampling import written_out
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.rewrite.matching import alone, named
from ftuner.graph.rewrite.rule import rule, together
from ftuner.graph.rewrite.surroundings import Surroundings, constant, near, scalar, scaled

Axes = tuple[int, ...]

# One form of what has several spellings. NaN and infinities stay what they are; this is why a power
# of one half stays: of minus infinity it is infinity, and a root is NaN.


@rule(lambda x, exponent: x**exponent)
def power(x: Value, exponent: float) -> Value | None:
    """A product is rounded at most once more than a power."""
    products = {-1: lambda: 1 / x, 2: lambda: x * x, 3: lambda: x * x * x}
    return products[int(exponent)]() if exponent in products else None


def _reshaped(x: Value) -> Value:
    return apply("reshape", x)


@rule(
    lambda x, matrices: _reshaped(apply("transpose", named(matrices, _reshaped(x)), perm=(0, 2, 1)))
)
def swapped(x: Value, matrices: Value) -> Value | None:
    """The last two axes of x exchanged, where the axes before them are merged for it and split
    again. PyTorch exports the keys of `scaled_dot_product_attention` so."""
    return x.swapped() if x.rank >= 3 and x.shape[-2:] == matrices.shape[-2:] else None


@rule(lambda x: _reshaped(_reshaped(x)))
def reshaped_once(x: Value, node: Node, around: Surroundings) -> Value | None:
    """Reshapes in a row are one of their source: what is reshaped may be an output otherwise, and
    written twice."""
    while (before := around.producer(x, "reshape")) is not None:
        (x,) = before.inputs
    shape = node.output.shape
    equal = product(x.shape) == product(shape)  # Else they are equal by a constraint.
    return apply("reshape", x, shape=shape) if equal else None


normal_form = together(power, swapped, reshaped_once)


# Activations read x once then, so that they can be the epilogue of a product.

_ROOT = math.sqrt(2 / math.pi)


@rule(lambda x: 0.5 * x * (1.0 + alone(apply("erf", math.sqrt(0.5) * x))))
def gelu(x: Value) -> Value:
    return apply("gelu", x)


@rule(lambda x: 0.5 * x * (1.0 + alone(tanh(_ROOT * (x + 0.044715 * x * x * x)))))
def gelu_tanh(x: Value) -> Value:
    return apply("gelu_tanh", x)


@rule(lambda x, slope: x * sigmoid(slope * x))
def silu(x: Value, slope: float) -> Value | None:
    """Quick gelu has a slope; very large and small ones are left alone."""
    if slope == 1:
        return apply("silu", x)
    return apply("swish", x, x.like(slope)) if MIN_SLOPE <= abs(slope) <= MAX_SLOPE else None


@rule(
    lambda x, high: x * (high / 6 * x + high / 2).at_least(0).at_most(high) / high,
    lambda x, high: x * (high / 6 * x + high / 2).at_most(high).at_least(0) / high,
)
def hard_swish(x: Value, high: float) -> Value | None:
    return apply("hard_swish", x) if high > 0 else None


@rule(lambda x: x * tanh(apply("softplus", x)))
def mish(x: Value) -> Value:
    return apply("mish", x)


# Functions that lose digits to cancellation where they are written out.


@rule(lambda x: 1 - apply("erf", x))
def erfc(x: Value) -> Value:
    return apply("erfc", x)


@rule(lambda x: exp(x) - 1, lambda x: exp(x) + -1)
def expm1(x: Value) -> Value:
    return algebra.expm1(x)


@rule(lambda x: log(sigmoid(x)))
def log_sigmoid(x: Value) -> Value:
    """The form that PyTorch exports. In float32, the sigmoid of -104 is zero, and that of 17 is
    one."""
    return -apply("softplus", -x)


activations = together(gelu, gelu_tanh, silu, hard_swish, mish, erfc, expm1, log_sigmoid)


# Choices that are written as sums of products with zeros and ones.


@rule("add", "subtract")
def choice(node: Node, around: Surroundings) -> Value | None:
    """Replace `x * m + number * (1 - m)`, m being zeros and ones, by a choice: as GPT (Radford et
    al., 2018) hides what is ahead. Where x is infinite and m is zero the sum would be NaN."""
    orders = (node.inputs, node.inputs[::-1]) if node.op == "add" else (node.inputs,)
    for kept, rest in orders:
        masked = around.producer(kept, "multiply")
        for x, mask in () if masked is None else (masked.inputs, masked.inputs[::-1]):
            number = _number(around, rest, mask)
            if number is None or not around.alike(x.shape, node.output.shape):
                continue
            shown = _booleans(around, mask)
            if shown is not None and x.dtype.kind == "float":
                return where(shown, x, number if node.op == "add" else -number)
    return None


def _constant(around: Surroundings, value: Value) -> Value | None:
    array = value.constant
    if array is None or not np.all((array == 0) | (array == 1)):
        return None
    return constant(f"{value.name}_booleans", BOOL, array != 0)


def _booleans(around: Surroundings, value: Value) -> Value | None:
    """Booleans that are true where a tensor is one; None if other numbers may be in it."""
    node = around.producer_of(value)
    if node is None:
        return around.once(_constant, value)
    if node.op == "cast" and node.inputs[0].dtype == BOOL:
        return node.inputs[0]
    source = _booleans(around, node.inputs[0]) if node.op in SAME_ELEMENTS else None
    return None if source is None else apply(node.op, source, **node.attributes)


def _number(around: Surroundings, rest: Value, mask: Value) -> float | None:
    """The number if `rest` is that number times (1 - mask)."""
    if rest.constant is not None and mask.constant is not None and rest.shape == mask.shape:
        ones, numbers = mask.constant == 1, np.unique(rest.constant[mask.constant != 1])
        single = len(numbers) == 1 and not rest.constant[ones].any()
        return float(numbers[0]) if single else None
    contrary, factor = scaled(around, rest)
    difference = around.producer(contrary, "subtract")
    if difference is None or scalar(difference.inputs[0]) != 1:
        return None
    if not math.isfinite(factor):
        # Zero times it is NaN where x is kept.
        return None
    return factor if difference.inputs[1] is mask else None


# Norms.


def _by_deviation(x: Value, axes: Axes, epsilon: Value) -> Value:
    return x / alone(sqrt((x * x).mean(axes) + epsilon))


def centred(x: Value, axes: Axes, epsilon: Value) -> Value:
    """The pattern of a layer norm without parameters."""
    return _by_deviation(x - x.mean(axes), axes, epsilon)


def _with_parameters(norm: Callable[..., Value]) -> tuple[Callable[..., Value], ...]:
    return (
        norm,
        lambda x, axes, epsilon, scale: alone(norm(x, axes, epsilon)) * scale,
        lambda x, axes, epsilon, scale, shift: alone(alone(norm(x, axes, epsilon)) * scale) + shift,
    )


def _norm(x: Value, axes: Axes, epsilon: float, rms: bool, *given: Value | None) -> Value | None:
    parameters = [value for value in given if value is not None]
    fits = all(value.shape == x.shape[-1:] for value in parameters)
    if axes != (x.rank - 1,) or not fits:
        return None
    return apply("norm", x, *parameters, axis=x.rank - 1, epsilon=epsilon, rms=rms)


@rule(*_with_parameters(centred))
def layer_norm(
    x: Value, axes: Axes, epsilon: float, scale: Value | None = None, shift: Value | None = None
) -> Value | None:
    """A norm over the last axis, with the scale and shift after it."""
    return _norm(x, axes, epsilon, False, scale, shift)


@rule(*_with_parameters(_by_deviation))
def rms_norm(
    x: Value, axes: Axes, epsilon: float, scale: Value | None = None, shift: Value | None = None
) -> Value | None:
    return _norm(x, axes, epsilon, True, scale, shift)


norms = together(layer_norm, rms_norm)


# Softmax.


def _below_largest(x: Value, axes: Axes) -> Value:
    return x - x.reduce("maximum", axes)


def _softmax(x: Value, axes: Axes) -> Value:
    power = alone(exp(_below_largest(x, axes)))
    return power / alone(power.reduce("sum", axes))


def _log_softmax(x: Value, axes: Axes) -> Value:
    below = _below_largest(x, axes)
    return below - alone(log(alone(alone(exp(below)).reduce("sum", axes))))


@rule(_softmax, _log_softmax)
def softmax(x: Value, axes: Axes, node: Node) -> Value | None:
    """`exp(x) / sum(exp(x))` is left alone: where the sum overflows it gives zero or NaN, and
    softmax gives neither."""
    is_log = node.op == "subtract"
    return apply("softmax", x, axis=axes[0], log=is_log) if len(axes) == 1 else None


@rule(
    lambda x, axes: apply("softmax", _below_largest(x, axes)),
    lambda x, axes, factor: apply("softmax", factor * _below_largest(x, axes)),
)
def plain_softmax(
    x: Value, axes: Axes, node: Node, around: Surroundings, factor: float = 1.0
) -> Value | None:
    """The softmax of differences from the largest element, as GPT-OSS has it, is that of the
    elements: a softmax subtracts the largest itself. The differences may be multiplied by a number
    from zero to one, or by what divides the elements, as in LayoutLMv3."""
    if axes != (node.attributes["axis"],) or not factor > 0:
        return None
    inner, divided = scaled(around, x)
    if near(factor * divided, 1.0, x.dtype):
        x, factor = inner, 1.0
    # Elements below the largest would overflow.
    return apply("softmax", x * factor, **node.attributes) if factor <= 1 else None


@rule(
    lambda x, wide, axis, log: apply(
        "cast", alone(apply("softmax", named(wide, apply("cast", x)), axis=axis, log=log))
    )
)
def narrow_softmax(x: Value, wide: Value, axis: int, log: bool) -> Value | None:
    """A softmax between a widening cast from half precision and a narrowing one is computed in
    float32 anyway, and the casts would hide the attention."""
    narrow = x.dtype.name in HALF_DTYPES and wide.dtype == FLOAT32
    return apply("softmax", x, axis=axis, log=log) if narrow else None


@rule(*ROUNDINGS)
def unrounded_softmax(node: Node, around: Surroundings) -> Value | None:
    """The rounding of a softmax, whose products a CPU computes in float32, would hide the attention
    as well."""
    (value,) = node.inputs
    reader = around.only_consumer(node.output)
    found = around.producer(value, "softmax") is not None and value.dtype == FLOAT32
    last = reader is not None and reader.op == "matmul" and around.only_consumer(value) is node
    return value if found and last else None


narrow_softmaxes = together(narrow_softmax, unrounded_softmax)


# Products, and moves of elements.


@rule("matmul")
def outer_product(node: Node) -> Value | None:
    """A product over an axis of extent 1 is fused into its reader. Models multiply positions by
    frequencies like this, which must not be rounded to tf32 even where products of float32 may
    be."""
    x, y = node.inputs
    return x * y if x.shape[-1] == y.shape[-2] == 1 else None


@rule(
    lambda x, late, early, axis: apply(
        "concat", named(late, apply("slice", x)), named(early, apply("slice", x)), axis=axis
    )
)
def roll(x: Value, late: Value, early: Value, axis: int, around: Surroundings) -> Value | None:
    """The later part of an axis before the earlier one, as torch.roll is exported, has elements at
    rolled positions: its reader takes that in, and it takes in what it reads. The last axis stays
    as it is, because its elements would be read one by one."""
    parts = [around.producer_of(part) for part in (late, early)]
    slices = [part for part in parts if part is not None and is_slice_along(part, axis)]
    if len(slices) != 2 or axis >= x.rank - 1:
        return None
    (start, begin), by = (part.attributes["starts"][axis] for part in slices), early.shape[axis]
    # A start beyond the end stands for the end.
    if begin != 0 or by not in (start, minimum(start, x.shape[axis])):
        return None
    later = iota(x.shape[axis], 1, 2) + apply("dims", dims=(by,))
    return apply("resample", x, later % apply("dims", dims=(x.shape[axis],)), axes=(axis,))


@rule("non_max_suppression")
def suppression(node: Node) -> Value:
    """A step computes which boxes are kept, and the host only collects them."""
    attributes = {**node.attributes}
    count = attributes.pop("count")
    return apply("kept_boxes", apply("suppress", *node.inputs, **attributes), count=count)


@rule("coupled_probabilities")
def coupling(node: Node) -> Value:
    """A step computes probabilities of classes."""
    return apply("couple", node.inputs[0])


# Operators of several axes become one for each axis, where that reads less. The largest element of
# 9 x 9 is the largest of nine that are the largest of nine each; elements outside the operand count
# in neither. Interpolation is a sum of sums in the same way.

PASS_ELEMENTS = 2
"""Elements of a window that take as long as writing and reading a result in between. Derived: a
store and a load."""


@rule("window_reduce")
def separate_windows(node: Node) -> Value | None:
    attributes, (x,) = node.attributes, node.inputs
    kernel, strides = attributes["kernel"], attributes["strides"]
    if attributes["kind"] == ARGMAX or not all(isinstance(n, int) for n in kernel):
        return None
    # Results in between are longer by the strides that are still to come.
    reads = [n * math.prod(strides[axis + 1 :]) for axis, n in enumerate(kernel)]
    # Elements apart along vectors are put together from as many loads.
    apart = 1 + strides[-1] if x.shape[-1] == 1 and strides[-1] > 1 else 1
    reads[-1] *= apart
    if sum(reads) + PASS_ELEMENTS * (len(kernel) - 1) >= math.prod(kernel) * apart:
        return None
    extents = list(x.shape[1:-1])
    for axis in range(len(kernel)):
        extents[axis] = attributes["extents"][axis]
        own = {"extents": tuple(extents), "kind": attributes["kind"]}
        for name, other in (("kernel", 1), ("strides", 1), ("dilations", 1), ("begin", 0)):
            values = [other] * len(kernel)
            values[axis] = attributes[name][axis]
            own[name] = tuple(values)
        x = apply("window_reduce", x, **own)
    return x


@rule("resample")
def separate_resampling(node: Node) -> Value | None:
    """Where elements are looked up along the last axis, unless few are summed of an axis that may
    shrink: of these lines fewer are left than a result in between would have. Where channels are
    last whole vectors are read instead, and a result in between would not pay."""
    x, *tables = node.inputs
    axes = node.attributes["axes"]
    count = len(axes)
    order = sorted(range(count), key=lambda number: axes[number])
    if count < 2 or x.rank - 1 not in axes:
        return None
    size = tables[order[-1]].shape[1]
    if maximum(size, x.shape[-1]) == size:
        # The look-ups of the last axis before there are more lines.
        order.reverse()
    elif written_out(tuple(table.shape[0] for table in tables[:count])):
        return None
    for number in order:
        x = apply("resample", x, *tables[number::count], axes=(axes[number],))
    return x


separate_axes = together(separate_windows, separate_resampling)
