"""Kernels of single channels compiled ahead of time; `tests.runtime.gpu.test_convolution` runs
them."""

import re

from tests.codegen.triton.compiling import compile_all
from tests.conftest import covering

from ftuner.codegen.triton.targets import TARGETS
from ftuner.core.dim import symbol
from ftuner.core.dtype import BFLOAT16, FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Operand, relu
from ftuner.core.gpu.schedule import DepthwiseKernel, depthwise_block
from ftuner.schedules.depthwise.gpu_kernel import depthwise_source

BIAS = Operand("bias", "column")


def kernel(
    dtype: DType, window: tuple[int, int], reduction: str | None, even: bool
) -> DepthwiseKernel:
    weight = dtype if reduction is None else None
    return DepthwiseKernel(
        dtype, weight, dtype, (FLOAT32,), reduction, window, (1, 1), (1, 1),
        relu(ACCUMULATOR + BIAS), 1, depthwise_block(64, 1024), even,
    )  # fmt: skip


def test_loads_are_vectors_and_none_wait_for_sums() -> None:
    windows, reductions = ((3, 3), (7, 7)), (None, "maximum")
    cases = covering(("sm_80", "sm_90"), (BFLOAT16, FLOAT32), windows, reductions)
    pairs = [(depthwise_source(kernel(*case, True)), TARGETS[target]) for target, *case in cases]
    for case, compiled in zip(cases, compile_all(pairs), strict=True):
        assert compiled.error == ""
        assert compiled.resources is not None
        assert compiled.resources.spilled_bytes == 0
        # No elements move between threads.
        assert compiled.resources.shared_bytes == 0
        loads = re.findall(r"ld\.global\S*", compiled.assembly)
        assert loads
        assert all(".v4" in load for load in loads), case


def test_blocks_leave_few_lanes_idle() -> None:
    found = {c: depthwise_block(c, 1024) for c in (3, 16, 24, 32, 64, 96, 144, 1000, symbol("C"))}
    assert list(found.values()) == [
        (256, 4), (64, 16), (32, 32), (32, 32), (16, 64), (32, 32), (32, 32), (16, 64), (16, 64),
    ]  # fmt: skip
