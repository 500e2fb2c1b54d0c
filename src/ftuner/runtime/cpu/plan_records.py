"""Writes plans as the records that native code walks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from ftuner.codegen.llvm.native.records import (
    ALIGNMENT_BYTES,
    SLACK_BYTES,
    SLOT_BYTES,
    AllCovers,
    Segment,
)
from ftuner.codegen.llvm.native.records import Band as BandSlot
from ftuner.codegen.llvm.native.records import Pack as PackSlot
from ftuner.codegen.llvm.native.records import Plan as PlanSlot
from ftuner.codegen.llvm.native.records import Worker as WorkerSlot
from ftuner.core.cpu.tile import COLUMN, MAX_SEGMENTS
from ftuner.core.dtype import DType
from ftuner.core.product import ProductTypes
from ftuner.core.ranges import bounds
from ftuner.planner.cpu.cover import CoverTable, Segments
from ftuner.planner.cpu.plan import Band, Plan, Share
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.shapes.layout import Words

Size = TypeVar("Size", int, Words)

ALL_ROWS = 1 << 62
"""Rows of a cache block that has all."""


class Strides(NamedTuple):
    """The strides of the operands of one call, in bytes."""

    a_row: int
    a_k: int
    b_k: int
    b_column: int
    c_row: int
    batch: tuple[tuple[int, int, int, int], ...]
    """Extent and strides of A, B and C of each batch axis, last axis first."""
    operands: tuple[int, ...]
    """The stride between rows of each operand of the epilogue."""
    accumulate: bool


class Encoded(NamedTuple):
    """A plan ready to run."""

    records: array[int]
    """Kept alive as long as the plan; `address` points into it."""
    address: int
    workspace_bytes: int
    workers: int
    together: bool
    """Whether the workers wait for each other, so that all of them must take part concurrently."""


class RowRange(NamedTuple):
    """The rows that a plan is for, if they are several numbers of rows."""

    last: int
    """The largest number."""
    tile: int
    """Rows of a main tile, by which workers share rows."""
    covers: Mapping[str, int]
    """By family name, the address of its `AllCovers`."""


class Functions(NamedTuple):
    """The addresses of the functions that a plan calls besides uKernels."""

    reduce: int
    """Adds up partial products."""
    widen: int = 0
    """Widens panels; 0 if none is narrower than A."""
    finish: int = 1
    """Says what the last block of k applies: its own epilogue, or a function (`Context`)."""


class PlanWriter:
    """Writes the plans of one choice for arrays with given strides.

    What does not depend on m is written once, as an image of the records; a plan then fills in its
    rows. Idle workers have no bands, so a writer serves plans whose workers have as many bands as
    those of the plan that it was made from.
    """

    def __init__(
        self,
        plan: Plan,
        strides: Strides,
        types: ProductTypes,
        kernels: Mapping[str, Mapping[int, int]],
        functions: Functions,
        fetched_bytes: int,
    ) -> None:
        """`kernels`: addresses of compiled uKernels by family name and height. `fetched_bytes`: A
        and B of a batch element are prefetched during the previous one if neither is larger."""
        problem, choice, shares = plan.problem, plan.choice, plan.shares
        self._chunked = plan.chunks > 0
        if self._chunked:
            shares = (plan.whole(),)
        k, parts = problem.k, choice.grid.k
        self._types = types
        b_itemsize = types.widened.b.itemsize
        """Bytes of an element of B in a workspace."""
        self._parts = parts
        self._kc = choice.kc
        self._packs_a = choice.pack_a
        self._together = choice.shared_pack or parts > 1
        self._fetched_bytes = fetched_bytes
        self._next_element = _fetches_next(plan, strides, types, fetched_bytes)
        self._bands: list[tuple[int, Mapping[int, int]]] = []
        axes_at = PlanSlot.WORKER_RECORDS + len(shares) * WorkerSlot.SIZE
        workers: list[int] = []
        body: list[int] = [value for axis in strides.batch for value in axis]

        # The workspace: B packed by all workers, each worker's own B, then what depends on m.
        workspace = 0
        widened_bytes = 0
        if choice.widen:
            widest = max((b.family.nr for s in shares for b in s.bands), default=0)
            widened_bytes = aligned(widest * choice.kc * b_itemsize + SLACK_BYTES)
        if choice.shared_pack:
            sizes = {b.column: _panel_bytes(b, k, b_itemsize) for s in shares for b in s.bands}
            workspace = aligned(sum(sizes.values()) + SLACK_BYTES)
        for index, share in enumerate(shares):
            private_at = workspace
            packs_at = axes_at + len(body)
            numbers = _panel_numbers(share)
            offsets: dict[int, int] = {}
            if choice.shared_pack:
                offsets = {b.column: b.column * k * b_itemsize for b in share.bands}
                body += _shared_packs(plan, index, b_itemsize)
            else:
                used = 0
                for band in share.bands:
                    if band.packed:
                        offsets[band.column] = used
                        number = numbers[band.column]
                        body += _pack_record(band, 0, band.panels, used, number)
                        used += _panel_bytes(band, k, b_itemsize)
                if used:
                    workspace = aligned(workspace + used + SLACK_BYTES)
                workspace += widened_bytes
            bands_at = axes_at + len(body)
            for band in share.bands:
                self._bands.append((axes_at + len(body), kernels[band.family.name]))
                number = numbers[band.column]
                widens = functions.widen if choice.widen else 0
                body += _band_record(plan, share, band, strides, types.b, offsets, number, widens)
            workers += (
                share.batch[0],
                share.batch[1],
                packs_at * SLOT_BYTES,
                (bands_at - packs_at) // PackSlot.SIZE,
                bands_at * SLOT_BYTES,
                len(share.bands),
                private_at,
                0,
            )
        header = _header(plan, strides, functions, axes_at, types.c.itemsize)
        if self._chunked:
            # Every worker has a private workspace of the one record's size. In a program any worker
            # may take chunks.
            header[PlanSlot.CHUNK_BY_PANELS] = int(plan.chunk_by_panels)
            panels = sum(band.panels for band in shares[0].bands)
            header[PlanSlot.CHUNK_EXTENT] = panels if plan.chunk_by_panels else problem.batch
            header[PlanSlot.PRIVATE_STRIDE] = workspace
            workspace *= problem.workers
        self._workspace = workspace
        self._image = header + workers + body
        self._workers = range(PlanSlot.WORKER_RECORDS, axes_at, WorkerSlot.SIZE)

    def write(self, plan: Plan, rows: RowRange | None = None) -> Encoded:
        """The records of a plan for its number of rows, or for a range that it begins."""
        records = array("q", self._image)
        address = records.buffer_info()[0]
        # Addresses within the image are relative to its beginning until it is copied.
        records[PlanSlot.BATCH_AXES] += address
        records[PlanSlot.CHUNKS] = plan.chunks
        records[PlanSlot.ROWS] = plan.problem.m
        if self._next_element:
            a_bytes = plan.problem.m * plan.problem.k * self._types.a.itemsize
            records[PlanSlot.NEXT_ELEMENT] = int(a_bytes <= self._fetched_bytes)
        for at in self._workers:
            records[at + WorkerSlot.PACKS] += address
            records[at + WorkerSlot.BANDS] += address
        bands = plan.bands()
        if self._chunked:
            # Bands of one family differ only in columns, which are in the image.
            bands = list({band.family.name: band for band in bands}.values())
        # Workers that have the same rows have them from the same begin.
        parts = list(dict.fromkeys(band.rows for band in bands))
        for (at, addresses), band in zip(self._bands, bands, strict=True):
            segments = band.segments
            records[at + BandSlot.K_STREAMS], records[at + BandSlot.AHEAD] = band.reading
            if rows is not None:
                records[at + BandSlot.COVERS] = rows.covers[band.family.name]
                records[at + BandSlot.ROW_PART] = parts.index(band.rows)
                records[at + BandSlot.ROW_PARTS] = plan.choice.grid.m
                records[at + BandSlot.ROW_TILE] = rows.tile
                blocked = plan.mc < plan.problem.m
                records[at + BandSlot.BLOCK_TILES] = plan.mc if blocked else ALL_ROWS
                continue
            records[at + BandSlot.ROW] = band.rows[0]
            records[at + BandSlot.BLOCK_TILES] = _block_tiles(plan, band)
            records[at + BandSlot.SEGMENTS] = len(segments)
            if len(segments) > 1:
                others = sum(tiles for _, tiles in segments) - segments[0][1]
                records[at + BandSlot.OTHER_TILES] = others
            slots = _segment_slots(segments, addresses)
            for slot, value in enumerate(slots, at + BandSlot.FIRST_SEGMENT):
                records[slot] = value
        workspace = self._workspace
        if self._parts > 1 or self._packs_a:
            workspace = self._place_by_rows(
                plan, records, plan.problem.m if rows is None else rows.last
            )
        return Encoded(records, address, workspace, plan.workers, self._together)

    def _place_by_rows(self, plan: Plan, records: array[int], most: int) -> int:
        """Lay out the part of the workspace that depends on rows, of which there are at most
        `most`: partial products, packed blocks of A."""
        workspace = self._workspace
        if self._parts > 1:
            size = most * plan.problem.n * self._types.c.itemsize
            records[PlanSlot.PARTIAL_OFFSET] = workspace
            records[PlanSlot.PARTIAL_BYTES] = size
            workspace = aligned(workspace + self._parts * size + SLACK_BYTES)
        if self._packs_a:
            for share, at in zip(plan.shares, self._workers, strict=True):
                records[at + WorkerSlot.A_BLOCK_OFFSET] = workspace
                rows = max((_block_rows(plan, band) for band in share.bands), default=0)
                row_bytes = self._kc * self._types.a.itemsize
                workspace = aligned(workspace + rows * row_bytes + SLACK_BYTES)
        return workspace


def _fetches_next(plan: Plan, strides: Strides, types: ProductTypes, fetched_bytes: int) -> bool:
    """Whether batch elements are contiguous, and small enough to be prefetched."""
    n, k = plan.problem.n, plan.problem.k
    a_size, b_size = types.a.itemsize, types.b.itemsize
    in_rows = strides.b_column == b_size and strides.b_k == n * b_size
    in_columns = strides.b_k == b_size and strides.b_column == k * b_size
    a_whole = strides.a_k == a_size and strides.a_row == k * a_size
    b_fits = n * k * b_size <= fetched_bytes
    return plan.problem.batch > 1 and a_whole and (in_rows or in_columns) and b_fits


def _header(
    plan: Plan, strides: Strides, functions: Functions, axes_at: int, c_itemsize: int
) -> list[int]:
    problem, choice = plan.problem, plan.choice
    header = [0] * PlanSlot.WORKER_RECORDS
    header[PlanSlot.WORKERS] = len(plan.shares)
    header[PlanSlot.BATCH_RANK] = len(strides.batch)
    header[PlanSlot.BATCH_AXES] = axes_at * SLOT_BYTES
    header[PlanSlot.A_ROW_STRIDE] = strides.a_row
    header[PlanSlot.A_K_STRIDE] = strides.a_k
    header[PlanSlot.B_K_STRIDE] = strides.b_k
    header[PlanSlot.B_COLUMN_STRIDE] = strides.b_column
    header[PlanSlot.C_ROW_STRIDE] = strides.c_row
    header[PlanSlot.K] = problem.k
    header[PlanSlot.ACCUMULATE] = int(strides.accumulate)
    header[PlanSlot.SHARED_PACK] = int(choice.shared_pack)
    header[PlanSlot.PARTS] = choice.grid.k
    header[PlanSlot.N] = problem.n
    header[PlanSlot.C_ITEMSIZE] = c_itemsize
    header[PlanSlot.REDUCE] = functions.reduce
    header[PlanSlot.FINISH] = functions.finish
    header[PlanSlot.A_STRIDE] = strides.a_k if problem.a_layout == COLUMN else strides.a_row
    for i, stride in enumerate(strides.operands):
        header[PlanSlot.OPERAND_STRIDES + i] = stride
    return header


def aligned(size: Size) -> Size:
    """A size, or each of some, rounded up to `ALIGNMENT_BYTES`."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _panel_bytes(band: Band, k: int, itemsize: int) -> int:
    """Bytes of a band's panels when packed."""
    return band.panels * band.family.nr * k * itemsize


def _block_rows(plan: Plan, band: Band) -> int:
    """Rows of A that a band packs at once: a block of the first segment, and all others."""
    mr, tiles = band.segments[0]
    first = min(_block_tiles(plan, band) * mr, tiles * mr)
    return first + sum(mr * tiles for mr, tiles in band.segments[1:])


def _block_tiles(plan: Plan, band: Band) -> int:
    """Row tiles of the first segment in one block."""
    return max(1, plan.mc // band.segments[0][0])


def _panel_numbers(share: Share) -> dict[int, int]:
    """The number of each band's first panel within the share, by its column."""
    numbers, count = {}, 0
    for band in share.bands:
        numbers[band.column] = count
        count += band.panels
    return numbers


def _pack_record(band: Band, first: int, panels: int, offset: int, number: int) -> list[int]:
    record = [0] * PackSlot.SIZE
    record[PackSlot.COLUMN] = band.column + first * band.family.nr
    record[PackSlot.PANELS] = panels
    record[PackSlot.WIDTH] = band.columns if band.family.tail else band.family.nr
    record[PackSlot.PADDED] = band.family.nr
    record[PackSlot.OFFSET] = offset
    record[PackSlot.FIRST_PANEL] = number
    return record


def _shared_packs(plan: Plan, index: int, itemsize: int) -> list[int]:
    """The panels that one worker packs where all workers pack B together."""
    k = plan.problem.k
    records: list[int] = []
    for band in {b.column: b for s in plan.shares for b in s.bands}.values():
        first, last = bounds(band.panels, len(plan.shares), index)
        if first < last:
            column = band.column + first * band.family.nr
            records += _pack_record(band, first, last - first, column * k * itemsize, 0)
    return records


def _band_record(
    plan: Plan,
    share: Share,
    band: Band,
    strides: Strides,
    b_dtype: DType,
    offsets: Mapping[int, int],
    number: int,
    widens: int,
) -> list[int]:
    """A band without its rows; `number`: of its first panel within the share; `widens`: as in the
    record."""
    problem, choice, family = plan.problem, plan.choice, band.family
    nr, k, column = family.nr, problem.k, band.column
    b_itemsize = b_dtype.itemsize
    record = [0] * BandSlot.SIZE
    record[BandSlot.COLUMN] = column
    record[BandSlot.PANELS] = band.panels
    record[BandSlot.PANEL_WIDTH] = nr
    record[BandSlot.VALID_COLUMNS] = band.columns if family.tail else nr
    if band.packed:
        record[BandSlot.B_IN_WORKSPACE] = 1
        record[BandSlot.B_OFFSET] = offsets[column]
    elif problem.in_panels:
        record[BandSlot.B_OFFSET] = column * k * b_itemsize
    else:
        record[BandSlot.B_OFFSET] = column * strides.b_column
    if band.packed or problem.in_panels:
        record[BandSlot.B_PANEL_STRIDE] = nr * k * b_itemsize
        record[BandSlot.B_K_STRIDE] = nr * b_itemsize
    else:
        record[BandSlot.B_PANEL_STRIDE] = nr * strides.b_column
        record[BandSlot.B_K_STRIDE] = strides.b_column if choice.dot else strides.b_k
    record[BandSlot.B_ITEMSIZE] = b_itemsize
    record[BandSlot.WIDENS] = widens
    record[BandSlot.K_BEGIN], record[BandSlot.K_END] = share.k
    record[BandSlot.KC] = choice.kc
    record[BandSlot.PACK_A] = int(choice.pack_a)
    record[BandSlot.FIRST_PANEL] = number
    in_parts = [u.mr for u in family.kernels if u.tile.parts > 1 and not u.tile.matrix]
    record[BandSlot.IN_PARTS_FROM] = min(in_parts, default=ALL_ROWS)
    record[BandSlot.PARTIAL] = share.part if choice.grid.k > 1 else -1
    return record


def moved(
    records: array[int], begin: int, to: int, functions: Functions, covers: Callable[[int], int]
) -> None:
    """Give the records of a plan for a range of rows, which had addresses from `begin`, those from
    `to`, other functions, and other addresses of covers for the ones that they have."""
    axes = records[PlanSlot.BATCH_AXES] - begin
    records[PlanSlot.BATCH_AXES] = axes + to
    records[PlanSlot.REDUCE], records[PlanSlot.FINISH] = functions.reduce, functions.finish
    for worker in range(PlanSlot.WORKER_RECORDS, axes // SLOT_BYTES, WorkerSlot.SIZE):
        bands = records[worker + WorkerSlot.BANDS] - begin
        records[worker + WorkerSlot.BANDS] = bands + to
        records[worker + WorkerSlot.PACKS] += to - begin
        for number in range(records[worker + WorkerSlot.BAND_COUNT]):
            band = bands // SLOT_BYTES + number * BandSlot.SIZE
            records[band + BandSlot.COVERS] = covers(records[band + BandSlot.COVERS])
            if records[band + BandSlot.WIDENS]:
                records[band + BandSlot.WIDENS] = functions.widen


def encoded_covers(table: CoverTable, addresses: Mapping[int, int]) -> array[int]:
    """An `AllCovers`. `addresses`: of uKernels by height."""
    solved, main = table.solved, table.main
    slots = [0] * AllCovers.TABLES
    slots[AllCovers.LIMIT], slots[AllCovers.MAIN] = len(solved) - 1, main
    covers = [cover.segments for cover in (*solved, *table.rests)]
    for number, segments in enumerate(covers):
        if number >= len(solved) and (not segments or segments[0][0] != main):
            segments = ((main, 0), *segments)
        assert len(segments) <= MAX_SEGMENTS
        slots += _segment_slots(segments, addresses)
        slots += [0] * (Segment.SIZE * (MAX_SEGMENTS - len(segments)))
    return array("q", slots)


def kept_covers(covers: array[int]) -> Array:
    """An `AllCovers` without addresses, which are those of one process."""
    slots = np.array(covers)
    slots[AllCovers.TABLES + Segment.KERNEL :: Segment.SIZE] = 0
    return slots.astype(np.int32)


def known_covers(kept: Array, addresses: Mapping[int, int]) -> array[int]:
    """The inverse of `kept_covers`. `addresses`: of uKernels by height."""
    slots, by_height = kept.astype(np.int64), np.zeros(max(addresses) + 1, np.int64)
    by_height[[*addresses]] = [*addresses.values()]
    heights = slots[AllCovers.TABLES + Segment.MR :: Segment.SIZE]
    slots[AllCovers.TABLES + Segment.KERNEL :: Segment.SIZE] = by_height[heights]
    return array("q", slots.tobytes())


def _segment_slots(segments: Segments, addresses: Mapping[int, int]) -> list[int]:
    """A `Segment` for each segment of a cover. `addresses`: of uKernels by height."""
    return [slot for mr, tiles in segments for slot in (addresses[mr], mr, tiles)]
