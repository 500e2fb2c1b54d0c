"""The step of pairwise coupling: probabilities of classes from those of pairs."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text

ROWS = 64
"""Rows of a task, which have one matrix of memory. Derived: of three classes, some microseconds."""


@dataclass(frozen=True)
class CouplingStep(ViewStep):
    """The probabilities of the classes of each row."""

    kind: ClassVar[str] = "coupling"
    results: ClassVar[tuple[str, ...]] = ("probabilities", "matrices")
    title: str
    pairs: View
    """(rows, pairs), in row-major order, but for an offset."""
    probabilities: Buffer
    """(rows, classes)."""
    matrices: Buffer
    """Memory for the equations of a row while the step runs: (tasks, classes + 1, classes)."""
    classes: int

    @property
    def dtype(self) -> DType:
        return self.pairs.layout.dtype

    @property
    def tasks(self) -> Dim:
        return ceil_quotient(self.pairs.shape[0], ROWS)

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (self.pairs.shape[0], self.classes, self.pairs.layout.offset)

    def described(self, text: DimText) -> str:
        return f"{shape_text(self.pairs.shape, text)} -> {text(self.classes)}"


def lower(node: Node, placement: Placement) -> list[View]:
    pairs, place = placement.contiguous(node.inputs[0]), placement.alone(node.output)
    rows, classes = node.output.shape
    assert isinstance(classes, int)
    matrices = TensorType(node.output.dtype, (ceil_quotient(rows, ROWS), classes + 1, classes))
    placement.add(
        CouplingStep(
            "coupling", pairs, place.buffer, placement.apart(matrices).buffer, classes
        )
    )  # fmt: skip
    return [place]
