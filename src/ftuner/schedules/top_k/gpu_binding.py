"""The best elements of rows on a GPU: torch sorts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.step_kind import BoundOperand, CompiledStep, Places, Setting, StepKind
from ftuner.schedules.top_k.step import TopKStep


@dataclass(frozen=True)
class BoundTopK(Launch):
    """The best of each row, in order of position where elements are equal."""

    x: BoundOperand
    """`(blocks, count, distance)`: rows whose elements are `distance` apart are interleaved."""
    targets: tuple[BoundOperand, BoundOperand]
    """Values and positions, `(blocks, wanted, distance)`."""
    largest: bool

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        found = self.x.tensor(arrays).sort(dim=1, descending=self.largest, stable=True)
        for target, source in zip(self.targets, found, strict=True):
            target.tensor(arrays).copy_(source[:, : target.shape[1]])

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        """The sorted values and their positions."""
        x = self.x.tensor(arrays)
        return x.nbytes + x.numel() * torch.int64.itemsize


@dataclass(frozen=True)
class CompiledTopK(CompiledStep):
    """A top-k whose dims have numbers."""

    step: TopKStep
    dims: tuple[int, ...]
    """The numbers of the rows, then of `TopKStep.parameters`."""

    def bind(
        self, values: Sequence[int], memory: Places, status: Tensor | None
    ) -> BoundTopK | None:
        rows, count, wanted, distance, offset = (values[n] for n in self.dims)
        if not rows * wanted:
            return None

        def operand(buffer: Buffer, along: int, offset: int = 0) -> BoundOperand:
            shape, strides = (rows // distance, along, distance), (along * distance, distance, 1)
            return BoundOperand(memory(buffer), shape, strides, offset)

        step = self.step
        targets = operand(step.values, wanted), operand(step.positions, wanted)
        return BoundTopK(operand(step.x.buffer, count, offset), targets, step.largest)


class TopKKind(StepKind[TopKStep]):
    """A top-k has no kernel of ours."""

    def compiled(self, step: TopKStep, setting: Setting) -> CompiledTopK:
        return CompiledTopK(step, setting.dims.numbers((step.rows, *step.parameters())))


KIND = TopKKind()
