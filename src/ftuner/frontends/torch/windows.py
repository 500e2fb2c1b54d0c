"""Operators on windows: convolutions, transposed ones, and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, Shape, ceil_quotient, maximum, product, quotient
from ftuner.core.dtype import INT64
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, gather, iota, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.compositions import pooling
from ftuner.graph.compositions.transposed import transposed as transposed_convolution
from ftuner.graph.compositions.windows import (
    Window,
    channels_first,
    channels_last,
    convolved,
    placed,
    with_bias,
)
from ftuner.graph.ir import Value

Ints = int | Sequence[int]


def each(given: Ints, rank: int) -> tuple[int, ...]:
    """One number for each spatial axis, of which torch may give one for all."""
    found = (given,) if isinstance(given, int) else tuple(given)
    if len(found) not in (1, rank):
        raise malformed(f"{list(found)} for {rank} spatial axes")
    return found * rank if len(found) == 1 else found


def batched(x: Value, rank: int) -> tuple[Value, bool]:
    """x with an axis of batches, and whether it had none."""
    return (x.unsqueeze([0]), True) if x.rank == rank + 1 else (x, False)


def _alone(x: Value, alone: bool) -> Value:
    return x.squeeze([0]) if alone else x


def _convolution(
    x: Value, weight: Value, bias: Value | None, strides: Ints, before: Shape, after: Shape,
    dilations: Ints, groups: int,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    if x.dtype.kind != "float":
        raise unsupported(f"a convolution of {x.type}")
    if any(isinstance(n, int) and n < 1 for n in weight.shape[2:]):
        raise malformed(f"an empty window: the weight is {weight.type}")
    x, alone = batched(x, rank)
    window = placed(x, weight.shape[2:], each(strides, rank), each(dilations, rank), before, after)
    turned = weight.transpose((*range(2, weight.rank), 1, 0))
    found = with_bias(convolved(channels_last(x), turned, window, groups), bias)
    return _alone(channels_first(found), alone)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution_padded(
    input: Value, weight: Value, bias: Value | None = None, stride: Ints = 1,
    padding: str = "valid", dilation: Ints = 1, groups: int = 1,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    before: tuple[Dim, ...] = (0,) * rank
    after = before
    if padding == "same":
        pairs = zip(weight.shape[2:], each(dilation, rank), strict=True)
        total = [d * (k - 1) for k, d in pairs]
        before = tuple(quotient(n, 2) for n in total)
        after = tuple(n - b for n, b in zip(total, before, strict=True))
    return _convolution(input, weight, bias, stride, before, after, dilation, groups)


def _transposed(
    x: Value, weight: Value, bias: Value | None, stride: Ints, padding: Ints, output_padding: Ints,
    groups: int, dilation: Ints,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    if x.dtype.kind != "float":
        raise unsupported(f"a convolution of {x.type}")
    kernel = [n for n in weight.shape[2:] if isinstance(n, int)]
    if len(kernel) < rank:
        raise unsupported(f"a transposed convolution by {weight.type}, a window that varies")
    x, alone = batched(x, rank)
    require(x.shape[1], weight.shape[0], f"convolution of {x.type} by {weight.type}")
    strides, dilations, begin = (each(n, rank) for n in (stride, dilation, padding))
    extents = tuple(
        (n - 1) * s + (k - 1) * d + 1 + more - 2 * pad
        for n, k, s, d, pad, more in zip(
            x.shape[2:], kernel, strides, dilations, begin, each(output_padding, rank), strict=True
        )
    )
    found = transposed_convolution(
        x, weight, bias, groups, kernel, strides, dilations, begin, extents
    )
    return _alone(found, alone)


@aten("convolution", "conv1d", "conv2d", "conv3d")
@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", transposed=True)
def _any_convolution(
    input: Value, weight: Value, bias: Value | None = None, stride: Ints = 1, padding: Ints = 0,
    dilation: Ints = 1, groups: int = 1, output_padding: Ints = 0, transposed: bool = False,
) -> Value:  # fmt: skip
    """A convolution, zeros around it, or a transposed one."""
    if transposed:
        return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)
    pads = each(padding, weight.rank - 2)
    return _convolution(input, weight, bias, stride, pads, pads, dilation, groups)


# Pools.


def _window(
    x: Value, rank: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
) -> Window:
    sizes, pads = each(kernel, rank), each(padding, rank)
    strides = sizes if stride in ((), []) else each(stride, rank)
    if any(2 * pad > n for pad, n in zip(pads, sizes, strict=True)):
        raise malformed(f"padding {list(pads)} of windows {list(sizes)}: at most half of them")
    return placed(x, sizes, strides, each(dilation, rank), pads, pads, rounds_up=ceil, cuts=True)


@aten("max_pool1d", rank=1)
@aten("max_pool2d", rank=2)
@aten("max_pool3d", rank=3)
@aten("max_pool1d_with_indices", rank=1, numbered=True)
@aten("max_pool2d_with_indices", rank=2, numbered=True)
@aten("max_pool3d_with_indices", rank=3, numbered=True)
def _maximum(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, rank: int, numbered: bool = False,
) -> Value | Sequence[Value]:  # fmt: skip
    x, alone = batched(x, rank)
    window = _window(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
    last = pooling.apart(x)
    found = [pooling.together(pooling.reduced(last, window, "maximum"), x)]
    if numbered:
        taps = pooling.together(pooling.reduced(last, window, "argmax"), x)
        numbers = pooling.numbers(x, window, taps, columns=False)
        image: Value = iota(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *[1] * rank))
        found.append(numbers - image * product(x.shape[2:]))
    found = [v.squeeze([0]) for v in found] if alone else found
    return found if numbered else found[0]


@aten("avg_pool1d", rank=1)
@aten("avg_pool2d", rank=2)
@aten("avg_pool3d", rank=3)
def _average(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, rank: int,
) -> Value:  # fmt: skip
    if x.dtype.kind != "float":
        raise unsupported(f"means of {x.type}")
    x, alone = batched(x, rank)
    window = _window(x, rank, kernel_size, stride, padding, 1, ceil_mode)
    whole = not window.cut and (count_include_pad or not window.pads)
    found = pooling.averaged(x, window, count_include_pad, whole, divisor_override)
    return found.squeeze([0]) if alone else found


# Adaptive pools: window o of an axis is from `o n / size`, rounded down, up to `(o + 1) n / size`,
# rounded up.


def _adaptive_kernel(x: Value, rank: int, size: Sequence[Dim]) -> tuple[int, ...] | None:
    """The window if all windows are the same, side by side."""
    found = []
    for n, wanted in zip(x.shape[-rank:], size, strict=True):
        if not isinstance(n, int) or not isinstance(wanted, int) or not wanted or n % wanted:
            return None
        found.append(n // wanted)
    return tuple(found)


@aten("adaptive_avg_pool1d", rank=1)
@aten("adaptive_avg_pool2d", "_adaptive_avg_pool2d", rank=2)
@aten("adaptive_avg_pool3d", "_adaptive_avg_pool3d", rank=3)
def _adaptive_average(x: Value, output_size: Sequence[Dim], *, rank: int) -> Value:
    spatial = range(x.rank - rank, x.rank)
    size = list(output_size)
    if all(n == 1 for n in size):
        # Axes of extent 1 last, so that the quotient is in the stores of the reduction.
        return x.mean(spatial, keep=False).unsqueeze(spatial)
    if all(n == have for n, have in zip(size, x.shape[-rank:], strict=True)):
        return x
    kernel = _adaptive_kernel(x, rank, size)
    if kernel is not None:
        return _average(x, kernel, rank=rank)
    found = x.wide()
    for axis, wanted in zip(spatial, size, strict=True):
        found = _adaptive_line(found, axis, wanted)
    return found.cast(x.dtype)


def _windows(x: Value, axis: int, size: Dim) -> tuple[Value, Value, Value]:
    """The windows of one axis: their elements, along a further axis after it, their positions
    (size, taps), and which of these are in the window."""
    extent = x.shape[axis]
    count = maximum(size, 1)
    row = iota(size, 0, 2)
    end = ((row + 1) * extent + (size - 1)) / row.like(count)
    at = row * extent / row.like(count) + iota(ceil_quotient(extent, count) + 1, 1, 2)
    last = at.at_most(extent - 1)
    return gather(x, last, axis), last, at < end


def _adaptive_line(x: Value, axis: int, size: Dim) -> Value:
    """The means of the windows of one axis."""
    found, _, inside = _windows(x, axis, size)
    after = x.rank - axis - 1
    mask = inside.unsqueeze(range(2, 2 + after))
    count = inside.cast(x.dtype).reduce("sum", [1], False).reshape((size, *[1] * after))
    return where(mask, found, 0).reduce("sum", [axis + 1], False) / count


@aten("adaptive_max_pool1d", rank=1)
@aten("adaptive_max_pool2d", rank=2)
@aten("adaptive_max_pool3d", rank=3)
def _adaptive_maximum(
    x: Value, output_size: Sequence[Dim], *, rank: int
) -> Value | Sequence[Value]:
    kernel = _adaptive_kernel(x, rank, output_size)
    if kernel is not None:
        return _maximum(x, kernel, rank=rank, numbered=True)
    if x.dtype.kind != "float":
        raise unsupported(f"an adaptive pool of {x.type}")
    # (..., O1, K1, ..., Or, Kr), and the number in the image of each of these elements.
    outer, found = x.rank - rank, x
    numbers: Value | None = None
    for i, size in enumerate(output_size):
        found, at, inside = _windows(found, outer + 2 * i, size)
        after = range(2, 2 + rank - 1 - i)
        found = where(inside.unsqueeze(after), found, -math.inf)
        at = at.reshape((*at.shape, *[1] * (2 * (rank - 1 - i)))) * product(
            x.shape[outer + i + 1 :]
        )
        numbers = at if numbers is None else numbers + at
    assert numbers is not None
    taps = product(found.shape[outer + 1 :: 2])
    order = [*range(outer, found.rank, 2), *range(outer + 1, found.rank, 2)]
    shape = (*output_size, taps)
    found = found.transpose([*range(outer), *order]).reshape((*x.shape[:outer], *shape))
    numbers = numbers.transpose([a - outer for a in order]).reshape(shape)
    best = apply("arg_reduce", found, kind="argmax", axis=found.rank - 1, last=False)
    whole = numbers.broadcast((*x.shape[:outer], *shape))
    at = apply("gather_elements", whole, best.unsqueeze([best.rank]), axis=best.rank, node="")
    return [found.reduce("maximum", [found.rank - 1], False), at.squeeze([best.rank])]


@aten("max_unpool2d", rank=2)
def _max_unpool(x: Value, indices: Value, output_size: Sequence[Dim], *, rank: int) -> Value:
    """Zeros but for the elements of x, at given numbers of each image."""
    outer = x.shape[:-rank]
    count = product(x.shape[-rank:])
    flat = x.like(0).broadcast((product(outer), product(output_size)))
    rows = [v.reshape((product(outer), count)) for v in (indices.cast(INT64), x)]
    found = apply("scatter_elements", flat, *rows, axis=1, kind="none", node="")
    return found.reshape((*outer, *output_size))
