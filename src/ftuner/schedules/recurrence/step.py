"""The step of a recurrent layer: one direction, all of its time steps."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.dim import product
from ftuner.core.dtype import INT8, INT16, INT32
from ftuner.core.frozen import dataclass
from ftuner.core.recurrence import MAX_TEAM, Cell
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep

PANEL_COLUMNS = 64
"""Columns of packed weights are a multiple of the lanes of a vector, which divide this."""
ROW_LEVELS = 64
"""Rows of rounded states have a multiple of this many levels: they are written by vectors."""
HEAD_BYTES = 64
"""Room for the scale and the zero point before a rounded state."""


@dataclass(frozen=True)
class RecurrenceStep(ViewStep):
    """The states of a cell along the sequences of a batch."""

    kind: ClassVar[str] = "recurrence"
    results: ClassVar[tuple[str, ...]] = ("y", "last", "planes", "panels")
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

    def described(self, text: DimText) -> str:
        length, batch, _ = self.x.shape
        hidden = text(self.hidden)
        return f"{text(length)} steps of [{text(batch)}, {hidden}] -> {hidden}"


def lower(node: Node, placement: Placement) -> tuple[View, ...]:
    cell: Cell = node.attributes["cell"]
    x, weight, *others = node.inputs
    dtype = placement.type_of(node.outputs[0]).dtype
    read = placement.contiguous_last(x, dtype)
    rest = [placement.contiguous(value, dtype if value.dtype != INT32 else None)
            for value in others]  # fmt: skip
    initial = [rest.pop(0) for _ in cell.states] if cell.initial else []
    columns = rest.pop(0) if cell.columns else None
    lengths = rest.pop(0) if cell.lengths else None
    levels = weight.dtype == INT8 and weight.constant is not None
    recurrent = placement.contiguous(weight, INT8 if levels else dtype)
    places = tuple(_place(value, placement) for value in node.outputs)
    batch, (width, hidden) = x.shape[1], weight.shape
    assert isinstance(width, int)
    assert isinstance(hidden, int)
    padded = -(-width // PANEL_COLUMNS) * PANEL_COLUMNS
    # One plane more for the new state.
    sums = batch * ((padded if cell.rounds else width) + (len(cell.planes) + 1) * hidden)
    if cell.rounds:
        # Each member of a team rounds the state for itself, to levels of 16 bits at most.
        row = -(-hidden // ROW_LEVELS) * ROW_LEVELS
        row = row * INT16.itemsize // dtype.itemsize if levels else row
        sums += MAX_TEAM * (batch * row + HEAD_BYTES // dtype.itemsize)
    planes = placement.apart(TensorType(dtype, (sums,))).buffer
    panels = None
    if recurrent.buffer.array is None:
        panels = placement.apart(TensorType(dtype, (product((padded, hidden)),))).buffer
    placement.add(
        RecurrenceStep(
            cell.kind, cell, read, recurrent, tuple(initial), columns, lengths, places[0],
            places[1:], planes, panels, node.attributes.get("directions", 1),
            node.attributes.get("node", ""),
        )
    )  # fmt: skip
    return places


def _place(value: Value, placement: Placement) -> View:
    """Memory for a result, whose rows may be apart but are contiguous."""
    place = placement.place(value)
    return place if place.layout.strides[-1] == 1 else placement.alone(value)
