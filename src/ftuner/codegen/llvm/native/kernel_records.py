"""Layouts of the parameters that the kernels of steps read at run time, besides addresses."""

from __future__ import annotations

from ftuner.codegen.llvm.native.records import TeamState
from ftuner.core.cpu.tile import MAX_OPERANDS, MAX_SEGMENTS


class Attention:
    """Parameters of the attention kernel besides addresses; strides in bytes. After the last slot
    follow the batch axes: for each its extent and its strides in q, k, v, the mask, the sinks and
    the result."""

    ROWS = 0
    """Rows of q in one batch element."""
    DEPTH = 1
    STEPS = 2
    """Columns of the scores and rows of v: the keys that at least one row sees."""
    COLUMNS = 3
    """Columns of v and of the result."""
    SCALE = 4
    """A float64 as bits, as are the next two."""
    HIDDEN = 5
    """The score that replaces those that a boolean mask hides."""
    FLOOR = 6
    """Lower bound of a row's largest score."""
    CAUSAL = 7
    """Row i of a causal attention sees keys j <= i + CAUSAL."""
    Q_ROW = 8
    K_DEPTH = 9
    K_STEP = 10
    V_STEP = 11
    V_COLUMN = 12
    MASK_ROW = 13
    OUT_ROW = 14
    SPLITS = 15
    """Tasks for each batch element: ranges of blocks."""
    BLOCK = 16
    """Rows of a block, whose scores exist at a time."""
    SCORE_ROW = 17
    """Bytes between rows of scores."""
    PACK = 18
    """Address of the packing function."""
    WORKSPACE = 19
    WORKER_BYTES = 20
    """Bytes of the workspace for each worker. It begins with packed k; offsets of the rest
    follow."""
    V_OFFSET = 21
    SCORES_OFFSET = 22
    SUMS_OFFSET = 23
    STEP_PADDED = 24
    """Columns of the last packed panel of k, if it is not full."""
    COLUMN_PADDED = 25
    PANEL = 26
    """Columns of a full panel."""
    BROKEN = 27
    """The result of a row whose softmax is NaN: a float64 as bits."""
    CAP = 28
    """What multiplies the hyperbolic tangent of scores, in kernels that cap them: a float64 as
    bits."""
    SINKS_ROW = 29
    COVERS = 30
    """Row tiles of a block: for full panels, the last one of k, the last one of v; then the same
    for the last block. Each `MAX_SEGMENTS` segments, unused ones without tiles."""
    AXES = COVERS + 6 * 3 * MAX_SEGMENTS
    AXIS_SIZE = 7


class WinogradCommon:
    """Parameters that both kernels of Winograd's products have besides addresses; distances in
    bytes. After the last slot of each follow the distances between rows of each operand of the
    epilogue."""

    HEIGHT = 0
    WIDTH = 1
    BEGIN_Y = 2
    """Padding before the first row."""
    BEGIN_X = 3
    X_IMAGE = 4
    X_ROW = 5
    X_PIXEL = 6
    OUT_HEIGHT = 7
    OUT_WIDTH = 8
    OUT_CHANNELS = 9
    OUT_IMAGE = 10
    OUT_ROW = 11
    OUT_PIXEL = 12
    BLOCK = 13
    """Tiles, or rows of a line, in a task."""
    WORKSPACE = 14
    WORKER_BYTES = 15
    """Bytes of the workspace for each worker. It begins with the transformed inputs; offsets of the
    rest follow."""
    SUMS_OFFSET = 16
    PATCH_OFFSET = 17
    PANEL = 18
    """Columns of a full panel."""
    WEIGHT = 19
    """Address of the weight in panels."""
    COVERS = 20
    """Row tiles of a block: for full panels, for the last one; then the same for the last block.
    Each `MAX_SEGMENTS` segments, unused ones without tiles."""
    OWN = COVERS + 4 * 3 * MAX_SEGMENTS
    """The first slot that only one of the kernels has."""


class Winograd(WinogradCommon):
    """Parameters of the kernel of Winograd's products of tiles. Its weight has one row for each
    element of the window and channel."""

    TILES = WinogradCommon.OWN
    """Tiles of all images."""
    TILE_ROWS = TILES + 1
    """Rows of tiles in an image."""
    TILE_COLUMNS = TILES + 2
    CHANNELS = TILES + 3
    WEIGHT_OFFSET = TILES + 4
    """Of a panel's transformed weight, for `CHANNEL_BLOCK` channels at a time."""
    CHANNEL_BLOCK = TILES + 5
    OPERANDS = TILES + 6


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


class Recurrence:
    """Parameters of the recurrence kernel besides addresses; distances in bytes."""

    STEPS = 0
    ROWS = 1
    """Sequences of the batch."""
    HIDDEN = 2
    BLOCK = 3
    """Sequences of a task; the last one may have fewer."""
    X_STEP = 4
    X_ROW = 5
    Y_STEP = 6
    Y_ROW = 7
    H_ROW = 8
    """Of the states after the last step."""
    C_ROW = 9
    PANEL = 10
    """Columns of a full panel."""
    WEIGHT = 11
    """Address of the weight in panels, unless it is packed at run time."""
    PACK = 12
    """Address of the packing function."""
    TAIL = 13
    """Columns of the last packed panel, if it is not full."""
    TEAM = 14
    """Tasks that share each step, by columns; 1 if a task is a block of sequences."""
    GATE_PANELS = 15
    """Panels of a gate if a team shares each gate by panels; 0 if gates begin within panels or have
    fewer, and all panels of a stage are shared."""
    COVERS = 16
    """Row tiles of a block: for full panels, for the last one; then the same for the last block.
    Each `MAX_SEGMENTS` segments, unused ones without tiles."""
    TEAM_STATE = COVERS + 4 * 3 * MAX_SEGMENTS
    SIZE = TEAM_STATE + TeamState.SIZE


class LevelPanel:
    """The layout of a weight of 8-bit levels: panels, in which each group of k steps has the
    columns one after the other, each with its steps. What is missing is zero."""

    VECTORS = 4
    """Vectors of a panel; a lane has the steps of a column."""
    STEPS = 4
    """k steps of a group."""
    ROW = 16
    """Rows of levels of 16 bits have a multiple of this many."""


class AllCovers:
    """The covers of any number of rows by the panels of one width."""

    LIMIT = 0
    """Rows that covers are listed for. More rows begin with main tiles, at least one, so that no
    more than these are left."""
    MAIN = 1
    """Rows of a main tile."""
    KERNEL = 2
    """The address of its uKernel."""
    TABLES = 3
    """The covers of 0, 1, ... `LIMIT` rows, and then those of as many rows that follow main tiles,
    whose first segment is one of main tiles, too: each `MAX_SEGMENTS` segments, unused ones without
    tiles."""


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
    OPERANDS = 21
    """Between rows of each operand of the epilogue."""
    SIZE = OPERANDS + MAX_OPERANDS


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
