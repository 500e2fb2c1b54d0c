"""Tensors that are made of numbers and extents, and random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import Dim, Symbolic, maximum, never_negative
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64, DType
from ftuner.frontends.torch.promotion import Number, Real, dtype_of_number, valued
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, constant, equal, iota, scalar, where
from ftuner.graph.builder import Builder
from ftuner.graph.checks import unsupported
from ftuner.graph.ir import Value, building
from ftuner.graph.ops.views import slice_extent


@aten("full")
@aten("zeros", "empty.memory_format", "empty_strided", "empty_permuted", fill_value=0.0)
@aten("ones", fill_value=1.0)
def _full(
    size: Sequence[Dim], fill_value: Number, dtype: DType | None = None,
    stride: Sequence[Dim] = (), physical_layout: Sequence[int] = (),
) -> Value:  # fmt: skip
    return valued(fill_value, dtype or dtype_of_number(fill_value)).broadcast(tuple(size))


@aten("full_like")
@aten("zeros_like", "empty_like", fill_value=0)
@aten("ones_like", fill_value=1)
def _like(x: Value, fill_value: Number, dtype: DType | None = None) -> Value:
    return _full(x.shape, fill_value, dtype or x.dtype)


@aten("new_full")
@aten("new_zeros", "new_empty", "new_empty_strided", fill_value=0)
@aten("new_ones", fill_value=1)
def _new(
    x: Value, size: Sequence[Dim], fill_value: Number, dtype: DType | None = None,
    stride: Sequence[Dim] = (),
) -> Value:  # fmt: skip
    return _full(size, fill_value, dtype or x.dtype)


aten("scalar_tensor")(lambda s, dtype=None: _full((), s, dtype or FLOAT32))
aten("fill.Scalar", "fill.Tensor")(lambda x, value: valued(value, x.dtype).broadcast(x.shape))


@aten("arange", "arange.start", "arange.start_step")
def _numbers(end: Number, start: Number = 0, step: Number = 1, dtype: DType | None = None) -> Value:
    """start, start + step, ... before the end."""
    if dtype is None:
        real = any(isinstance(n, (float, Real)) for n in (start, end, step))
        dtype = FLOAT32 if real else INT64
    given = [_whole(n) for n in (start, end, step)]
    if dtype == INT64:
        given = [_cut(n) for n in given]
    begin, limit, by = given
    count = _count(begin, limit, by)
    wide = FLOAT64
    if dtype.kind != "float":
        wide, begin, by = INT64, _cut(begin), _cut(by)
    return (iota(count).cast(wide) * by + begin).cast(dtype)


def _cut(number: Dim | float) -> Dim:
    """A number without its fraction."""
    return int(number) if isinstance(number, float) else number


def _whole(number: Number) -> Dim | float:
    """A float that is an integer as one."""
    if isinstance(number, Real):
        raise unsupported("a range of floats that are computed from extents")
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _count(start: Dim | float, end: Dim | float, step: Dim | float) -> Dim:
    """How many numbers a range has. A run with steps of an extent of 0 is refused."""
    if step == 0 or (isinstance(step, Symbolic) and not never_negative(step)):
        raise unsupported(f"a range with steps of {step}")
    if isinstance(step, Symbolic) or isinstance(start, Symbolic) or isinstance(end, Symbolic):
        if isinstance(start, float) and step == 1:
            start = math.floor(start)  # The fraction makes the range no shorter.
        if isinstance(start, float) or isinstance(end, float) or isinstance(step, float):
            raise unsupported(f"a range from {start} to {end} by {step}")
        return slice_extent(start, end, step)
    return max(math.ceil((end - start) / step), 0)


@aten("linspace")
def _evenly_spaced(start: float, end: float, steps: Dim, dtype: DType | None = None) -> Value:
    """Counted from both ends, so that the last one is exact."""
    dtype = dtype or FLOAT32
    if dtype.kind != "float":
        start, end = int(start), int(end)
    wide = FLOAT64
    at = iota(steps).cast(wide)
    last = maximum(steps - 1, 1)
    step = scalar(end - start, wide) / at.like(last)
    from_end = (steps - 1 - iota(steps)).cast(wide)
    found = where(at < from_end, at * step + start, from_end * step * -1.0 + end)
    return where(equal(at, 0), start, found).cast(dtype)


aten("eye")(lambda n, dtype=None: equal(iota(n, 0, 2), iota(n, 1, 2)).cast(dtype or FLOAT32))
aten("eye.m")(lambda n, m, dtype=None: equal(iota(n, 0, 2), iota(m, 1, 2)).cast(dtype or FLOAT32))


@aten("tril_indices", upper=False)
@aten("triu_indices", upper=True)
def _triangle(
    row: int, col: int, offset: int = 0, dtype: DType | None = None, *, upper: bool
) -> Value:
    pairs = [
        (i, j) for i in range(row) for j in range(col)
        if (j - i >= offset if upper else j - i <= offset)
    ]  # fmt: skip
    return constant(np.array(pairs, np.int64).reshape(-1, 2).T, INT64).cast(dtype or INT64)


# Random numbers. ftuner draws its own, not those of torch's generator: `torch.compile` leaves
# these operators to PyTorch.

DRAWING = ("rand.default", "rand_like.default", "randn.default", "randn_like.default")


@aten("rand", kind="random_uniform")
@aten("randn", kind="random_normal")
def _drawn(size: Sequence[Dim], dtype: DType | None = None, *, kind: str) -> Value:
    """Uniform numbers from 0 below 1, or normal ones. Half precision is drawn in float32."""
    dtype = dtype or FLOAT32
    digits = {"digits": dtype.significand_bits} if kind == "random_uniform" else {}
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    builder = building()
    assert isinstance(builder, Builder)
    return apply(kind, builder.random_stream(), dtype=wide, shape=tuple(size), **digits).cast(dtype)


@aten("rand_like", kind="random_uniform")
@aten("randn_like", kind="random_normal")
def _drawn_like(x: Value, dtype: DType | None = None, *, kind: str) -> Value:
    return _drawn(x.shape, dtype or x.dtype, kind=kind)
