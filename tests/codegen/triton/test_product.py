"""Product kernels in Triton's interpreter, against float64."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.product_running import TORCH_TYPES, Sparse, run
from tests.gpu_kernels import product_kernel

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, GPU_DTYPES, DType
from ftuner.core.expr import ACCUMULATOR, BEFORE, Expr, Operand, applied, relu
from ftuner.core.gpu.tile import (
    ALIGNMENTS,
    BlockTile,
    Loads,
    Order,
    ProductKernel,
    common_alignment,
)

SMALL = BlockTile(16, 16, 16, 4, 2)
ORDERS: tuple[Order, ...] = ("k", "spatial")
LOADS: tuple[Loads, ...] = ("pointers", "descriptors")
BIAS, SCALE, RESIDUAL = Operand("bias", "column"), Operand("scale", "row"), Operand("res", "matrix")
GUARD = 7.0
"""Around C, where nothing may be written."""
# Significand bits that results keep; the interpreter cuts to bfloat16 where a GPU rounds.
RESULT_BITS = {torch.float16: 11, torch.bfloat16: 7, torch.float32: 24}


def kernel_of(
    *tiles: BlockTile,
    dtype: DType = FLOAT32,
    orders: tuple[Order, Order] = ("k", "k"),
    epilogue: Expr = ACCUMULATOR,
    **options: Any,
) -> ProductKernel:
    multiply = options.pop("multiply", dtype.name)
    return product_kernel(tiles or (SMALL,), dtype, multiply, *orders, epilogue=epilogue, **options)


def operand(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    dtype: DType,
    order: Order = "k",
    alignment: int = 16,
) -> torch.Tensor:
    """Random numbers of shape (batch, spatial, k), contiguous along the axis that `order` names,
    between NaNs: rows are longer than they need be, and not aligned to more than they are to be."""
    batch, spatial, k = shape
    rows, columns = (spatial, k) if order == "k" else (k, spatial)
    granule = 16 // dtype.itemsize
    begin = max(alignment // dtype.itemsize, 1)
    row = (-(-columns // begin) + 1) * begin
    buffer = torch.full((begin + batch * rows * row + granule,), math.nan)
    buffer = buffer.to(TORCH_TYPES[dtype.name])
    assert buffer.data_ptr() % 16 == 0
    values = torch.as_strided(buffer, (batch, rows, columns), (rows * row, row, 1), begin)
    values.copy_(torch.from_numpy(rng.uniform(-1.0, 1.0, (batch, rows, columns))))
    return values if order == "k" else values.transpose(1, 2)


def guarded(shape: tuple[int, int, int], dtype: DType, aligned: bool = True) -> torch.Tensor:
    """C within a larger matrix of `GUARD`s."""
    batch, m, n = shape
    row = (-(-n // 16) + 1) * 16 if aligned else n + 1
    whole = torch.full((batch, m + 1, row), GUARD, dtype=TORCH_TYPES[dtype.name])
    return whole[:, :m, :n]


def matrices(
    kernel: ProductKernel, seed: int, m: int, n: int, k: int, batch: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and C, no more aligned than a kernel takes them."""
    rng, orders = np.random.default_rng(seed), (kernel.a_order, kernel.b_order)
    a, b = (
        operand(rng, (batch, extent, k), kernel.dtype, order, kernel.alignment)
        for extent, order in zip((m, n), orders, strict=True)
    )
    return a, b, guarded((batch, m, n), kernel.dtype, kernel.c_aligned)


def assert_product(c: Any, a: Any, b: Any, epilogue: Any = lambda x: x, slope: float = 1.0) -> None:
    """`c` is epilogue(a b^T): sums within their worst-case bound, times the slope that the epilogue
    may have, the result within its own rounding; nothing but `c` was written."""
    wide_a, wide_b = a.double(), b.double().transpose(1, 2)
    expected = epilogue(wide_a @ wide_b)
    steps = a.shape[2] + 8
    bound = slope * steps * 2.0**-24 * (wide_a.abs() @ wide_b.abs() + 1.0)
    bound = bound + 2.0 ** -RESULT_BITS[c.dtype] * expected.abs()
    worst = ((c.double() - expected).abs() - bound).max().item() if c.numel() else 0.0
    assert worst <= 0.0, f"off by {worst} more than the bound"
    whole = torch.as_strided(c, (c._base.numel(),), (1,), 0) if c._base is not None else c
    assert (whole == GUARD).sum().item() >= whole.numel() - c.numel()


@pytest.mark.each_value
@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("orders", list(itertools.product(ORDERS, repeat=2)), ids="-".join)
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
def test_every_order_and_dtype(dtype: DType, orders: tuple[Order, Order], loads: Loads) -> None:
    k = 40 if loads == "pointers" else 37
    kernel = kernel_of(dtype=dtype, orders=orders, loads=loads)
    a, b, c = matrices(kernel, 0, 37, 23, k)
    run(kernel, a, b, c)
    assert_product(c, a, b)


@settings(max_examples=60)
@given(
    extents=st.tuples(*[st.integers(1, 53)] * 3), batch=st.integers(1, 3),
    orders=st.tuples(*[st.sampled_from(ORDERS)] * 2), loads=st.sampled_from(LOADS),
    split_k=st.integers(1, 4), programs=st.integers(1, 5), swizzle=st.integers(1, 3),
    bands=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_extents(
    extents, batch, orders, loads, split_k, programs, swizzle, bands, seed
) -> None:  # type: ignore[no-untyped-def]
    """Each result computed once, whatever the plan; aligned where pointers allow it."""
    m, n, k = extents
    aligned = loads == "descriptors" or k % 4 == 0
    alignment = 16 if aligned else common_alignment(4 * k)
    rng = np.random.default_rng(seed)
    a = operand(rng, (batch, m, k), FLOAT32, orders[0], alignment)
    b = operand(rng, (1 if seed % 2 else batch, n, k), FLOAT32, orders[1], alignment)
    c = guarded((batch, m, n), FLOAT32, aligned)
    tiles = (BlockTile(32, 16, 16, 4, 2), SMALL) if bands else (SMALL,)
    kernel = kernel_of(*tiles, orders=orders, loads=loads, alignment=alignment,
                       c_aligned=aligned, split=split_k > 1)  # fmt: skip
    counters = torch.zeros(1000, dtype=torch.int32)
    options = {"split_k": split_k, "programs": programs, "swizzle": swizzle, "counters": counters}
    run(kernel, a, b, c, rows=m // 32 * 32 if bands else None, **options)
    assert_product(c, a, b)
    assert not counters.any()


@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 16, 8), (17, 1, 16), (16, 16, 15), (31, 33, 1)])
def test_ones_and_edges(extents: tuple[int, int, int], loads: Loads) -> None:
    # Pointers read whole granules of k if they are told that it is aligned.
    kernel = kernel_of(loads=loads, alignment=16 if loads == "descriptors" else 4)
    a, b, c = matrices(kernel, 1, *extents)
    run(kernel, a, b, c)
    assert_product(c, a, b)


@pytest.mark.parametrize("extents", [(5, 7, 0), (0, 7, 5), (5, 0, 5), (0, 0, 0)])
@pytest.mark.parametrize("split", [False, True])
def test_empty_extents(extents: tuple[int, int, int], split: bool) -> None:
    """Without a step of k, the epilogue of zeros; without rows or columns, nothing."""
    m, n, k = extents
    a, b = torch.ones(1, m, k), torch.ones(1, n, k)
    c = torch.full((1, m, n), math.nan)
    counters = torch.zeros(4, dtype=torch.int32)
    kernel = kernel_of(epilogue=ACCUMULATOR + 1.5, alignment=4, c_aligned=False, split=split)
    run(kernel, a, b, c, split_k=2, counters=counters)
    assert (c == 1.5).all()


@pytest.mark.each_value
@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("rows", [0, 32, 64, 70])
def test_two_bands_cover_every_row_once(rows: int, loads: Loads) -> None:
    # What a row was before is added, so that a row done twice would show.
    kernel = kernel_of(
        BlockTile(32, 32, 16, 4, 2), BlockTile(16, 32, 16, 4, 2), loads=loads,
        epilogue=ACCUMULATOR + BEFORE,
    )  # fmt: skip
    a, b, c = matrices(kernel, 2, 70, 40, 24, batch=2)
    run(kernel, a, b, c, {BEFORE.name: c}, rows=rows, programs=4)
    assert_product(c, a, b, lambda x: x + GUARD)


@pytest.mark.each_value
@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("split_k", [2, 3, 4, 5])
def test_parts_of_k_are_added_in_their_order(split_k: int, loads: Loads) -> None:
    """Twice, so that the counters must have been reset; equal bit by bit, however many programs."""
    counters = torch.zeros(12, dtype=torch.int32)
    kernel = kernel_of(loads=loads, split=True, epilogue=relu(ACCUMULATOR))
    results = []
    for programs in (1, 7):
        a, b, c = matrices(kernel, 3, 20, 35, 76, batch=2)
        run(kernel, a, b, c, split_k=split_k, programs=programs, counters=counters)
        assert_product(c, a, b, torch.relu)
        assert not counters.any()
        results.append(c.clone())
    assert torch.equal(*results)


def test_the_last_part_to_arrive_adds_them_up() -> None:
    """By its count, not by its number: with one arrival counted before, the second of three parts
    is the last, and adds what lies in the place of the third."""
    kernel, counters = kernel_of(split=True), torch.ones(1, dtype=torch.int32)
    a, b, c = matrices(kernel, 4, 16, 16, 64)
    run(kernel, a, b, c, split_k=3, programs=1, counters=counters)
    assert counters.item() == 1
    assert torch.isnan(c).all()


@pytest.mark.each_value
@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", ["gelu", "silu", "all"])
def test_epilogues(name: str, dtype: DType, loads: Loads) -> None:
    rng = np.random.default_rng(5)
    m, n, k, batch = 21, 39, 24, 2
    torch_type = TORCH_TYPES[dtype.name]
    a, b = operand(rng, (batch, m, k), dtype), operand(rng, (batch, n, k), dtype)
    bias = torch.from_numpy(rng.uniform(-1, 1, n)).to(torch_type)
    scale = torch.from_numpy(rng.uniform(0.5, 2, m)).to(torch_type)
    residual = operand(rng, (1 if name == "all" else batch, m, n), dtype)
    functional = torch.nn.functional
    wide = bias.double()
    expressions = {
        "gelu": (applied("gelu", ACCUMULATOR + BIAS), lambda x: functional.gelu(x + wide)),
        "silu": (
            applied("silu", ACCUMULATOR) + RESIDUAL,
            lambda x: functional.silu(x) + residual.double(),
        ),
        "all": (
            applied("gelu", ACCUMULATOR * SCALE + BIAS) - 0.5 * RESIDUAL,
            lambda x: functional.gelu(x * scale.double()[:, None] + wide) - 0.5 * residual.double(),
        ),
    }
    expr, reference = expressions[name]
    # Few warps, so that the tile passes in several slices.
    kernel = kernel_of(BlockTile(32, 128, 16, 1, 2), dtype=dtype, loads=loads, epilogue=expr)
    assert kernel.slices == 4
    c = guarded((batch, m, n), dtype)
    run(kernel, a, b, c, {"bias": bias, "scale": scale, "res": residual})
    # A value that is rounded inside weighs as much as the largest it is added to.
    assert_product(c, a, b, reference, slope=8.0)


@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_rows_and_columns_may_be_wider(dtype: DType, loads: Loads) -> None:
    """A bias that no half is, beside a residual that is one."""
    expr = (ACCUMULATOR + BIAS - RESIDUAL) * SCALE
    kernel = kernel_of(dtype=dtype, loads=loads, epilogue=expr, vectors=FLOAT32)
    nothing = torch.zeros(1, 20, 16, dtype=TORCH_TYPES[dtype.name])
    c = guarded((1, 20, 20), dtype)
    ones = torch.ones(1, 20, 20, dtype=c.dtype)
    extra = {"bias": torch.full((20,), 1 + 2.0**-12), "scale": torch.full((20,), 2.0**20)}
    run(kernel, nothing, nothing, c, {**extra, "res": ones})
    assert torch.equal(c, torch.full_like(c, 256.0))


def test_an_epilogue_may_leave_the_product_aside() -> None:
    c = guarded((1, 20, 20), FLOAT32)
    bias = torch.arange(20.0)
    ones = torch.ones(1, 20, 16)
    run(kernel_of(epilogue=2.0 * BIAS), ones, ones, c, {"bias": bias})
    assert torch.equal(c[0], (2.0 * bias).expand(20, 20))


@pytest.mark.each_value
@pytest.mark.parametrize("orders", list(itertools.product(ORDERS, repeat=2)), ids="-".join)
@pytest.mark.parametrize(
    ("dtype", "alignment"),
    [(d, x) for d in GPU_DTYPES.values() for x in ALIGNMENTS if d.itemsize <= x < 16],
    ids=str,
)
def test_bases_and_strides_of_each_alignment(
    dtype: DType, orders: tuple[Order, Order], alignment: int
) -> None:
    """Along k too, where pointers advance along it."""
    k = 21 // (alignment // dtype.itemsize) * (alignment // dtype.itemsize)
    kernel = kernel_of(dtype=dtype, orders=orders, alignment=alignment, c_aligned=False,
                       epilogue=ACCUMULATOR * 2.0)  # fmt: skip
    a, b, c = matrices(kernel, 6, 19, 18, k, batch=2)
    run(kernel, a, b, c)
    assert_product(c, a, b, lambda x: 2.0 * x, slope=2.0)


@pytest.mark.parametrize("loads", LOADS)
def test_only_c_and_its_companions_unaligned(loads: Loads) -> None:
    kernel = kernel_of(loads=loads, c_aligned=False, epilogue=ACCUMULATOR + RESIDUAL)
    a, b, c = matrices(kernel, 7, 19, 18, 24)
    residual = operand(np.random.default_rng(8), (1, 19, 18), FLOAT32, alignment=4)
    run(kernel, a, b, c, {"res": residual})
    assert_product(c, a, b, lambda x: x + residual.double())


@pytest.mark.parametrize("loads", LOADS)
def test_nan_and_infinity_stay_in_their_rows_and_columns(loads: Loads) -> None:
    kernel = kernel_of(loads=loads, epilogue=relu(ACCUMULATOR))
    a, b, c = matrices(kernel, 8, 20, 20, 24)
    a[0, 3, 5], b[0, 7, 2] = math.nan, math.inf
    run(kernel, a, b, c)
    assert torch.isnan(c[0, 3]).all()
    others = [i for i in range(20) if i != 3]
    expected = torch.where(a[0, others, 2] > 0, math.inf, 0.0)
    assert torch.equal(c[0, others, 7], expected)
    assert torch.isfinite(c[0, others][:, [i for i in range(20) if i != 7]]).all()


@pytest.mark.parametrize("multiply", ["tf32", "float32"])
@pytest.mark.parametrize("loads", LOADS)
def test_both_precisions_of_float32(multiply: str, loads: Loads) -> None:
    """The interpreter multiplies float32 whatever it is told: that the text is right."""
    kernel = kernel_of(multiply=multiply, loads=loads)
    a, b, c = matrices(kernel, 9, 17, 33, 20)
    run(kernel, a, b, c)
    assert_product(c, a, b)


@pytest.mark.parametrize("orders", [("k", "k"), ("spatial", "spatial")], ids="-".join)
def test_strides_beyond_31_bits(orders: tuple[Order, Order]) -> None:
    """Rows of A, of C and of the epilogue's matrix lie 2^30 elements apart, batch elements more:
    offsets within a tile pass 2^31, not only those of tiles."""
    rng = np.random.default_rng(10)
    dtype, stride = GPU_DTYPES["float16"], 2**30
    m, n, k = 5, 6, 8
    rows, columns = (m, k) if orders[0] == "k" else (k, m)
    sparse = [Sparse(2 * 8 * stride) for _ in range(2)]
    strides = (8 * stride, stride, 1)
    a = sparse[0].matrix((2, rows, columns), strides)
    a.copy_(torch.from_numpy(rng.uniform(-1, 1, (2, rows, columns))))
    b = operand(rng, (2, n, k), dtype, orders[1])
    c = sparse[1].matrix((2, m, n), strides)
    residual = torch.from_numpy(rng.uniform(-1, 1, (2, m, n))).half()
    c.copy_(residual)
    kernel = kernel_of(dtype=dtype, orders=orders, epilogue=ACCUMULATOR + RESIDUAL)
    a_view = a if orders[0] == "k" else a.transpose(1, 2)
    bases = {"a": sparse[0].base(), "c": sparse[1].base(), "operand_res": sparse[1].base()}
    run(kernel, a_view, b, c, {"res": c}, bases=bases)
    expected = a_view.double() @ b.double().transpose(1, 2) + residual.double()
    torch.testing.assert_close(c.double(), expected, rtol=2e-3, atol=2e-3)
