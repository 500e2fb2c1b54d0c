"""Plans for a GPU: the bands of one shape, and how its tiles are spread over programs."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.tile import BlockTile, Order, ProductKernel


class ProductProblem(NamedTuple):
    """What is to be planned: extents, and how operands lie."""

    m: int
    n: int
    k: int
    batch: int = 1
    a_order: Order = "k"
    b_order: Order = "k"
    aligned: bool = True
    """As in `ProductKernel`."""
    c_aligned: bool = True
    """As in `ProductKernel`."""


class ProductPlan(NamedTuple):
    """The exact cover of one shape.

    A tile is numbered within its band; bands follow each other, and batch elements. Of `tiles`
    tiles, each cut into `parts` parts of k, program `p` of `programs` does p, p + programs, ...
    """

    problem: ProductProblem
    kernel: ProductKernel
    rows: int
    """Of the first band, a multiple of its `bm` unless it is the only one."""
    parts: int
    """Parts that k is cut into; 1 unless the kernel splits."""
    group: int
    """Row tiles that are walked together, column by column, so that L2 still holds what they
    share."""
    programs: int
    """Programs launched: all that fit the chip at once, or fewer."""

    @property
    def bands(self) -> tuple[tuple[BlockTile, int, int], ...]:
        """(tile, first row, last row) of each band."""
        first = (self.kernel.main, 0, self.rows)
        if len(self.kernel.tiles) == 1:
            return (first,)
        return (first, (self.kernel.tiles[1], self.rows, self.problem.m))

    @property
    def columns(self) -> int:
        """Column tiles of a band."""
        return -(-self.problem.n // self.kernel.main.bn)

    @property
    def tiles(self) -> int:
        """Tiles of all bands and batch elements."""
        of_rows = sum(-(-(last - first) // tile.bm) for tile, first, last in self.bands)
        return self.problem.batch * of_rows * self.columns

    @property
    def waves(self) -> int:
        """Units, a unit being a part of a tile, that the busiest program does one after the
        other."""
        return -(-self.tiles * self.parts // self.programs)

    def number(self, row: int, column: int) -> int:
        """The number of the tile that computes an element of the first matrix of a batch, in the
        order in which programs take tiles."""
        before = 0
        for tile, first, last in self.bands:
            row_tiles = -(-(last - first) // tile.bm)
            if row < last:
                break
            before += self.problem.batch * row_tiles * self.columns
        row_tile = (row - first) // tile.bm
        first_of_group = row_tile // self.group * self.group
        height = min(row_tiles - first_of_group, self.group)
        place = column // tile.bn * height + row_tile - first_of_group
        return before + first_of_group * self.columns + place

    def wave(self, row: int, column: int) -> int:
        """When an element is ready: how many units the program that finishes its tile has done
        before."""
        return ((self.number(row, column) + 1) * self.parts - 1) // self.programs
