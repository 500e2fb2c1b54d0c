"""The step of products by weights that are chosen at run time: those of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.dim import Dim, product
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import DimText


@dataclass(frozen=True)
class ExpertsStep:
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

    @property
    def reads(self) -> tuple[Buffer, ...]:
        bias = () if self.bias is None else (self.bias.buffer,)
        return (self.x.buffer, self.weight.buffer, self.index.buffer, *bias)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.out.buffer,)

    @property
    def dims(self) -> tuple[Dim, ...]:
        views = (self.x, self.index, self.out)
        return tuple(d for view in views for d in (*view.shape, *view.layout.strides))

    def described(self, text: DimText) -> str:
        experts, k, n = self.extents
        of = f"{text(self.slots)} of {text(experts)} experts"
        return f"[{text(self.x.shape[0])}, {text(k)}] by {of} -> {text(n)}"
