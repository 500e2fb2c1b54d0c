"""What decides the order of the sums of products on a GPU."""

import torch

from ftuner.core.gpu.tile import ProductKernel
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.operands import Product


def order(h200: GpuBackend, m: int, n: int, k: int) -> tuple[ProductKernel, int, int] | None:
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
    return h200.products.order_of_sums(Product(a, b, c, tf32=False))


def test_it_is_that_of_copies(h200: GpuBackend) -> None:
    """More rows are worth copying to an aligned pitch."""
    few, many = order(h200, 32, 256, 777), order(h200, 64, 256, 777)
    assert few is not None
    assert many is not None
    assert (few[0].alignment, many[0].alignment) == (2, 16)


def test_it_is_unknown_where_bands_have_different_instructions(h200: GpuBackend) -> None:
    """Bands of 128 and 16 rows, and of 128 and 64, which have the same instruction."""
    assert order(h200, 520, 8192, 512) is None
    found = order(h200, 600, 4096, 4096)
    assert found is not None
    assert [tile.bm for tile in found[0].tiles] == [128, 64]
