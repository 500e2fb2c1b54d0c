"""Plans for a GPU: of a product, the bands of one shape and how its tiles are spread over programs;
of attention, the kernel and how its tiles are cut and ordered."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionKernel
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


class AttentionProblem(NamedTuple):
    """Extents; where requests are of unequal length, `rows` and `keys` are those of all together,
    and `RequestLengths` says how they are divided."""

    batch: int
    """Requests."""
    heads: int
    """Of keys and values."""
    sharing: int
    """Heads of queries that share a head of keys and values."""
    rows: int
    keys: int
    depth: int
    columns: int
    past: int = 0
    """As in `core.gpu.attention.Causal`."""


class RequestLengths(NamedTuple):
    """Of requests that lie one after the other."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]


class AttentionPlan(NamedTuple):
    """One launch: `parts` programs for each tile of each head, or group of heads."""

    problem: AttentionProblem
    kernel: AttentionKernel
    group: int
    """Heads whose tiles are taken side by side, so that L2 holds their keys and values."""
    parts: int
    """Parts that the keys of a tile are cut into; 1 unless the kernel splits."""

    @property
    def elements(self) -> int:
        """Heads, or groups of heads, whose tiles are counted apart: those of one request, if
        requests are of unequal length, else of all."""
        problem, kernel = self.problem, self.kernel
        heads = problem.heads * (1 if kernel.packed else problem.sharing)
        return heads if kernel.form.ragged is not None else heads * problem.batch

    @property
    def packed_rows(self) -> int:
        """Of one element, those of all heads that share keys where they are rows of one tile."""
        return self.problem.rows * (self.problem.sharing if self.kernel.packed else 1)

    @property
    def tiles(self) -> int:
        """Of one element. Requests that lie one after the other have at most one tile each more
        than their rows together, wherever they begin."""
        problem, kernel, rows = self.problem, self.kernel, self.packed_rows
        if kernel.form.ragged is not None:
            return rows // kernel.tile.bq + problem.batch
        return -(-rows // kernel.tile.bq)

    @property
    def blocks(self) -> int:
        """Of keys, that a tile which sees all of them takes one after the other, its parts
        together."""
        return -(-self.problem.keys // self.kernel.tile.bk)

    @property
    def programs(self) -> int:
        """Launched; 0 if there is nothing to compute."""
        return self.elements * self.tiles * self.parts

    @property
    def workspace_floats(self) -> int:
        return self.programs * self.kernel.partial_floats if self.kernel.split else 0

    @property
    def arrivals(self) -> int:
        """Counters."""
        return self.elements * self.tiles if self.kernel.split else 0
