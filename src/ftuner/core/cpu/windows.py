"""How a CPU walks windows of single channels: depthwise convolutions and pooling."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.dtype import DType
from ftuner.core.expr import Expr

BLOCK = 32
"""Positions of a row in a task. Derived: a task is some microseconds,
and its borders are few of its positions."""
MOST_TOGETHER = 8
"""Positions computed at once. Derived: the weight's loads are then an eighth of the
multiply-adds."""


@dataclass(frozen=True)
class DepthwiseKernel:
    """What the code of a depthwise convolution or of a reduction of windows depends on. Axes are
    rows and positions of a row."""

    dtype: DType
    reduction: str | None
    """Of the elements of a window (`sum`, `maximum`, `minimum`); None for a convolution."""
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    epilogue: Expr
    group: int = 1
    """Channels of a group, a power of two: each is a sum over all of them."""

    def together(self, registers: int) -> int:
        """Positions of a row that are computed at once: one register holds an element of x, one
        is left over, the others hold the sums and a row of the weight, if there is one. Half of
        the most are worth loading parts of the weight again."""
        weights = self.window[1] * self.group if self.reduction is None else 0
        return max(min(registers - weights - 2, MOST_TOGETHER), MOST_TOGETHER // 2)
