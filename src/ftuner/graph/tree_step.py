"""The step of ensembles of trees: the leaf that each row reaches in each tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.dtype import DType
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import DimText, shape_text

ROWS = 128
"""Rows of a task. The nodes of all trees come from L2 or L3 once for each task; of tables with 20
to 60 columns, its rows stay in L1 or L2."""

MOST_LEVELS = 4
"""Most levels that rows go down before it is looked at whether all are at leaves."""


@dataclass(frozen=True)
class TreesStep:
    """The leaf that each row reaches in each tree."""

    kind: ClassVar[str] = "trees"
    title: str
    x: View
    """(rows, columns), in row-major order, but for an offset."""
    nodes: Buffer
    """Constant records of int32; see `graph.ops.trees.node_records`."""
    leaves: Buffer
    """(rows, trees) of int32."""
    trees: int
    depth: int
    missing: bool
    """Whether a node says where rows without a number go."""

    @property
    def dtype(self) -> DType:
        return self.x.layout.dtype

    @property
    def levels(self) -> int:
        """Levels that rows go down at a time: those of the deepest tree in even parts."""
        return -(-self.depth // max(-(-self.depth // MOST_LEVELS), 1)) or 1

    @property
    def tasks(self) -> Dim:
        return ceil_quotient(self.x.shape[0], ROWS)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.x.buffer, self.nodes)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.leaves,)

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (*self.x.shape, self.trees, self.x.layout.offset)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.parameters()

    def described(self, text: DimText) -> str:
        return f"{shape_text(self.x.shape, text)}, {text(self.trees)} trees"
