"""The step of a nest of loops: what computes all that no other schedule does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.access import Kernel
from ftuner.core.dim import Dim
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import DimText, shape_text


@dataclass(frozen=True)
class NestStep:
    """Loops over a kernel, whose buffers are those it reads and then those it writes."""

    kind: ClassVar[str] = "nest"
    title: str
    kernel: Kernel
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self.kernel.parameters())

    def described(self, text: DimText) -> str:
        kept = shape_text(self.kernel.kept, text)
        reduced = self.kernel.reduced
        return f"{kept} over {shape_text(reduced, text)}" if reduced else kept
