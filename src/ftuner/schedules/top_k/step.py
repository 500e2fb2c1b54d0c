"""The step of the best elements of rows."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.dim import Dim, product
from ftuner.core.dtype import INT64
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text

MOST_BYTES = 4
"""Of an element that fits into a key together with its position."""


@dataclass(frozen=True)
class TopKStep(ViewStep):
    """The `wanted` best of each row of `count` elements, in order, and where they were."""

    kind: ClassVar[str] = "top_k"
    results: ClassVar[tuple[str, ...]] = ("values", "positions", "keys")
    title: str
    x: View
    """In row-major order, but for an offset."""
    values: Buffer
    positions: Buffer
    rows: Dim
    count: Dim
    wanted: Dim
    distance: Dim
    """Elements between those of one row."""
    largest: bool
    keys: Buffer | None = None
    """Memory for two keys of each element found while the step runs; None if an element and its
    position do not fit into one."""

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (self.count, self.wanted, self.distance, self.x.layout.offset)

    def described(self, text: DimText) -> str:
        best = shape_text((self.rows, self.wanted), text)
        return f"{shape_text((self.rows, self.count), text)} -> {best}"


def lower(node: Node, placement: Placement) -> list[View]:
    (x,) = node.inputs
    axis, k = node.attributes["axis"], node.attributes["k"]
    places = [placement.alone(v) for v in node.outputs]
    values, positions = (place.buffer for place in places)
    distance = product(x.shape[axis + 1 :])
    rows = product(x.shape[:axis]) * distance
    operand, largest = placement.contiguous(x), node.attributes["largest"]
    keys = None
    if x.dtype.itemsize <= MOST_BYTES:
        keys = placement.apart(TensorType(INT64, (rows, 2, k))).buffer
    placement.add(
        TopKStep(
            "top_k", operand, values, positions, rows, x.shape[axis], k, distance, largest, keys
        )
    )  # fmt: skip
    return places
