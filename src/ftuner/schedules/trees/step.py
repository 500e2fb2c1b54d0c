"""The step of ensembles of trees: the leaf that each row reaches in each tree."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ftuner.core.dim import Dim, ceil_quotient
from ftuner.core.dtype import INT32, DType
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Array, Node
from ftuner.graph.ops.trees import COLUMN, LEAF, MISSING, NEXT
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text

ROWS = 128
"""Rows of a task. The nodes of all trees come from L2 or L3 once for each task; of tables with 20
to 60 columns, its rows stay in L1 or L2."""

MOST_LEVELS = 4
"""Most levels that rows go down before it is looked at whether all are at leaves."""


@dataclass(frozen=True)
class TreesStep(ViewStep):
    """The leaf that each row reaches in each tree."""

    kind: ClassVar[str] = "trees"
    results: ClassVar[tuple[str, ...]] = ("leaves",)
    title: str
    x: View
    """(rows, columns), in row-major order, but for an offset."""
    nodes: Buffer
    """Constant records of int32; see `node_records`."""
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

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (*self.x.shape, self.trees, self.x.layout.offset)

    def described(self, text: DimText) -> str:
        return f"{shape_text(self.x.shape, text)}, {text(self.trees)} trees"


def lower(node: Node, placement: Placement) -> list[View] | None:
    x, splits, nodes = node.inputs
    if splits.constant is None or nodes.constant is None:
        return None
    if not placement.runs(TreesStep.kind, x.dtype):
        return None
    trees, depth, missing = (node.attributes[name] for name in ("trees", "depth", "missing"))
    records = node_records(splits.constant, nodes.constant, missing)
    place = placement.alone(node.output)
    placement.add(
        TreesStep(
            "trees", placement.contiguous(x), Buffer("constant", INT32, records.size, 0, records),
            place.buffer, trees, depth, missing,
        )
    )  # fmt: skip
    return [place]


def node_records(splits: Array, nodes: Array, missing: bool) -> Array:
    """Each node as int32: the words of its split, its column, if `missing` with the sign bit set if
    NaN goes where numbers below the split do, the next node, the leaf, and padding to 8 bytes."""
    asked = missing & (nodes[:, MISSING] > 0)
    column = nodes[:, COLUMN] | np.where(asked, np.iinfo(np.int32).min, 0)
    words = np.ascontiguousarray(splits).view(np.int32).reshape(len(nodes), splits.itemsize // 4)
    fields = [*words.T, column, nodes[:, NEXT], nodes[:, LEAF]]
    fields += [column] * (len(fields) % 2)
    return np.stack(fields, 1).astype(np.int32)
