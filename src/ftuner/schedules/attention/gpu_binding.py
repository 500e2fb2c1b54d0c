"""Attention on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftuner.codegen.triton.source import Source
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.attention import MAX_EXTENT, AttentionKernel
from ftuner.graph.buffers import View
from ftuner.graph.ragged import Rows
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.step_kind import (
    Alike,
    BoundOperand,
    CompiledStep,
    Operands,
    Places,
    Rehearsal,
    Setting,
    StepKind,
    Together,
    are_read_in_place,
    nowhere,
    reversed_bytes,
)
from ftuner.runtime.ops.attention_operands import Requests
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.attention.gpu_binding_launches import Attentions, How
from ftuner.schedules.attention.gpu_binding_launches import Operands as AttentionOperands
from ftuner.schedules.attention.step import AttentionStep

MOST_HEAD_AXES = 2
"""Axes of heads of requests in one launch: those of keys, and of queries that share them."""
REHEARSED_ROWS = 64
"""Of requests together when kernels are found: more than one, of which any stride is valid."""


class BoundAttention(Rehearsal):
    """Attention."""

    def __init__(self, attentions: Attentions, how: How, operands: Sequence[BoundOperand]) -> None:
        """`operands`: q, k, v, the mask and the sinks if there are any, and the result."""
        super().__init__(operands)
        self._attentions, self._how = attentions, how

    def launched(self, arrays: Sequence[Tensor]) -> Sequence[BoundKernel] | None:
        found = self._attentions.run(self._tensors(arrays), self._how)
        return found if are_read_in_place(self._operands) else None

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        found = self._attentions.workspace_bytes(self._tensors(arrays), self._how)
        return found + reversed_bytes(self._operands, arrays)

    def alike(self) -> Alike:
        """What decides whether requests can share a launch; operands may have no data."""
        operands, how = self._tensors(()), self._how
        past = None if how.causal == "none" else how.past
        return Alike(past, self._attentions.bits(operands, how), operands.q.shape[-2])

    def wanted(self) -> list[Source]:
        """All that it may launch, as of `BoundProduct`."""
        return [*self.kernels().values()]

    def kernels(self) -> dict[AttentionKernel, Source]:
        """The sources of all that it may launch, by kernel."""
        return self._attentions.wanted(self._tensors(()), self._how)

    def _tensors(self, arrays: Sequence[Tensor]) -> AttentionOperands:
        q, k, v, *optional, out = (x.tensor(arrays) for x in self._operands)
        sinks = optional.pop() if self._how.softmax.sinks else None
        return AttentionOperands(q, k, v, out, optional.pop() if optional else None, sinks)


@dataclass(frozen=True)
class CompiledAttention(CompiledStep):
    """An attention whose layouts have numbers."""

    step: AttentionStep
    attentions: Attentions
    softmax: AttentionSoftmax
    """Without its limit on keys."""
    tf32: bool
    operands: Operands
    past: int | None
    """The number of the dim that limits keys; None if there is none."""

    def bind(
        self, values: Sequence[int], memory: Places, status: Tensor | None
    ) -> BoundAttention | None:
        return self.rehearsal(values, memory)

    def together(self, rows: Rows) -> AttentionsTogether | None:
        found, (*batch, _, columns) = self.step.sequences(rows), self.step.out.shape
        few = isinstance(columns, int) and columns <= MAX_EXTENT
        if found is None or not few:
            return None
        heads = [axis for axis in range(len(batch)) if axis != found.axis]
        if len(heads) > MOST_HEAD_AXES:
            return None
        # Of two axes the last one is that of heads which share keys and values.
        apart = [x.layout.strides[heads[-1]] != 0 for x in (self.step.k, self.step.v) if heads]
        if len(heads) > 1 and batch[heads[-1]] != 1 and any(apart):
            return None
        return AttentionsTogether(self, rows, found.axis)

    def rehearsal(self, values: Sequence[int], memory: Places) -> BoundAttention | None:
        operands = self.operands.bound(values, memory)
        if 0 in operands[-1].shape:
            return None
        return BoundAttention(self.attentions, self.how(values), operands)

    def how(self, values: Sequence[int]) -> How:
        """The softmax for values of the dims."""
        past = None if self.past is None else values[self.past]
        return How.of(self.softmax, past, self.tf32)


class AttentionsTogether(Together):
    """The attentions of several requests, each to its own rows."""

    def __init__(self, compiled: CompiledAttention, rows: Rows, axis: int | None) -> None:
        """`axis`: as of `AttentionStep.sequences`."""
        step = compiled.step
        views = (step.q, step.k, step.v, step.out, *step.optional)
        super().__init__([view.buffer for view in views])
        self._compiled, self._axis = compiled, axis
        last = len(step.out.shape) - 1
        counted = [(last - 1,), (last,), (last - 1,), (last - 1,), (last - 1, last)]
        """Of each operand the axes of rows and keys."""
        widths = [rows.width(buffer) or 0 for buffer in self.buffers]
        self._operands = [*zip(views, widths, counted, strict=False)]

    def alike(self, values: Sequence[int]) -> Alike | None:
        bound = self._compiled.rehearsal(values, nowhere)
        found = None if bound is None else bound.alike()
        # Its kernel has no form for rows of several requests.
        return None if found is None or found.bits.kernel.tile.specialised else found

    def wanted(self, values: Sequence[int]) -> list[Source]:
        alone = self._compiled.rehearsal(values, nowhere)
        if alone is None or not alone.exists:
            return []
        operands = self._tensors([*map(nowhere, self.buffers)], 0, REHEARSED_ROWS)
        compiled = self._compiled
        return compiled.attentions.wanted_together(operands, compiled.how(values), alone.kernels())

    def launch(
        self, memories: Sequence[Tensor], first: int, offsets: Sequence[int], like: Alike,
        exact: bool,
    ) -> None:  # fmt: skip
        compiled, requests = self._compiled, Requests(tuple(offsets), tuple(offsets))
        how = How.of(compiled.softmax, like.past, compiled.tf32)
        how = how._replace(requests=requests, bits=like.bits if exact else None)
        compiled.attentions.run(self._tensors(memories, first, offsets[-1]), how)

    def _tensors(self, memories: Sequence[Tensor], first: int, rows: int) -> AttentionOperands:
        """The operands of `rows` rows from the row `first` on."""
        pairs = zip(self._operands, memories, strict=True)
        return AttentionOperands(*(self._operand(*x, memory, first, rows) for x, memory in pairs))

    def _operand(
        self, view: View, width: int, counted: Sequence[int], memory: Tensor, first: int, rows: int
    ) -> Tensor:
        layout: Any = view.layout
        loops = [*zip(layout.shape, layout.strides, strict=True)]
        # Along an axis of one element the stride may depend on extents.
        loops = [
            (rows, stride) if axis in counted else (n, 0 if n == 1 else stride)
            for axis, (n, stride) in enumerate(loops)
        ]
        if self._axis is not None:
            del loops[self._axis]
        extents, strides = zip(*loops, strict=True)
        begin = memory.storage_offset() + first * width + layout.offset
        return memory.as_strided(extents, strides, begin)


class AttentionKind(MatrixKind, StepKind[AttentionStep]):
    """An attention launches the plan of its extents."""

    def compiled(self, step: AttentionStep, setting: Setting) -> CompiledAttention:
        causal = step.softmax.causal
        return CompiledAttention(
            step,
            setting.session.attentions,
            replace(step.softmax, causal=None),
            setting.tf32,
            Operands.of(step.views, setting.layouts),
            None if causal is None else setting.dims.number(causal),
        )


KIND = AttentionKind()
