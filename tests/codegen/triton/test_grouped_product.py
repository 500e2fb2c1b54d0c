"""Kernels of grouped products in Triton's interpreter, against float64."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.product_running import TORCH_TYPES, Sparse
from tests.gpu_kernels import product_kernel

from ftuner.codegen.triton.product import ARGUMENTS, BEYOND_ALL, COLUMNS, LOOKED_AT, grouped_source
from ftuner.codegen.triton.source import load
from ftuner.core.dtype import FLOAT32, GPU_DTYPES, DType
from ftuner.core.gpu.tile import BlockTile, Order, ProductKernel

SMALL = BlockTile(16, 16, 16, 4, 2)
ORDERS: tuple[Order, ...] = ("k", "spatial")
GUARD = 7.0
"""Around C, where nothing may be written."""


def kernel_of(
    tile: BlockTile = SMALL, dtype: DType = FLOAT32, orders: tuple[Order, Order] = ("k", "k"),
    **options: Any,
) -> ProductKernel:  # fmt: skip
    multiply: Any = dtype.name
    return product_kernel((tile,), dtype, multiply, *orders, grouped=True, **options)


def stored(spatial: int, k: int, order: Order, dtype: DType, seed: int, alignment: int) -> Any:
    """A or B as it lies in memory, the axis that `order` names last, between NaNs."""
    rows, columns = (spatial, k) if order == "k" else (k, spatial)
    begin = max(alignment // dtype.itemsize, 1)
    row = (-(-columns // begin) + 1) * begin
    whole = torch.full((begin + rows * row,), float("nan")).to(TORCH_TYPES[dtype.name])
    values = whole.as_strided((rows, columns), (row, 1), begin)
    generator = torch.Generator().manual_seed(seed)
    values.copy_(torch.rand((rows, columns), generator=generator) - 0.5)
    return values


def run(
    kernel: ProductKernel, sizes: Sequence[tuple[int, int, int]], programs: int, swizzle: int = 2,
) -> None:  # fmt: skip
    """Launch a kernel on products of some sizes, in their order, and compare."""
    tile, dtype = kernel.main, kernel.dtype
    triples, rows, ends = [], [], []
    for i, (m, n, k) in enumerate(sizes):
        a = stored(m, k, kernel.a_order, dtype, 2 * i, kernel.alignment)
        b = stored(n, k, kernel.b_order, dtype, 2 * i + 1, kernel.alignment)
        row = (-(-n // 16) + 1) * 16 if kernel.c_aligned else n + 1
        whole = torch.full((m + 1, row), GUARD, dtype=TORCH_TYPES[dtype.name])
        begin = ends[-1] if ends else 0
        rows.append(
            (a.data_ptr(), b.data_ptr(), whole.data_ptr(), m, n, k, a.stride(0), b.stride(0), row,
             begin)
        )  # fmt: skip
        ends.append(begin + -(-m // tile.bm) * -(-n // tile.bn))
        triples.append((a, b, whole))
    launch(kernel, rows, ends, programs, swizzle)
    for (m, n, k), (a, b, whole) in zip(sizes, triples, strict=True):
        wide_a = (a if kernel.a_order == "k" else a.mT).double()
        wide_b = (b.mT if kernel.b_order == "k" else b).double()
        expected, found = wide_a @ wide_b, whole[:m, :n].double()
        bound = (k + 8) * 2.0**-24 * (wide_a.abs() @ wide_b.abs() + 1.0)
        # The interpreter cuts to bfloat16, where a GPU rounds.
        eps = torch.finfo(whole.dtype).eps
        assert ((found - expected).abs() <= bound + eps * expected.abs()).all()
        assert (whole == GUARD).sum() >= whole.numel() - m * n


def launch(
    kernel: ProductKernel, rows: Sequence[Sequence[int]], ends: Sequence[int], programs: int,
    swizzle: int,
) -> None:  # fmt: skip
    filled = [*ends, *[BEYOND_ALL] * (-len(ends) % LOOKED_AT)]
    source = grouped_source(kernel)
    load(source)[(programs,)](
        torch.tensor(filled, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64).flatten(),
        ends[-1], swizzle,
    )  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("alignment", [16, 8, 4])
@pytest.mark.parametrize("orders", list(itertools.product(ORDERS, repeat=2)), ids="-".join)
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
def test_every_order_and_dtype(dtype: DType, orders: tuple[Order, Order], alignment: int) -> None:
    sizes = [(37, 23, 40), (16, 5, 8), (1, 50, 16)]
    if alignment < 16:
        sizes = [(m, n, k - 3) for m, n, k in sizes]
    run(kernel_of(dtype=dtype, orders=orders, alignment=alignment,
                  c_aligned=alignment == 16), sizes, 3)  # fmt: skip


@pytest.mark.full
@settings(max_examples=40)
@given(
    sizes=st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=5),
    orders=st.tuples(*[st.sampled_from(ORDERS)] * 2), programs=st.integers(1, 7),
    swizzle=st.integers(1, 4),
)  # fmt: skip
def test_any_groups(
    sizes: list[tuple[int, int, int]], orders: tuple[Order, Order], programs: int, swizzle: int
) -> None:
    run(kernel_of(orders=orders, alignment=4, c_aligned=False), sizes, programs, swizzle)


@pytest.mark.each_value
@pytest.mark.parametrize("count", [31, 32, 33, 100])
@pytest.mark.parametrize("programs", [1, 5, 64])
def test_more_groups_than_are_looked_at_at_once(count: int, programs: int) -> None:
    """Programs pass from one group to the next, and over many at a time."""
    sizes = [(1 + i % 3, 1 + i % 20, 1 + i % 4) for i in range(count)]
    run(kernel_of(alignment=4, c_aligned=False), sizes, programs)


def test_products_of_no_k_are_zeros() -> None:
    run(kernel_of(), [(20, 20, 0), (5, 5, 8), (3, 3, 0)], 2)


def test_rows_of_c_that_are_not_aligned() -> None:
    run(kernel_of(c_aligned=False), [(20, 17, 16), (5, 33, 8)], 2)


def test_strides_beyond_31_bits() -> None:
    """The last rows of A and C lie 2^31 elements behind the first one. The second group follows in
    the same program."""
    stride = 2**29
    m, n, k = 5, 6, 8
    memory = Sparse(4 * stride + 256)
    a = memory.matrix((2, m, k), (64, stride, 1))
    c = memory.matrix((2, m, 128 + n), (64, stride, 1))[:, :, 128:]
    a.copy_(torch.rand((2, m, k), generator=torch.Generator().manual_seed(0)))
    b = torch.rand((n, k), generator=torch.Generator().manual_seed(1)).half()
    rows = [
        (a[i].data_ptr(), b.data_ptr(), c[i].data_ptr(), m, n, k, stride, k, stride, i)
        for i in range(2)
    ]
    launch(kernel_of(dtype=GPU_DTYPES["float16"]), rows, [1, 2], 1, 1)
    torch.testing.assert_close(c.double(), a.double() @ b.double().mT, rtol=1e-3, atol=1e-3)


def test_text_of_a_small_kernel(golden) -> None:  # type: ignore[no-untyped-def]
    kernel = kernel_of(orders=("k", "spatial"))
    source = grouped_source(kernel)
    golden("block-grouped.txt", source.text)
    assert source.arguments == ARGUMENTS
    assert source.function == kernel.symbol
    assert source.function.count("_a16cg_") == 1


def test_promises_are_those_of_alignment() -> None:
    """Whole granules of 16 bytes, where operands are aligned, and of k where pointers walk it."""

    def promised(kernel: ProductKernel) -> dict[str, int]:
        lines = grouped_source(kernel).text.splitlines()
        found = {}
        for name in COLUMNS:
            (line,) = [x for x in lines if x.startswith(f"        {name} = ")]
            if "multiple_of" in line:
                found[name] = int(line.split(", ")[-1].rstrip(")"))
        return found

    strides = {"a_stride": 4, "b_stride": 4, "c_row": 4}
    aligned = {"a": 16, "b": 16, "c": 16, **strides}
    assert promised(kernel_of()) == {**aligned, "k": 4}
    assert promised(kernel_of(orders=("spatial", "spatial"))) == aligned
    loose = {name: number for name, number in aligned.items() if name != "c_row"}
    assert promised(kernel_of(c_aligned=False)) == {**loose, "k": 4, "c": 4}
    assert promised(kernel_of(alignment=4, c_aligned=False)) == {"a": 4, "b": 4, "c": 4}
    halves = {"a": 8, "b": 8, "a_stride": 2, "b_stride": 2, "k": 2}
    assert promised(kernel_of(alignment=8, c_aligned=False)) == {**halves, "c": 4}


def test_what_no_kernel_is_made_for() -> None:
    low = BlockTile(8, 16, 16, 4, 2)
    for wrong in (
        product_kernel((SMALL,), FLOAT32, "float32", "k", "k"),
        product_kernel((SMALL, low), FLOAT32, "float32", "k", "k", grouped=True),
        kernel_of(loads="descriptors"),
        kernel_of(split=True),
    ):
        with pytest.raises(AssertionError):
            grouped_source(wrong)
