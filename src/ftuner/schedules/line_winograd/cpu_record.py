"""The layout of what the kernel of Winograd's products along one axis reads, besides addresses."""

from __future__ import annotations

from ftuner.schedules.winograd.cpu_record import WinogradCommon


class LineWinograd(WinogradCommon):
    """Parameters of the kernel of Winograd's products along one axis. Its weights are transformed,
    each in panels."""

    LINES = WinogradCommon.OWN
    """Lines of a row."""
    RUN = LINES + 1
    """Elements of x that follow each other in all phases: channels by the stride."""
    KERNEL_ROWS = LINES + 2
    STRIDE_Y = LINES + 3
    STRIDE_X = LINES + 4
    INPUTS_BYTES = LINES + 5
    """Between the transformed inputs of successive points, as the next two."""
    SUMS_BYTES = LINES + 6
    WEIGHT_BYTES = LINES + 7
    OPERANDS = LINES + 8
