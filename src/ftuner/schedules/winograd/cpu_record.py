"""The layout of what the kernel of Winograd's products of tiles reads, besides addresses."""

from __future__ import annotations


class WinogradCommon:
    """Parameters that both kernels of Winograd's products have besides addresses; distances in
    bytes. After the last slot of each follow the distances between rows of each operand of the
    epilogue."""

    HEIGHT, WIDTH = range(2)
    BEGIN_Y, BEGIN_X = range(2, 4)
    """Padding before the first row and position."""
    X_IMAGE, X_ROW, X_PIXEL = range(4, 7)
    OUT_HEIGHT, OUT_WIDTH, OUT_CHANNELS, OUT_IMAGE, OUT_ROW, OUT_PIXEL = range(7, 13)
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
