"""Whole libraries compiled ahead of time, without a GPU: every uKernel is what its model says."""

from __future__ import annotations

import pytest

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.targets import TARGETS, disagreements
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.gpu.tile import Multiply
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.ukernels.gpu.library import build_gpu_library

pytest.importorskip("triton")

from tests.codegen.triton.compiling import compile_all


@pytest.mark.parametrize(
    ("chip", "multiply", "window"),
    [
        ("h200", "bfloat16", 0),
        pytest.param("a100-sxm-80gb", "bfloat16", 0, marks=pytest.mark.full),
        pytest.param("h200", "tf32", 0, marks=pytest.mark.full),
        pytest.param("h200", "tf32x3", 0, marks=pytest.mark.full),
        pytest.param("a100-sxm-80gb", "tf32x3", 0, marks=pytest.mark.full),
        pytest.param("b200", "tf32x3", 0, marks=pytest.mark.full),
        pytest.param("b200", "bfloat16", 0, marks=pytest.mark.full),
        pytest.param("mi300x", "bfloat16", 0, marks=pytest.mark.full),
        pytest.param("h200", "bfloat16", 2, marks=pytest.mark.full),
        pytest.param("a100-sxm-80gb", "bfloat16", 3, marks=pytest.mark.full),
    ],
)
def test_a_library_is_what_its_model_says(chip: str, multiply: Multiply, window: int) -> None:
    hardware = load_recorded(chip)
    assert isinstance(hardware, GpuHardware)
    dtype = FLOAT32 if multiply.startswith("tf32") else BFLOAT16
    kernels = build_gpu_library(hardware, dtype, multiply).kernels("k", "k", window=window)
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
