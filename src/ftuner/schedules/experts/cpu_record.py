"""The layout of what the kernel of a mixture of experts reads, besides addresses."""

from __future__ import annotations


class Experts:
    """Parameters of the kernel of expert products, besides addresses; distances in bytes."""

    ROWS = 0
    """Rows of the result."""
    SLOTS = 1
    """Successive rows of the result that read one row of x."""
    EXPERTS = 2
    K = 3
    COLUMNS = 4
    X_ROW = 5
    OUT_ROW = 6
    WEIGHT = 7
    """Address of the weights in panels, one expert after the other."""
    WEIGHT_BYTES = 8
    """Bytes of an expert's weight."""
    PANEL = 9
    """Columns of a full panel."""
    PANELS = 10
    """Full panels of an expert."""
    COVERS = 11
    """Addresses of `AllCovers`, for full panels and for the last one."""
    TAIL_COVERS = 12
    BLOCK = 13
    """Most rows of an expert that are multiplied at a time."""
    WORKSPACE = 14
    WORKER_BYTES = 15
    """Bytes of the workspace for each worker. It begins with the rows in the order of their
    experts; offsets of the rest follow."""
    ENDS_OFFSET = 16
    """Of the end of each expert's rows in that order."""
    A_OFFSET = 17
    """Of the gathered rows of x of a block."""
    C_OFFSET = 18
    """Of a block's results of one panel."""
    SIZE = 19
