"""Kernels that read A through a window, in Triton's interpreter, against float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.product_running import TORCH_TYPES, run
from tests.gpu_kernels import product_kernel

from ftuner.core.dtype import FLOAT32, GPU_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR, Operand
from ftuner.core.gpu.tile import BlockTile, ProductKernel
from ftuner.core.product import ReadWindow
from ftuner.graph.ops.windows import _reference_convolution
from ftuner.runtime.gpu.operands import bound_window, matrix_of

SMALL, LOW = BlockTile(32, 16, 16, 4, 2), BlockTile(16, 16, 16, 4, 2)
BIAS, RESIDUAL = Operand("bias", "column"), Operand("res", "matrix")
GUARD = 7.0
"""Beside the rows of C, where nothing may be written."""
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5}
"""The interpreter cuts to bfloat16 where a GPU rounds."""


def check(
    extents: tuple[int, ...], kernel: tuple[int, ...], channels: int, columns: int,
    groups: int = 1, images: int = 1, strides: tuple[int, ...] = (), begin: tuple[int, ...] = (),
    end: tuple[int, ...] = (), dilations: tuple[int, ...] = (), tiles: tuple[BlockTile, ...] = (),
    dtype: DType = FLOAT32, split_k: int = 1, rows: int | None = None, alignment: int | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Run a kernel on random numbers. Images, rows and pixels of x are apart in memory by more than
    their elements, and NaN is between them. `alignment`: of the kernel; by default that of x."""
    rank = len(kernel)
    ones, zeros = (1,) * rank, (0,) * rank
    strides, dilations = strides or ones, dilations or ones
    begin, end = begin or zeros, end or zeros
    positions = tuple(
        max((n + b + e - (t - 1) * d - 1) // s + 1, 0)
        for n, b, e, t, d, s in zip(extents, begin, end, kernel, dilations, strides, strict=True)
    )
    rng = np.random.default_rng(channels)
    type_ = TORCH_TYPES[dtype.name]
    apart = [n + 1 for n in (images, *extents)]
    granule = 16 // dtype.itemsize
    whole = torch.full((*apart, -(-groups * channels // granule) * granule), math.nan, dtype=type_)
    x = whole[tuple(slice(n - 1) for n in apart)][..., : groups * channels]
    x.copy_(torch.from_numpy(rng.uniform(-1, 1, x.shape)))
    k = math.prod(kernel) * channels
    b = torch.from_numpy(rng.uniform(-1, 1, (groups, columns, k))).to(type_)
    bias = torch.from_numpy(rng.uniform(-1, 1, groups * columns)).to(type_)
    m = images * math.prod(positions)
    if not m:
        return
    residual = torch.from_numpy(rng.uniform(-1, 1, (m, groups * columns))).to(type_)
    c = torch.full((m + 1, groups * columns + granule), GUARD, dtype=type_)
    read = ReadWindow(rank, channels, 1.0)
    window = bound_window(x, read, kernel, strides, dilations, begin, positions)
    product = product_kernel(
        tiles or (SMALL,), dtype, dtype.name, "k", "k", window=rank, split=split_k > 1,
        alignment=window.alignment if alignment is None else alignment, c_aligned=False,
        epilogue=ACCUMULATOR + BIAS + RESIDUAL,
    )  # fmt: skip
    run(
        product, matrix_of(x, groups, channels), b, of_groups(c[:m, : groups * columns], groups),
        {"bias": bias, "res": of_groups(residual, groups)}, split_k=split_k, rows=rows,
        window=window, counters=counters_of(product, m, columns, groups, rows), **options,
    )  # fmt: skip
    weight = b.double().transpose(1, 2).reshape(groups, *kernel, channels, columns)
    weight = weight.movedim(0, -2).reshape(*kernel, channels, groups * columns)
    expected = _reference_convolution(
        x.double().numpy(), weight.numpy(), groups, strides=strides, dilations=dilations,
        begin=begin, extents=positions,
    ).reshape(m, groups * columns)  # fmt: skip
    expected = expected + bias.double().numpy() + residual.double().numpy()
    found = c.double().numpy()
    tolerance = TOLERANCE[dtype.name]
    np.testing.assert_allclose(
        found[:m, : groups * columns], expected, tolerance, tolerance * math.sqrt(k)
    )
    assert (found[m:] == GUARD).all()
    assert (found[:, groups * columns :] == GUARD).all()


def of_groups(rows: torch.Tensor, groups: int) -> torch.Tensor:
    return rows.unflatten(1, (groups, -1)).movedim(1, 0)


def counters_of(
    kernel: ProductKernel, m: int, n: int, batch: int, rows: int | None
) -> torch.Tensor | None:
    if not kernel.split:
        return None
    tiles = batch * (m // LOW.bm + 2) * -(-n // kernel.main.bn)
    return torch.zeros(tiles, dtype=torch.int32)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
@pytest.mark.parametrize("channels", [16, 24, 5, 1, 40])
def test_every_dtype(dtype: DType, channels: int) -> None:
    check((5, 7), (3, 2), channels, 19, images=2, strides=(1, 2), begin=(1, 0), end=(1, 1),
          dtype=dtype)  # fmt: skip


@pytest.mark.parametrize(
    ("extents", "kernel"),
    [((11,), (4,)), ((1,), (1,)), ((5, 3), (2, 3)), ((3, 4, 5), (2, 1, 3)), ((2, 2, 2), (3, 3, 3))],
)
def test_every_number_of_axes(extents: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    around = tuple(n // 2 for n in kernel)
    check(extents, kernel, 6, 17, images=2, begin=around, end=around)


@settings(max_examples=40)
@given(
    extents=st.tuples(*[st.integers(0, 9)] * 2), kernel=st.tuples(*[st.integers(1, 4)] * 2),
    channels=st.integers(1, 35), columns=st.integers(1, 20), groups=st.integers(1, 3),
    images=st.integers(1, 2), strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2), begin=st.tuples(*[st.integers(-1, 3)] * 2),
    end=st.tuples(*[st.integers(-1, 3)] * 2), split_k=st.integers(1, 4), bands=st.booleans(),
    programs=st.integers(1, 5), swizzle=st.integers(1, 3),
)  # fmt: skip
def test_any_window(extents, kernel, channels, columns, bands, split_k, **options) -> None:
    tiles: tuple[BlockTile, ...] = (SMALL,)
    rows = None
    if bands and math.prod(extents) > SMALL.bm * 2 and options["strides"] == (1, 1):
        tiles, rows = (SMALL, LOW), SMALL.bm
    steps = math.prod(kernel) * -(-channels // SMALL.bk)
    check(extents, kernel, channels, columns, split_k=min(split_k, steps), tiles=tiles, rows=rows,
          **options)  # fmt: skip


def test_unaligned_kernels_read_aligned_operands() -> None:
    check((6, 5), (3, 3), 16, 16, begin=(1, 1), end=(1, 1), alignment=4)


def test_strides_that_are_never_taken_may_be_of_any_size() -> None:
    check((3, 4), (3, 1), 4, 5, strides=(1 << 40, 1), dilations=(1, 1 << 40))
