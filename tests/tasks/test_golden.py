"""What code generators write for a small schedule."""

from collections.abc import Callable

import llvmlite.ir as ir
import pytest

import ftuner
from ftuner.hardware.isa import instruction_set
from ftuner.tasks import Out, f32, lanes, split, worker, workers
from ftuner.tasks.llvm import emit
from ftuner.tasks.triton import kernel_source


@ftuner.schedule
def scaled(x: f32["m", 8], scale: f32["m"], y: Out[f32["m", 8]]):
    for i in split(m, workers)(worker):
        for j in lanes(8):
            y[i, j] = x[i, j] * scale[i]


(PROGRAM,) = scaled.programs.values()


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512"])
def test_llvm(isa: str, golden: Callable[[str, str], None]) -> None:
    module = ir.Module("schedule")
    emit(module, "scaled", PROGRAM, instruction_set(isa))
    golden(f"schedule-{isa}.ll", str(module))


def test_triton(golden: Callable[[str, str], None]) -> None:
    golden("schedule.py.txt", kernel_source(PROGRAM).text)
