"""What the planner solves and finds: one matrix product at run-time extents, and its plan.

These values are made on the path of a call whose shape is new, so they are named tuples, the
cheapest frozen values Python has.
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.product import ReadWindow, extents_text
from ftuner.core.shown import Shown
from ftuner.core.units import count
from ftuner.cost.cpu.tile import AT_HAND, Reading
from ftuner.ukernels.cpu.library import BSource, Family


class Problem(NamedTuple):
    """What is planned: extents, layouts of operands, and the number of workers.

    Made on the path of a call whose shape is new, hence a named tuple.
    """

    m: int
    n: int
    k: int
    batch: int
    a_layout: str
    """`row`, `column` or `window`; an A that is none of them is packed and counts as `column`."""
    a_must_pack: bool
    b_source: BSource
    width: int
    """Vectors of a packed panel; 0 if B is not in panels."""
    b_k_bytes: int
    """Bytes between two k steps of a B that is not in panels; 0 if it is."""
    workers: int
    window: ReadWindow | None = None
    """Of an A of layout `window`."""
    b_footprint_bytes: int = 0
    """Of a packed weight: bytes of weights that are read between two uses of it, if that is more
    than itself. They decide which level it comes from."""

    @property
    def in_panels(self) -> bool:
        """Whether B is a packed weight."""
        return self.width > 0


Range = tuple[int, int]


class Patch(NamedTuple):
    """A rectangle of the iteration space given to one uKernel: `tiles` row tiles of height `mr`
    from `row`, crossed with `panels` panels of `family.nr` columns from `column`."""

    row: int
    mr: int
    tiles: int
    column: int
    panels: int
    columns: int
    """Columns stored; fewer than `panels * nr` only in a tail."""
    family: Family


class Band(NamedTuple):
    """Panels of one family crossed with row segments, walked together so that a panel is fetched
    once for all of them."""

    column: int
    panels: int
    columns: int
    rows: Range
    segments: tuple[tuple[int, int], ...]
    family: Family
    packed: bool
    """Whether this call packs the panels first."""
    reading: Reading = AT_HAND
    """How the first tile of the first panel reads it."""


class Share(NamedTuple):
    """The work of one worker."""

    batch: Range
    k: Range
    part: int
    bands: tuple[Band, ...]


class Grid(NamedTuple):
    """Workers along each axis."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def workers(self) -> int:
        return self.batch * self.m * self.n * self.k


class Choice(NamedTuple):
    """The decisions that distinguish candidates of one problem."""

    grid: Grid
    vectors: int
    """Width of full panels."""
    kc: int
    """Steps of k in a block."""
    pack_a: bool
    pack_b: bool
    shared_pack: bool
    """Workers pack B together, then wait for each other."""
    dot: bool = False
    """Dot tiles read A and B in place; `vectors` then counts columns."""
    widen: bool = False
    """Panels of narrower elements are widened one by one before they are used; otherwise every row
    tile widens what it reads."""


class PlanFields(NamedTuple):
    """The decisions that make up a `Plan`. Apart from it, because a `NamedTuple` has no other base;
    a frozen dataclass would add a tenth to the time of planning."""

    problem: Problem
    choice: Choice
    shares: tuple[Share, ...]
    mc: int
    """Rows of A in a block."""
    chunks: int
    """Chunks of the axis that the grid cuts, for work stealing; 0 if each worker does its share.
    Workers begin with even ranges of chunks; the shares are the work of each if nothing is
    stolen."""


class Plan(Shown, PlanFields):
    """The exact cover of one shape."""

    __slots__ = ()

    def summary(self) -> str:
        """The problem, the grid and the heights of tiles."""
        cut = ", ".join(f"{axis} in {n}" for axis, n in self.choice.grid._asdict().items() if n > 1)
        tiles = dict.fromkeys(
            f"{tiles} x {mr}" for band in self.bands() for mr, tiles in band.segments
        )
        return (
            f"{extents_text(self.problem)}: {count(self.workers, 'worker')}"
            f"{f' ({cut})' if cut else ''}, rows as {', '.join(tiles)}"
        )

    @property
    def chunk_by_panels(self) -> bool:
        """Whether chunks are ranges of panels; otherwise they are ranges of batch elements."""
        return self.choice.grid.n > 1

    def whole(self) -> Share:
        """All shares as one, for work stealing."""
        first = self.shares[0]
        if not self.chunk_by_panels:
            return first._replace(batch=(0, self.problem.batch))
        bands: dict[str, Band] = {}
        for band in self.bands():
            before = bands.get(band.family.name)
            if before is not None:
                panels, columns = before.panels + band.panels, before.columns + band.columns
                band = before._replace(panels=panels, columns=columns)
            bands[band.family.name] = band
        return first._replace(bands=tuple(bands.values()))

    def covered(self, segments: tuple[tuple[int, int], ...], reading: Reading) -> Plan | None:
        """The plan with another cover of the rows of full panels; None where a worker has not all
        rows, or the family lacks a height."""
        shares = []
        for share in self.shares:
            bands = []
            for band in share.bands:
                known = all(mr in band.family.by_height for mr, _ in segments)
                if band.rows != (0, self.problem.m) or not known:
                    return None
                if not band.family.tail:
                    band = band._replace(segments=segments, reading=reading)
                bands.append(band)
            shares.append(share._replace(bands=tuple(bands)))
        return self._replace(shares=tuple(shares))

    def bands(self) -> list[Band]:
        """The patches of all shares."""
        return [band for share in self.shares for band in share.bands]

    @property
    def workers(self) -> int:
        return len(self.shares)

    def patches(self, share: Share) -> list[Patch]:
        """The rectangles of one worker, in the order in which it begins them."""
        found = []
        for band in share.bands:
            row = band.rows[0]
            for mr, tiles in band.segments:
                found.append(
                    Patch(row, mr, tiles, band.column, band.panels, band.columns, band.family)
                )
                row += mr * tiles
        return found
