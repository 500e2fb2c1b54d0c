"""Kernels of GPUs with the default tuning."""

from typing import Any

from ftuner.core.gpu.tile import BlockTile, ProductKernel
from ftuner.hardware.gpu_tuning import GpuTuning

BLOCK_SIZES = GpuTuning().block_sizes
SUMS_IN_FLIGHT = GpuTuning().sums_in_flight


def product_kernel(tiles: tuple[BlockTile, ...], *given: Any, **options: Any) -> ProductKernel:
    """`ProductKernel` with the slicing of the default tuning."""
    return ProductKernel(tiles, *given, slicing=GpuTuning().slicing, **options)
