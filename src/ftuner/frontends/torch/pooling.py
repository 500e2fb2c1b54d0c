"""Pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftuner.core.dim import Dim, ceil_quotient, maximum, product
from ftuner.core.dtype import INT64
from ftuner.frontends.torch.convolution import Ints, batched, each
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, gather, iota, where
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.compositions import pooling
from ftuner.graph.compositions.windows import Window, placed
from ftuner.graph.ir import Value


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
