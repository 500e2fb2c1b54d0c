"""Problems for a GPU: a product and attention, as they are planned."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionKernel
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile, Order, ProductKernel
from ftuner.core.product import ReadWindow, extents_text
from ftuner.core.shown import Shown
from ftuner.core.units import count


class ProductProblem(NamedTuple):
    """The extents of a product, and the orders and alignment of its operands."""

    m: int
    n: int
    k: int
    batch: int = 1
    a_order: Order = "k"
    b_order: Order = "k"
    alignment: int = ALIGNMENT_BYTES
    """As in `ProductKernel`."""
    c_aligned: bool = True
    """As in `ProductKernel`."""
    window: ReadWindow | None = None
    """How A is read through a window, if it is; then the batch elements are groups."""


class AttentionProblem(NamedTuple):
    """The extents of attention. Where requests are of unequal length, `rows` and `keys` are sums
    over requests, and `RequestLengths` has the lengths."""

    batch: int
    """Requests."""
    heads: int
    """Heads of keys and values."""
    sharing: int
    """Heads of queries that share a head of keys and values."""
    rows: int
    keys: int
    depth: int
    columns: int
    past: int = 0
    """As in `core.gpu.attention.Causal`."""


class RequestLengths(NamedTuple):
    """The lengths of concatenated requests."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]


class ProductPlanFields(NamedTuple):
    """The decisions that make up a `ProductPlan`. Apart from it, because a `NamedTuple` has no
    other base."""

    problem: ProductProblem
    kernel: ProductKernel
    rows: int
    """Rows of the first band; a multiple of its `bm` unless it is the only band."""
    split_k: int
    """Parts that k is cut into; 1 unless the kernel splits k."""
    swizzle: int
    """Row tiles that are walked column by column before the next ones, so that L2 still holds what
    they share: the swizzle size of CUTLASS, `GROUP_SIZE_M` in Triton's tutorials."""
    programs: int
    """Programs launched: all that fit the chip at once, or fewer."""


class ProductPlan(Shown, ProductPlanFields):
    """The exact cover of one shape.

    A tile is numbered within its band; bands follow each other, and batch elements. Each of
    `tiles` tiles is `split_k` units of work; program `p` of `programs` does p, p + programs, ...
    """

    __slots__ = ()

    def summary(self) -> str:
        """The problem, the tiles and the programs."""
        split_k = f", split-k {self.split_k}" if self.split_k > 1 else ""
        return (
            f"{extents_text(self.problem)}: {count(self.tiles, 'tile')} of "
            f"{' and '.join(map(str, self.kernel.tiles))} by {self.kernel.loads}{split_k}, "
            f"{count(self.programs, 'program')} in {count(self.waves, 'wave')}"
        )

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
    def units(self) -> int:
        """Tiles, times split-k."""
        return self.tiles * self.split_k

    @property
    def idle(self) -> int:
        """Idle programs of the last wave."""
        return self.waves * self.programs - self.units

    @property
    def waves(self) -> int:
        """Units of the busiest program."""
        return -(-self.units // self.programs)

    def number(self, row: int, column: int) -> int:
        """Returns the number of the tile that computes an element of the first batch element, in
        the order in which programs take tiles."""
        before = 0
        for tile, first, last in self.bands:
            row_tiles = -(-(last - first) // tile.bm)
            if row < last:
                break
            before += self.problem.batch * row_tiles * self.columns
        row_tile = (row - first) // tile.bm
        first_of_swizzle = row_tile // self.swizzle * self.swizzle
        height = min(row_tiles - first_of_swizzle, self.swizzle)
        place = column // tile.bn * height + row_tile - first_of_swizzle
        return before + first_of_swizzle * self.columns + place

    def wave(self, row: int, column: int) -> int:
        """Returns the wave that finishes an element: the units that the program which finishes its
        tile has done before."""
        return ((self.number(row, column) + 1) * self.split_k - 1) // self.programs


class AttentionPlan(NamedTuple):
    """One launch: `split_keys` programs for each tile of each head, or of heads that share keys."""

    problem: AttentionProblem
    kernel: AttentionKernel
    l2_heads: int
    """Heads whose tiles are interleaved: as many as L2 holds the keys and values of."""
    split_keys: int
    """Parts that the keys of a tile are cut into; 1 unless the kernel splits keys."""

    @property
    def elements(self) -> int:
        """Heads, or sets of heads that share keys where these are packed: of one request if they
        are of unequal length, else of the whole batch."""
        problem, kernel = self.problem, self.kernel
        heads = problem.heads * (1 if kernel.packed else problem.sharing)
        return heads if kernel.form.ragged is not None else heads * problem.batch

    @property
    def packed_rows(self) -> int:
        """Rows of one element, including those of heads that share keys where these are packed."""
        return self.problem.rows * (self.problem.sharing if self.kernel.packed else 1)

    @property
    def tiles(self) -> int:
        """Tiles of one element. Concatenated requests need at most one tile each more than their
        rows together."""
        problem, kernel, rows = self.problem, self.kernel, self.packed_rows
        if kernel.form.ragged is not None:
            return rows // kernel.tile.bq + problem.batch
        return -(-rows // kernel.tile.bq)

    @property
    def blocks(self) -> int:
        """Blocks of keys of a tile that sees all keys."""
        return -(-self.problem.keys // self.kernel.tile.bk)

    @property
    def programs(self) -> int:
        """Programs launched; 0 if there is nothing to compute."""
        return self.elements * self.tiles * self.split_keys

    @property
    def workspace_floats(self) -> int:
        return self.programs * self.kernel.partial_floats if self.kernel.split else 0

    @property
    def arrivals(self) -> int:
        """Counters of arrived programs, one for each tile that is split."""
        return self.elements * self.tiles if self.kernel.split else 0
