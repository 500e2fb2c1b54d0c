"""The step of a recurrent layer: one direction, all of its time steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.dim import Dim
from ftuner.core.recurrence import Cell
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import DimText


@dataclass(frozen=True)
class RecurrenceStep:
    """The states of a cell along the sequences of a batch."""

    kind: ClassVar[str] = "recurrence"
    title: str
    cell: Cell
    x: View
    """The input's part of all gates, (length, batch, gates * hidden), contiguous along the last
    axis."""
    weight: View
    """The recurrent weight, (gates * hidden, hidden), contiguous."""
    initial: tuple[View, ...]
    """The first states, (batch, hidden), contiguous, if the cell is given them."""
    columns: View | None
    """Peepholes or the bias of the reset product, contiguous."""
    lengths: View | None
    """One int32 for each sequence, contiguous."""
    y: View
    """The states h of all steps, (length, 1, batch, hidden), contiguous along the last axis."""
    last: tuple[View, ...]
    """The states after the last step, (1, batch, hidden), contiguous along the last axis."""
    planes: Buffer
    """Memory for sums and planes while the step runs."""
    panels: Buffer | None
    """Memory for the weight in panels, if it is not a constant."""
    directions: int
    """Directions of the layer, which run concurrently."""
    node: str
    """The node of the model, for error messages."""

    @property
    def hidden(self) -> int:
        hidden = self.weight.shape[1]
        assert isinstance(hidden, int)
        return hidden

    @property
    def views(self) -> tuple[View, ...]:
        """The arrays that the kernel reads at run time and those that it writes, in its order."""
        given = tuple(v for v in (self.columns, self.lengths) if v is not None)
        weight = () if self.panels is None else (self.weight,)
        return (self.x, *self.initial, *given, *weight, self.y, *self.last)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        given = (v.buffer for v in (self.columns, self.lengths) if v is not None)
        initial = (v.buffer for v in self.initial)
        return (self.x.buffer, self.weight.buffer, *initial, *given)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        panels = () if self.panels is None else (self.panels,)
        return (self.y.buffer, *(v.buffer for v in self.last), self.planes, *panels)

    @property
    def dims(self) -> tuple[Dim, ...]:
        views = (self.x, self.y, *self.last)
        return tuple(d for view in views for d in (*view.shape, *view.layout.strides))

    def described(self, text: DimText) -> str:
        length, batch, _ = self.x.shape
        hidden = text(self.hidden)
        return f"{text(length)} steps of [{text(batch)}, {hidden}] -> {hidden}"
