"""Recurrent layers on a GPU: a launch for each stage of each step.

Launches follow each other on the stream, which is all that orders steps. A shape that repeats is
recorded, so that the host's time for launches is paid once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ftuner.codegen.triton.source import Source
from ftuner.core.dtype import INT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.schedule import BLOCKS, Block, RecurrenceKernel, block_of, turns
from ftuner.core.gpu.tile import MOST_COUNTED
from ftuner.core.recurrence import Cell
from ftuner.errors import ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.steps import Step
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import Kernel, Kernels
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.step_kind import (
    BoundOperand,
    CompiledStep,
    Operands,
    Places,
    Setting,
    StepKind,
    reversed_bytes,
)
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.recurrence.gpu_kernel import recurrence_source
from ftuner.schedules.recurrence.step import RecurrenceStep


class BoundRecurrence(Launch):
    """A direction of a layer at known extents."""

    def __init__(
        self, cell: Cell, hidden: int, kernels: Sequence[Kernel], block: Block,
        operands: Sequence[BoundOperand], planes: Tensor | int, status: Tensor | None,
    ) -> None:  # fmt: skip
        """`kernels`: one for each stage. `operands`: in the order of `_views`. `planes`: at least
        as many elements as the planes of the cell, and one more of them, or the number of an array
        of the run."""
        self._cell = cell
        self._kernels = kernels
        self._operands = operands
        self._status = status
        self._steps, self._rows, _ = operands[0].shape
        self._planes = planes
        self._each = len(cell.planes) + 1, self._rows, hidden
        """The number of planes, and their extents."""
        self._programs = -(-self._rows // block.sequences) * -(-hidden // block.hidden)
        self.count = self._steps * len(kernels) + 2 * len(cell.states)

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        cell, status = self._cell, self._status
        tensors = iter([operand.tensor(arrays) for operand in self._operands])
        x, weight = next(tensors), next(tensors)
        initial = [next(tensors) for _ in cell.states] if cell.initial else []
        rest = [next(tensors)] if cell.columns else []
        if cell.lengths:
            lengths = next(tensors)
            rest.append(lengths)
            assert status is not None
            bad = ((lengths < 0) | (lengths > self._steps)).any().to(status.dtype)
            status.copy_(torch.maximum(status, bad.reshape(status.shape)))
        y, last = next(tensors), list(tensors)
        planes = arrays[self._planes] if isinstance(self._planes, int) else self._planes
        planes = planes[: math.prod(self._each)]
        each = planes.view(self._each)
        states = each[: len(cell.states)]
        if initial:
            for plane, first in zip(states, initial, strict=True):
                plane.copy_(first)
            if cell.lengths:
                states.masked_fill_((lengths == 0)[None, :, None], 0)
        else:
            states.zero_()
        parity, flips = 0, turns(cell)
        for step in self._order():
            numbers = step, parity, self._rows, x.stride(1), y.stride(2)
            for kernel in self._kernels:
                given = x[step], y[step], weight, planes, *rest
                kernel(self._programs, *given, *numbers)
            parity = 1 - parity if flips else 0
        found = [each[-1] if parity else each[0], *states[1:]]
        for target, state in zip(last, found, strict=True):
            target.copy_(state.reshape(target.shape))

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        return reversed_bytes(self._operands, arrays)

    def _order(self) -> Iterator[int]:
        return iter(reversed(range(self._steps)) if self._cell.reverse else range(self._steps))


@dataclass(frozen=True)
class CompiledRecurrence(CompiledStep):
    """A recurrence whose layouts have numbers."""

    step: RecurrenceStep
    kernels: Kernels
    made: dict[Block, list[Source]]
    """The kernels of the stages by block."""
    operands: Operands
    sources: Sequence[Source]
    checks: tuple[str, ...]

    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        step, operands = self.step, self.operands.bound(values, memory)
        _, rows, width = operands[0].shape
        if not rows:
            return None
        if rows * width > MOST_COUNTED:
            raise ShapeError(
                f"{step.title} of {rows} sequences of {width} gates; at most {MOST_COUNTED} "
                "elements of a step are possible"
            )
        block = block_of(rows)
        kernels = [self.kernels.kernel(source) for source in self.made[block]]
        planes = memory(step.planes)
        return BoundRecurrence(step.cell, step.hidden, kernels, block, operands, planes, status)


class RecurrenceKind(MatrixKind, StepKind[RecurrenceStep]):
    """A recurrence launches each stage of a step by itself."""

    def multiplied(self, step: Step) -> DType:
        # No launch rounds a state, so that levels are refused.
        rounds = isinstance(step, RecurrenceStep) and step.cell.rounds
        return INT8 if rounds else super().multiplied(step)

    def compiled(self, step: RecurrenceStep, setting: Setting) -> CompiledRecurrence:
        made = {
            block: [
                recurrence_source(
                    RecurrenceKernel(
                        step.x.layout.dtype, step.cell, stage, step.hidden, block, setting.tf32,
                        step.weight.layout.offset == 0,
                    )
                )
                for stage in range(len(step.cell.stages()))
            ]
            for block in BLOCKS
        }  # fmt: skip
        checks: tuple[str, ...] = ()
        if step.lengths is not None:
            checks = (": ".join(filter(None, (step.node, "length of a sequence"))),)
        return CompiledRecurrence(
            step, setting.session.kernels, made, Operands.of(_views(step), setting.layouts),
            [source for sources in made.values() for source in sources], checks,
        )  # fmt: skip


def _views(step: RecurrenceStep) -> tuple[View, ...]:
    """The input's part, the weight, the first states, columns and lengths if there are any, the
    states of all steps, and the last ones."""
    given = tuple(v for v in (step.columns, step.lengths) if v is not None)
    return (step.x, step.weight, *step.initial, *given, step.y, *step.last)


KIND = RecurrenceKind()
