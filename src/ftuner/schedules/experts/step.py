"""The step of products by weights that are chosen at run time: those of a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.dim import Dim, product
from ftuner.core.dtype import INT64
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import View, as_rows
from ftuner.graph.ir import Node
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep


@dataclass(frozen=True)
class ExpertsStep(ViewStep):
    """`out[t, s] = x[t] @ weight[index[t, s]] + bias[index[t, s]]`."""

    kind: ClassVar[str] = "experts"
    title: str
    x: View
    """(tokens, k), contiguous along k."""
    weight: View
    """A constant of (experts, k, n), in row-major order; (experts, n, k) if it is transposed."""
    transposed: bool
    index: View
    """(tokens, slots) of int64, in row-major order. Negative numbers count from the last expert."""
    bias: View | None
    """(experts, n), in row-major order."""
    out: View
    """(tokens * slots, n), contiguous along n."""
    node: str
    """The node of the model, for error messages."""

    @property
    def extents(self) -> tuple[int, int, int]:
        """Experts, k and n."""
        experts, k, n = (extent for extent in self.weight.shape if isinstance(extent, int))
        return (experts, n, k) if self.transposed else (experts, k, n)

    @property
    def slots(self) -> Dim:
        """Experts of each token."""
        return self.index.shape[1]

    @property
    def rows(self) -> Dim:
        """Rows of the result."""
        return product(self.index.shape)

    @property
    def views(self) -> tuple[View, ...]:
        """The arrays of the kernel, in its order."""
        bias = () if self.bias is None else (self.bias,)
        return (self.x, self.index, self.out, *bias)

    def described(self, text: DimText) -> str:
        experts, k, n = self.extents
        of = f"{text(self.slots)} of {text(experts)} experts"
        return f"[{text(self.x.shape[0])}, {text(k)}] by {of} -> {text(n)}"


def lower(node: Node, placement: Placement) -> tuple[View] | None:
    x, weight, index, *bias = node.inputs
    dtype = placement.type_of(node.output).dtype
    known = weight.constant is not None and 0 not in weight.shape
    if not known or not placement.runs(ExpertsStep.kind, dtype):
        return None
    chosen = placement.contiguous(index)
    if index.dtype != INT64:
        chosen = placement.converted(chosen, INT64)
    rows = placement.rows(x, dtype)
    of_experts = placement.contiguous(weight, dtype)
    biases = placement.contiguous(bias[0], dtype) if bias else None
    place = placement.place(node.output)
    out = as_rows(place) if place.layout.strides[-1] == 1 else None
    if out is None:
        place = placement.alone(node.output)
        out = as_rows(place)
    assert out is not None
    placement.add(
        ExpertsStep(
            node.op, rows, of_experts, node.attributes["transposed"], chosen, biases, out,
            node.attributes.get("node", ""),
        )
    )  # fmt: skip
    return (place,)
