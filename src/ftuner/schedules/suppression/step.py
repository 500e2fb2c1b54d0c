"""The step of non-maximum suppression: the boxes of each label that are kept."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ftuner.core.dim import Dim, product
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.ops.suppression import COORDINATES
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text

LANES = 16
"""Kept boxes that a candidate is compared with at once."""


@dataclass(frozen=True)
class SuppressionStep(ViewStep):
    """The numbers of the boxes of each label that are kept, the highest score first."""

    kind: ClassVar[str] = "suppression"
    results: ClassVar[tuple[str, ...]] = ("rows", "candidates", "kept")
    title: str
    scores: View
    """(images, labels, boxes), in row-major order, but for an offset."""
    boxes: View
    """(images, boxes, 4), in the same order."""
    rows: Buffer
    """(images, labels, 1 + limit, 3) of int64: for each label the number of boxes that are kept,
    three times, then image, label and box of each, and -1 after the last one."""
    candidates: Buffer
    """Memory for a key of each score, and one more, while the step runs."""
    kept: Buffer
    """Memory for the coordinates and areas of kept boxes while the step runs: for each label 5
    rows of `limit + LANES` elements."""
    limit: Dim
    thresholds: tuple[int, int, int]
    """Bits of the threshold of overlaps and of that of scores, and whether there is the latter."""
    centred: bool
    """Whether boxes are centres and extents, not two corners."""

    @property
    def dtype(self) -> DType:
        return self.scores.layout.dtype

    @property
    def tasks(self) -> Dim:
        return product(self.scores.shape[:2])

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        _, labels, count = self.scores.shape
        offsets = (self.scores.layout.offset, self.boxes.layout.offset)
        return (count, labels, self.limit, *offsets, *self.thresholds)

    def described(self, text: DimText) -> str:
        return f"{shape_text(self.scores.shape, text)} -> {text(self.limit)}"


def lower(node: Node, placement: Placement) -> list[View] | None:
    scores, boxes = node.inputs
    dtype = scores.dtype
    place = placement.alone(node.output)
    images, labels, count = scores.shape
    limit = node.output.shape[2] - 1
    # A key has twice the bits of a score.
    keys = TensorType(dtype, (images, labels, count + 1, 2))
    kept = TensorType(dtype, (images, labels, COORDINATES + 1, limit + LANES))
    overlap, least = node.attributes["iou_threshold"], node.attributes["score_threshold"]
    bits = np.array([overlap, least or 0.0], dtype.name).view(f"int{dtype.bits}")
    placement.add(
        SuppressionStep(
            "suppress", placement.contiguous(scores), placement.contiguous(boxes), place.buffer,
            placement.apart(keys).buffer, placement.apart(kept).buffer, limit,
            (int(bits[0]), int(bits[1]), int(least is not None)), node.attributes["centred"],
        )
    )  # fmt: skip
    return [place]
