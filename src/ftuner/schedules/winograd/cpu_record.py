"""The layout of what the kernel of Winograd's products of tiles reads, besides addresses."""

from __future__ import annotations


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
    BLOCKS = 13
    """Blocks that all tiles, or the rows of an image, are cut into evenly."""
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
    """Addresses of `AllCovers`, for full panels and for the last one."""
    TAIL_COVERS = 21
    OWN = 22
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
    BLOCK = TILES + 6
    """Tiles of a block that there is memory for."""
    OPERANDS = TILES + 7
