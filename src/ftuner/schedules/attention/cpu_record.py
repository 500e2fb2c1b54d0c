"""The layout of what the kernel of an attention reads, besides addresses."""

from __future__ import annotations


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
    Q_ROW, K_DEPTH, K_STEP, V_STEP, V_COLUMN, MASK_ROW, OUT_ROW = range(8, 15)
    SPLITS = 15
    """Tasks for each batch element: ranges of row tiles, near-even in length."""
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
    TILE = 30
    """Rows of a row tile."""
    COVERS = 31
    """Addresses of `AllCovers`: for full panels, the last one of k, the last one of v."""
    AXES = COVERS + 3
    AXIS_SIZE = 7
