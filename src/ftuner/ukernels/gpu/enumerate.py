"""Enumeration: every block tile that Triton could compile, before any filter."""

from __future__ import annotations

from itertools import product

from ftuner.core.gpu.tile import BlockTile

EXTENTS = (16, 32, 64, 128, 256)
"""Heights and widths of a tile. Triton's blocks are powers of two, and its products take at least
16 rows and columns."""
ROW_BYTES = (64, 128, 256)
"""Bytes of `bk` elements: half a memory line, one line, or two. Swizzled rows of shared memory have
the same lengths."""
WARPS = (4, 8)
STAGES = (2, 3, 4, 5, 6)


def block_tiles(itemsize: int) -> list[BlockTile]:
    """Every combination of height, width, depth, warps and stages, for elements of `itemsize`
    bytes."""
    depths = [row_bytes // itemsize for row_bytes in ROW_BYTES]
    return [BlockTile(*found) for found in product(EXTENTS, EXTENTS, depths, WARPS, STAGES)]
