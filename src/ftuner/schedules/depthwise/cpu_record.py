"""The layout of what the kernel of windows of single channels reads, besides addresses."""

from __future__ import annotations


class Depthwise:
    """Parameters of the depthwise kernel besides addresses; offsets and distances in elements.
    After the last slot follow the offset of each operand of the epilogue and the distance between
    its rows."""

    HEIGHT, WIDTH, CHANNELS, OUT_HEIGHT, OUT_WIDTH = range(5)
    BEGIN_Y, BEGIN_X = range(5, 7)
    """Padding before the first row and position."""
    X_OFFSET, X_IMAGE, X_ROW, X_PIXEL = range(7, 11)
    OUT_OFFSET, OUT_IMAGE, OUT_ROW, OUT_PIXEL = range(11, 15)
    SIZE = 15
