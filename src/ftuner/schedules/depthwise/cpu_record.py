"""The layout of what the kernel of windows of single channels reads, besides addresses."""

from __future__ import annotations


class Depthwise:
    """Parameters of the depthwise kernel besides addresses; offsets and distances in elements.
    After the last slot follow the offset of each operand of the epilogue and the distance between
    its rows."""

    HEIGHT = 0
    WIDTH = 1
    CHANNELS = 2
    OUT_HEIGHT = 3
    OUT_WIDTH = 4
    BEGIN_Y = 5
    """Padding before the first row."""
    BEGIN_X = 6
    X_OFFSET = 7
    X_IMAGE = 8
    X_ROW = 9
    X_PIXEL = 10
    OUT_OFFSET = 11
    OUT_IMAGE = 12
    OUT_ROW = 13
    OUT_PIXEL = 14
    SIZE = 15
