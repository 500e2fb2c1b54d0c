"""Kernels of recurrent layers compiled ahead of time; `tests.runtime.gpu.test_recurrent` runs
them."""

from __future__ import annotations

import pytest

from ftuner.codegen.triton.targets import TARGETS
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.gpu.schedule import BLOCKS, RecurrenceKernel
from ftuner.core.recurrence import Activation, Cell
from ftuner.schedules.recurrence.gpu_kernel import recurrence_source

pytest.importorskip("triton")

from tests.codegen.triton.compiling import compile_all

SIGMOID, TANH = Activation("sigmoid"), Activation("tanh")
CELLS = (
    Cell("lstm", (SIGMOID, TANH, TANH), initial=True, lengths=True),
    Cell("gru", (SIGMOID, TANH)),
    Cell("gru", (SIGMOID, TANH), reset_after=True),
    Cell("rnn", (TANH,)),
)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_kernels_compile_and_spill_nothing(target: str) -> None:
    kernels = [
        RecurrenceKernel(dtype, cell, stage, 200, block, False, True)
        for dtype in (BFLOAT16, FLOAT32)
        for cell in CELLS
        for stage in range(len(cell.stages()))
        for block in BLOCKS
    ]
    pairs = [(recurrence_source(kernel), TARGETS[target]) for kernel in kernels]
    for kernel, compiled in zip(kernels, compile_all(pairs), strict=True):
        assert compiled.error == "", kernel
        if compiled.resources is not None:
            assert compiled.resources.spilled_bytes == 0, kernel
