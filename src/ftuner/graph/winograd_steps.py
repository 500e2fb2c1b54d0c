"""The steps of convolutions by Winograd's products. A `ConvolutionStep` follows each of them, which
does the work where these are slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.dim import Dim, Shape
from ftuner.core.expr import Expr
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import DimText, shape_text


@dataclass(frozen=True)
class _WinogradStep:
    """A convolution of two spatial axes."""

    title: str
    x: View
    """(images, rows, positions, channels), with contiguous channels, as `out`."""
    weight: View
    """(rows, positions, channels, columns) of the window, in row-major order."""
    out: View
    begin: Shape
    epilogue: Expr
    operands: tuple[View, ...]
    """As of a product whose rows are the positions of the result."""

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.x.buffer, self.weight.buffer, *(v.buffer for v in self.operands))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.out.buffer,)

    @property
    def dims(self) -> tuple[Dim, ...]:
        views = (self.x, self.out, *self.operands)
        return (*self.begin, *(d for v in views for d in (*v.shape, *v.layout.strides)))

    def described(self, text: DimText) -> str:
        shapes = (self.x.shape, self.weight.shape[:2], self.out.shape)
        x, window, out = (shape_text(shape, text) for shape in shapes)
        return f"{x} by {window} -> {out}"


@dataclass(frozen=True)
class WinogradStep(_WinogradStep):
    """By a window of 3 x 3 that moves one position at a time: products of tiles."""

    kind: ClassVar[str] = "winograd"


@dataclass(frozen=True)
class LineWinogradStep(_WinogradStep):
    """By any window: products along the last axis (`core.winograd`). Positions of x follow
    each other without gaps."""

    kind: ClassVar[str] = "line_winograd"
    strides: tuple[int, int]
