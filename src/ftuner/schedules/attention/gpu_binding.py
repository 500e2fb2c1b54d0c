"""Attention on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.codegen.triton.source import Source
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.step_kind import (
    BoundOperand,
    CompiledStep,
    Operands,
    Places,
    Rehearsal,
    Setting,
    StepKind,
    are_read_in_place,
    exist,
    reversed_bytes,
)
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.attention.gpu_binding_launches import Attentions
from ftuner.schedules.attention.step import AttentionStep


class BoundAttention(Rehearsal):
    """Attention."""

    def __init__(
        self, attentions: Attentions, softmax: AttentionSoftmax, past: int | None, tf32: bool,
        operands: Sequence[BoundOperand],
    ) -> None:  # fmt: skip
        """`operands`: q, k, v, the mask and the sinks if there are any, and the result; `past`: the
        value of `softmax.causal`."""
        super().__init__([x.memory for x in operands])
        self._attentions = attentions
        self._how = softmax, past, tf32
        self._operands = operands

    def launched(self, arrays: Sequence[Tensor]) -> Sequence[BoundKernel] | None:
        q, k, v, out, mask, sinks = self._tensors(arrays)
        found = self._attentions.run(q, k, v, out, mask, *self._how, sinks)
        return found if are_read_in_place(self._operands) else None

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        q, k, v, out, mask, sinks = self._tensors(arrays)
        found = self._attentions.workspace_bytes(q, k, v, out, mask, *self._how, sinks)
        return found + reversed_bytes(self._operands, arrays)

    @property
    def exists(self) -> bool:
        return exist(self._operands)

    def wanted(self) -> list[Source]:
        """All that it may launch, as of `BoundProduct`."""
        q, k, v, out, mask, sinks = self._tensors(())
        return self._attentions.wanted(q, k, v, out, mask, *self._how, sinks)

    def _tensors(
        self, arrays: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        q, k, v, *optional, out = (x.tensor(arrays) for x in self._operands)
        sinks = optional.pop() if self._how[0].sinks else None
        return q, k, v, out, optional.pop() if optional else None, sinks


@dataclass(frozen=True)
class CompiledAttention(CompiledStep):
    """An attention whose layouts have numbers."""

    attentions: Attentions
    softmax: AttentionSoftmax
    tf32: bool
    operands: Operands
    past: int | None
    """The number of the dim `softmax.causal`; None if that is None."""

    def bind(
        self, values: Sequence[int], memory: Places, status: Tensor | None
    ) -> BoundAttention | None:
        return self.rehearsal(values, memory)

    def rehearsal(self, values: Sequence[int], memory: Places) -> BoundAttention | None:
        operands = self.operands.bound(values, memory)
        if 0 in operands[-1].shape:
            return None
        past = None if self.past is None else values[self.past]
        return BoundAttention(self.attentions, self.softmax, past, self.tf32, operands)


class AttentionKind(MatrixKind, StepKind[AttentionStep]):
    """An attention launches the plan of its extents."""

    def compiled(self, step: AttentionStep, setting: Setting) -> CompiledAttention:
        causal = step.softmax.causal
        return CompiledAttention(
            setting.session.attentions,
            step.softmax,
            setting.tf32,
            Operands.of(step.views, setting.layouts),
            None if causal is None else setting.dims.number(causal),
        )


KIND = AttentionKind()
