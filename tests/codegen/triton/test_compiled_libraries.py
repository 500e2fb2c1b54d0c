"""Whole libraries compiled ahead of time, without a GPU: every uKernel is what its model says."""

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.codegen.triton.resource_model import disagreements
from tests.conftest import share
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.targets import TARGETS
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.gpu.tile import Multiply
from ftuner.ukernels.gpu.library import build_gpu_library

LIBRARIES: list[tuple[str, Multiply, int]] = [
    ("h200", "bfloat16", 0), ("a100-sxm-80gb", "bfloat16", 0), ("h200", "tf32", 0),
    ("h200", "tf32x3", 0), ("a100-sxm-80gb", "tf32x3", 0), ("b200", "tf32x3", 0),
    ("b200", "bfloat16", 0), ("mi300x", "bfloat16", 0), ("h200", "bfloat16", 2),
    ("a100-sxm-80gb", "bfloat16", 3),
]  # fmt: skip
"""A chip, how it multiplies, and the axes of a window."""
ONE_OF = 3
"""Of a library's kernels, which have and have not split-k in turns."""


@pytest.mark.full
@pytest.mark.parametrize(
    "number", range(len(LIBRARIES)), ids=lambda n: "-".join(map(str, LIBRARIES[n]))
)
def test_a_library_is_what_its_model_says(number: int) -> None:
    chip, multiply, window = LIBRARIES[number]
    hardware = gpu(chip)
    dtype = FLOAT32 if multiply.startswith("tf32") else BFLOAT16
    kernels = build_gpu_library(hardware, dtype, multiply).kernels("k", "k", window=window)
    kernels = share(kernels, ONE_OF, number)
    target = TARGETS[hardware.architecture]
    found = {}
    for kernel, compiled in zip(
        kernels, compile_all([(gemm_source(k), target) for k in kernels]), strict=True
    ):
        assert compiled.resources is not None, (kernel.symbol, compiled.error)
        wrong = disagreements(kernel, target.name, target.warp_threads, compiled.resources)
        if wrong or compiled.resources.shared_bytes > hardware.shared_bytes_per_block:
            found[kernel.symbol] = (compiled.resources, *wrong)
    assert not found
