"""Kernels of recurrent layers compiled ahead of time; `tests.runtime.gpu.test_recurrent` runs
them."""

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.conftest import covering

from ftuner.codegen.triton.targets import TARGETS
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.gpu.schedule import BLOCKS, RecurrenceKernel
from ftuner.core.recurrence import Activation, Cell
from ftuner.schedules.recurrence.gpu_kernel import recurrence_source

SIGMOID, TANH = Activation("sigmoid"), Activation("tanh")
CELLS = (
    Cell("lstm", (SIGMOID, TANH, TANH), initial=True, lengths=True),
    Cell("gru", (SIGMOID, TANH)),
    Cell("gru", (SIGMOID, TANH), reset_after=True),
    Cell("rnn", (TANH,)),
)


STAGES = [(cell, stage) for cell in CELLS for stage in range(len(cell.stages()))]
CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942")
CASES = covering(CHIPS, (BFLOAT16, FLOAT32), STAGES, BLOCKS)


@pytest.mark.parametrize("target", CHIPS)
def test_kernels_compile_and_spill_nothing(target: str) -> None:
    kernels = [
        RecurrenceKernel(dtype, cell, stage, 200, block, False, True)
        for chip, dtype, (cell, stage), block in CASES
        if chip == target
    ]
    pairs = [(recurrence_source(kernel), TARGETS[target]) for kernel in kernels]
    for kernel, compiled in zip(kernels, compile_all(pairs), strict=True):
        assert compiled.error == "", kernel
        if compiled.resources is not None:
            assert compiled.resources.spilled_bytes == 0, kernel
