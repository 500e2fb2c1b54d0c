"""The layout of what the kernel of a chain that is walked by stripes reads, besides addresses."""

from __future__ import annotations

from ftuner.core.cpu.tile import MAX_OPERANDS


class Stripes:
    """Parameters of the kernel that walks a chain of steps by stripes, besides addresses. After the
    last slot follows a `StripeMember` for each step."""

    PARTS = 0
    """Tasks of each image: ranges of rows of the last result."""
    STRIPE = 1
    """Rows of the last result that are computed at a time."""
    WORKSPACE = 2
    WORKER_BYTES = 3
    """Bytes of the workspace for each worker."""
    MEMBERS = 4


class StripeMember:
    """A step of the chain; distances in bytes. A private result is that of any member but the
    last: some rows of it are in the worker's workspace."""

    ROWS = 0
    """Rows of its result in an image."""
    POSITIONS = 1
    READ_ROWS = 2
    """Rows of what it reads."""
    STRIDE = 3
    REACH = 4
    BEGIN = 5
    OFFSET = 6
    """Of its private result in the worker's workspace."""
    CAPACITY = 7
    """Rows of the private result that there is memory for."""
    ROW_BYTES = 8
    """Of a row of the private result."""
    FUNCTION = 9
    """Of a kernel: its address."""
    DIMS = 10
    """Of a kernel: the address of what it reads at run time."""
    K = 11
    """The other slots are those of a product."""
    A_ROW = 12
    """Between the rows of A, which are positions; 0 if it is read through a window."""
    C_ROW = 13
    B = 14
    """The address of the weight in panels."""
    PANELS = 15
    """Full panels."""
    PANEL = 16
    """Columns of a full panel."""
    TAIL = 17
    """Columns left over."""
    COVERS = 18
    """Addresses of `AllCovers`, for full panels and for the last one."""
    TAIL_COVERS = 19
    WINDOW = 20
    """The address of the `Window` that A is read through, or 0."""
    FINISH = 21
    """What tiles apply: their own epilogue, or a function; see `Context`."""
    OPERANDS = 22
    """Between rows of each operand of the epilogue."""
    SIZE = OPERANDS + MAX_OPERANDS
