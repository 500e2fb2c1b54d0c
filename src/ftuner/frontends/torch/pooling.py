"""Pools."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, maximum, product, quotient
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
    return placed(x, sizes, strides, each(dilation, rank), pads, pads, rounds_up=ceil)


def _max_pool(
    x: Value, rank: int, kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints,
    ceil_mode: bool, numbered: bool,
) -> Sequence[Value]:  # fmt: skip
    x, alone = batched(x, rank)
    window = _window(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
    last = pooling.apart(x)
    found = [pooling.together(pooling.reduced(last, window, "maximum"), x)]
    if numbered:
        taps = pooling.together(pooling.reduced(last, window, "argmax"), x)
        numbers = pooling.numbers(x, window, taps, columns=False)
        image: Value = iota(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *[1] * rank))
        found.append(numbers - image * product(x.shape[2:]))
    return [v.squeeze([0]) for v in found] if alone else found


@aten("max_pool1d", rank=1)
@aten("max_pool2d", rank=2)
@aten("max_pool3d", rank=3)
def _maximum(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, rank: int,
) -> Value:  # fmt: skip
    return _max_pool(x, rank, kernel_size, stride, padding, dilation, ceil_mode, False)[0]


@aten("max_pool1d_with_indices", rank=1)
@aten("max_pool2d_with_indices", rank=2)
@aten("max_pool3d_with_indices", rank=3)
def _maximum_at(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, rank: int,
) -> Sequence[Value]:  # fmt: skip
    return _max_pool(x, rank, kernel_size, stride, padding, dilation, ceil_mode, True)


def _average(
    x: Value, rank: int, kernel: Ints, stride: Ints, padding: Ints, ceil: bool, includes: bool,
    divisor: int | None = None,
) -> Value:  # fmt: skip
    x, alone = batched(x, rank)
    window = _window(x, rank, kernel, stride, padding, 1, ceil)
    whole = not window.cut and (includes or not window.pads)
    found = pooling.averaged(x, window, includes, whole, divisor)
    return found.squeeze([0]) if alone else found


@aten("avg_pool1d")
def _average_1d(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:  # fmt: skip
    return _average(x, 1, kernel_size, stride, padding, ceil_mode, count_include_pad)


@aten("avg_pool2d", rank=2)
@aten("avg_pool3d", rank=3)
def _average_of_axes(
    x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, rank: int,
) -> Value:  # fmt: skip
    return _average(
        x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


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
        return _average(x, rank, kernel, kernel, 0, False, True)
    found = x.wide()
    for axis, wanted in zip(spatial, size, strict=True):
        found = _adaptive_line(found, axis, wanted, "sum")
    return found.cast(x.dtype)


def _adaptive_line(x: Value, axis: int, size: Dim, kind: str) -> Value:
    """The mean, or the maximum, of the windows of one axis."""
    extent = x.shape[axis]
    row = iota(size, 0, 2)
    first = row * extent / row.like(maximum(size, 1))
    end = ((row + 1) * extent + (size - 1)) / row.like(maximum(size, 1))
    longest = quotient(extent + size - 1, maximum(size, 1)) + 1
    at = first + iota(longest, 1, 2)
    inside = at < end
    windows = gather(x, at.at_most(extent - 1), axis)
    after = x.rank - axis - 1
    inside = inside.unsqueeze(range(2, 2 + after))
    if kind == "maximum":
        return where(inside, windows, -float("inf")).reduce(kind, [axis + 1], False)
    total = where(inside, windows, 0).reduce("sum", [axis + 1], False)
    count = (end - first).cast(x.dtype).reshape((size, *[1] * after))
    return total / count


@aten("adaptive_max_pool1d", rank=1)
@aten("adaptive_max_pool2d", rank=2)
@aten("adaptive_max_pool3d", rank=3)
def _adaptive_maximum(x: Value, output_size: Sequence[Dim], *, rank: int) -> Sequence[Value | None]:
    kernel = _adaptive_kernel(x, rank, output_size)
    if kernel is not None:
        return _max_pool(x, rank, kernel, kernel, 0, 1, False, True)
    if x.dtype.kind != "float":
        raise unsupported(f"an adaptive pool of {x.type}")
    found = x
    for axis, wanted in zip(range(x.rank - rank, x.rank), output_size, strict=True):
        found = _adaptive_line(found, axis, wanted, "maximum")
    return [found, None]


@aten("max_unpool2d", rank=2)
def _max_unpool(x: Value, indices: Value, output_size: Sequence[Dim], *, rank: int) -> Value:
    """Zeros but for the elements of x, at given numbers of each image."""
    outer = x.shape[:-rank]
    count = product(x.shape[-rank:])
    flat = x.like(0).broadcast((product(outer), product(output_size)))
    rows = [v.reshape((product(outer), count)) for v in (indices.cast(INT64), x)]
    found = apply("scatter_elements", flat, *rows, axis=1, kind="none", node="")
    return found.reshape((*outer, *output_size))
