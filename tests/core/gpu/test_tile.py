"""Block tiles: their slices, and what they take of shared memory."""

from dataclasses import replace

import pytest
from tests.gpu_kernels import product_kernel

from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.expr import ACCUMULATOR, Operand, applied
from ftuner.core.gpu.tile import BlockTile, ProductKernel

WIDE = BlockTile(128, 256, 64, 8, 4)
COPIED = product_kernel((WIDE,), BFLOAT16, "bfloat16", "k", "k", loads="descriptors")
POINTED = replace(COPIED, loads="pointers")
LOW = replace(COPIED, tiles=(BlockTile(16, 128, 128, 4, 4),))
RESIDUAL = ACCUMULATOR + Operand("res", "matrix")


@pytest.mark.parametrize(
    ("kernel", "slices"),
    [
        (COPIED, 2),
        (POINTED, 1),
        (replace(COPIED, specialised=True), 1),
        (replace(COPIED, epilogue=applied("gelu", ACCUMULATOR)), 4),
        (replace(POINTED, epilogue=applied("gelu", ACCUMULATOR)), 4),
        (replace(POINTED, c_aligned=False), 8),
        (replace(COPIED, c_aligned=False), 8),
        (LOW, 1),
        (replace(LOW, tiles=(BlockTile(128, 16, 64, 1, 2),), epilogue=RESIDUAL), 1),
    ],
)
def test_slices(kernel: ProductKernel, slices: int) -> None:
    assert kernel.slices == slices


# Bytes that Triton allocated, compiled for these chips, but for its barriers.
@pytest.mark.parametrize(
    ("kernel", "architecture", "bytes_"),
    [
        (COPIED, "sm_90", 229_408),
        (replace(COPIED, epilogue=RESIDUAL), "sm_90", 229_408),
        (replace(COPIED, epilogue=applied("gelu", ACCUMULATOR)), "sm_90", 213_024),
        (LOW, "sm_90", 114_712),
        (replace(POINTED, tiles=(BlockTile(128, 128, 64, 8, 3),)), "sm_90", 98_304),
        (replace(POINTED, tiles=(BlockTile(128, 128, 64, 8, 3),)), "sm_80", 65_536),
        (replace(POINTED, tiles=(BlockTile(64, 64, 32, 4, 3),), alignment=2), "sm_90", 8_192),
        (
            product_kernel((BlockTile(64, 64, 16, 4, 3),), FLOAT32, "float32", "k", "k"),
            "sm_90",
            16_384,
        ),
    ],
)
def test_shared_bytes(kernel: ProductKernel, architecture: str, bytes_: int) -> None:
    assert kernel.shared_bytes(architecture) == bytes_


def test_names_tell_kernels_apart() -> None:
    kernels = [COPIED, POINTED, LOW, replace(COPIED, c_aligned=False), replace(COPIED, split=True),
               *(replace(POINTED, alignment=x) for x in (8, 4, 2)),
               replace(COPIED, specialised=True),
               replace(COPIED, epilogue=RESIDUAL), replace(COPIED, a_order="spatial")]  # fmt: skip
    assert len({kernel.symbol for kernel in kernels}) == len(kernels)
    assert all(kernel.symbol.isidentifier() for kernel in kernels)
