"""How a GPU walks windows of single channels: depthwise convolutions and pooling."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.dim import Dim
from ftuner.core.dtype import DType
from ftuner.core.expr import Expr

WARPS = 4
"""Warps of a block. Assumed: 128 threads, as those of nests."""
CHANNELS = (64, 32, 128)
"""Channels of a block where there are more than of the shortest, the best first: whole lines of
memory."""


@dataclass(frozen=True)
class DepthwiseKernel:
    """What the code of a depthwise convolution or of a reduction of windows depends on. Axes are
    rows and positions of a row."""

    x: DType
    weight: DType | None
    out: DType
    operands: tuple[DType, ...]
    """Of the epilogue."""
    reduction: str | None
    """Of the elements of a window (`sum`, `maximum`, `minimum`); None for a convolution."""
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    epilogue: Expr
    group: int
    """Channels of a group: each is a sum over all of them."""
    block: tuple[int, int]
    """Positions and channels of a block."""
    even: bool = False
    """Whether channels, offsets and strides are multiples of elements of 16 bytes."""


def depthwise_block(channels: Dim, elements: int) -> tuple[int, int]:
    """Returns the positions and channels of a block of `elements`: the channels that leave the
    fewest lanes idle."""
    best = CHANNELS[0]
    if isinstance(channels, int):
        if channels < min(CHANNELS):
            best = 1 << max(channels - 1, 0).bit_length()
        else:
            best = min(CHANNELS, key=lambda block: -(-channels // block) * block)
    return max(elements // best, 1), best
