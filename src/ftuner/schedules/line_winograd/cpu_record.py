"""The layout of what the kernel of Winograd's products along one axis reads, besides addresses."""

from __future__ import annotations

from ftuner.schedules.winograd.cpu_record import WinogradCommon


class LineWinograd(WinogradCommon):
    """Parameters of the kernel of Winograd's products along one axis. Its weights are transformed,
    each in panels."""

    ROW_BLOCKS = WinogradCommon.OWN
    """Blocks of rows of an image."""
    LINES = ROW_BLOCKS + 1
    """Lines of a row."""
    RUN = ROW_BLOCKS + 2
    """Elements of x that follow each other in all phases: channels by the stride."""
    KERNEL_ROWS = ROW_BLOCKS + 3
    STRIDE_Y = ROW_BLOCKS + 4
    STRIDE_X = ROW_BLOCKS + 5
    INPUTS_BYTES = ROW_BLOCKS + 6
    """Between the transformed inputs of successive points, as the next two."""
    SUMS_BYTES = ROW_BLOCKS + 7
    WEIGHT_BYTES = ROW_BLOCKS + 8
    OPERANDS = ROW_BLOCKS + 9
