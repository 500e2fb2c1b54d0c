from collections.abc import Sequence
from dataclasses import dataclass

from running_max_step import RunningMaxStep

from ftuner.codegen.triton.source import TRITON_TYPES, Argument, Source, function_source
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import Kernel
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.step_kind import BoundOperand, CompiledStep, Places, Setting, StepKind

ROWS = 128
"""Rows of a program, one in each thread of four warps. Assumed, not tuned."""
BODY = f"""\
row = tl.program_id(0).to(tl.int64) * {ROWS} + tl.arange(0, {ROWS})
largest = tl.full(({ROWS},), float("-inf"), y.dtype.element_ty)
for i in range(count):
    value = tl.load(x + row * count + i, mask=row < rows, other=0.0)
    largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + row * count + i, largest, mask=row < rows)
"""


@dataclass(frozen=True)
class RunningMax(Launch):
    """The step at known extents."""

    kernel: Kernel
    x: BoundOperand
    y: BoundOperand

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        rows, count = self.x.shape
        x, y = self.x.tensor(arrays), self.y.tensor(arrays)
        self.kernel(-(-rows // ROWS), x, y, rows, count)


class CompiledRunningMax(CompiledStep):
    """The step before extents are known."""

    def __init__(self, step: RunningMaxStep, setting: Setting) -> None:
        pointer = f"*{TRITON_TYPES[step.x.layout.dtype.name]}"
        arguments = [Argument("x", pointer), Argument("y", pointer),
                     Argument("rows", "i64"), Argument("count", "i64")]  # fmt: skip
        lines = BODY.splitlines()
        self.source: Source = function_source("running_max", "", arguments, lines, 4, 1)
        self.sources = [self.source]
        self.step, self.kernels = step, setting.session.kernels
        self.dims = setting.dims.numbers((step.rows, *step.parameters()))

    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        rows, count, offset = (values[n] for n in self.dims)
        if not rows * count:
            return None
        shape, strides = (rows, count), (count, 1)
        x = BoundOperand(memory(self.step.x.buffer), shape, strides, offset)
        y = BoundOperand(memory(self.step.y), shape, strides, 0)
        return RunningMax(self.kernels.kernel(self.source), x, y)


class RunningMaxKind(StepKind[RunningMaxStep]):
    """One launch, with a thread for each row."""

    def compiled(self, step: RunningMaxStep, setting: Setting) -> CompiledRunningMax:
        return CompiledRunningMax(step, setting)


KIND = RunningMaxKind()
