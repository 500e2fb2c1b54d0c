"""Windows over spatial axes, and convolution.

The graph's operators are channels last, those of front ends channels first: each transposes its
operand and its result, and the pass `channels_last` removes the transpositions between such
operators.
"""

from __future__ import annotations

from ftuner.core.dim import Dim, Shape, ceil_quotient, maximum, minimum, quotient
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import apply
from ftuner.graph.checks import expect_shape, malformed, require
from ftuner.graph.ir import Value

FARTHEST = 1 << 40
"""Elements that no axis has: they would take terabytes."""


def channels_last(x: Value) -> Value:
    """The channels (second axis) last."""
    return x.moved(1, x.rank - 1)


def channels_first(x: Value) -> Value:
    """The channels (last axis) second."""
    return x.moved(x.rank - 1, 1)


@dataclass(frozen=True)
class Window:
    """A window as a node describes it; one entry for each spatial axis."""

    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: Shape
    end: Shape
    extents: Shape
    """Of the result."""
    cut: bool = False
    """Whether a window may reach beyond the padded operand."""

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def pads(self) -> bool:
        return any(n != 0 for n in (*self.begin, *self.end))

    def attributes(self) -> dict[str, tuple[Dim, ...]]:
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "begin": self.begin,
            "extents": self.extents,
        }


def placed(
    x: Value, kernel: Shape, strides: tuple[int, ...], dilations: tuple[int, ...], before: Shape,
    after: Shape, auto: str = "NOTSET", rounds_up: bool = False, cuts: bool = False,
) -> Window:  # fmt: skip
    """A window on x, channels first.

    Args:
        before, after: padding along each spatial axis.
        auto: `SAME_UPPER` or `SAME_LOWER` if the padding is what keeps the extents, `VALID` if
            there is none.
        rounds_up: whether a last window may be incomplete.
        cuts: whether windows that are larger than the padded x are cut, as those of pools are in
            onnxruntime: where extents round up, or are known.
    """
    begin, end, extents, cut = [], [], [], rounds_up
    for axis, n in enumerate(x.shape[2:]):
        stride = strides[axis]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if auto.startswith("SAME"):
            count = ceil_quotient(n, stride)
            total = maximum((count - 1) * stride + reach - n, 0)
            half = quotient(total, 2)
            pair = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
        else:
            pair = (0, 0) if auto == "VALID" else (before[axis], after[axis])
            padded = n + pair[0] + pair[1]
            what = f"a window of {reach} along spatial axis {axis} of {x.type}, padded to {padded}"
            left = padded - reach
            larger = isinstance(left, int) and left < 0
            if cuts and (rounds_up or larger):
                cut = True
                count = ceil_quotient(left, stride) + 1
                require(minimum(minimum(n, count), 1), 1, what)
            else:
                require(minimum(reach, padded), reach, what)
                count = quotient(left, stride) + 1
            if rounds_up:
                # A window begins within the operand or before it.
                count = minimum(count, ceil_quotient(n + pair[0], stride))
        begin.append(pair[0])
        end.append(pair[1])
        extents.append(count)
    return Window(kernel, strides, dilations, tuple(begin), tuple(end), tuple(extents), cut)


def with_bias(result: Value, bias: Value | None) -> Value:
    """The sum of a tensor and its bias, if there is one: an element for each column."""
    if bias is None:
        return result
    what = f"the bias {bias.type} of {result.type}"
    if not result.rank:
        raise malformed(what)
    expect_shape(bias, result.shape[-1:], what)
    return result + bias


def convolved(x: Value, w: Value, window: Window, groups: int) -> Value:
    """The convolution of x, channels last, by w of (K..., C, channels)."""
    steps_alone = window.kernel == window.strides == (1,) * window.rank
    if steps_alone and groups == 1 and not window.pads and window.extents == x.shape[1:-1]:
        # A product of every position by one matrix.
        require(x.shape[-1], w.shape[-2], f"convolution of {x.type} by {w.type}")
        return x @ w.reshape(w.shape[-2:])
    return apply("convolution", x, w, groups=groups, **window.attributes())
