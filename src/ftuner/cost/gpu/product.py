"""The estimate of a product on a GPU: seconds by cause, and their sum with overlap.

A persistent launch computes bands of tiles of one or two heights. It has `u` units, tiles times
split-k; program p of P does units p, p + P, ... Programs are distributed round-robin over the S
multiprocessors, so the busiest one does every S-th unit from the first on: with the u1 taller tiles
first, `ceil(u1 / S)` of them and `ceil(u / S) - ceil(u1 / S)` lower ones. That is the makespan; its
excess over an even share is the tail of the last wave.

    seconds = overlapped_seconds(max(issue, shared) + stall + tail, l2, dram)
              + fill + store + reduce + absent + launch

L2 is read once for each tile's rows of A and columns of B, by all multiprocessors together. DRAM is
read again for what L2 could not keep: blocks of `swizzle` row tiles are walked column by
column, so that B is read once a block, and A once if L2 holds the block's rows, else once a wave.
Rows that are read through a window share elements: L2 delivers an element for each of these rows,
and holds it once.

Sources: makespans by waves from FTuner (arXiv 2407.21418); split-k from Stream-K (arXiv
2301.03598); reuse in L2 by the tiles that run together from Origami (tritonBLAS).
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.schedule import LINE_BYTES
from ftuner.core.product import ReadWindow
from ftuner.cost.gpu.tile import ACCUMULATOR_BYTES, TileCost, overlapped_seconds
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning


@dataclass(frozen=True)
class ProductEstimate:
    """Seconds of a product on a GPU by cause."""

    overlap_exponent: float
    """As in `GpuTuning`."""
    issue_s: float = 0.0
    """Multiply-adds, spread evenly over all multiprocessors."""
    shared_s: float = 0.0
    """Transfers to and from shared memory, spread evenly over all multiprocessors."""
    stall_s: float = 0.0
    """The excess of k steps over both: contention between them, barriers, latency of loads."""
    tail_s: float = 0.0
    """The excess of the busiest multiprocessor over an even share."""
    l2_s: float = 0.0
    """Transfers to and from L2."""
    dram_s: float = 0.0
    """Transfers to and from DRAM."""
    fill_s: float = 0.0
    """The first loads of tiles, as far as other blocks do not hide them."""
    store_s: float = 0.0
    """The epilogues of tiles, as far as other blocks do not hide them."""
    reduce_s: float = 0.0
    """Adding up the parts of split-k."""
    absent_s: float = 0.0
    """Rows of tiles that A does not have, which the copy engine fills with zeros."""
    launch_s: float = 0.0

    @property
    def busiest_s(self) -> float:
        """Seconds of the busiest multiprocessor between its fills and stores."""
        return max(self.issue_s, self.shared_s) + self.stall_s + self.tail_s

    @property
    def seconds(self) -> float:
        """Total seconds: the terms that overlap, and the sum of the others."""
        overlapping_s = overlapped_seconds(
            self.overlap_exponent, self.busiest_s, self.l2_s, self.dram_s
        )
        around_s = self.fill_s + self.store_s + self.reduce_s + self.absent_s + self.launch_s
        return overlapping_s + around_s

    @property
    def bound(self) -> str:
        """The bottleneck: `compute`, `shared`, `l2` or `dram`."""
        near = "compute" if self.issue_s >= self.shared_s else "shared"
        terms = {near: self.busiest_s, "l2": self.l2_s, "dram": self.dram_s}
        return max(terms, key=lambda name: terms[name])

    def terms(self) -> dict[str, float]:
        """Returns all terms by name, in seconds."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")}


class Chip(NamedTuple):
    """The rates of a chip that estimates read, for one dtype."""

    multiprocessors: int
    l2_bytes_per_s: float
    dram_bytes_per_s: float
    held_bytes: float
    """Bytes of operands that L2 holds."""
    reduce_s: float
    launch_s: float
    itemsize: int
    overlap_exponent: float
    last_unit_share: float
    absent_line_s: float
    """Filling a line of a row that A does not have."""


class TileSchedule(NamedTuple):
    """How the tiles of a `Tiling` are spread over programs, and their order; see `ProductPlan`."""

    row_tiles: tuple[int, int]
    """Row tiles of the first band and of the second."""
    split_k: int
    swizzle: int
    programs: int


class Tiling(NamedTuple):
    """A product cut into tiles of one or two sizes, before its number of rows is known."""

    first: TileCost
    second: TileCost | None
    blocks: int
    """Resident blocks of a multiprocessor."""
    columns: int
    """Column tiles."""
    chained: bool
    """Whether all tiles and steps of a program are one loop, so that the next tile is loaded while
    the last one is stored; without split-k only."""
    n: int
    k: int
    batch: int
    window: ReadWindow | None

    @property
    def steps(self) -> int:
        """Stages of a tile. Each element of a window begins a new one."""
        bk = self.first.tile.bk
        run = self.k if self.window is None else self.window.run
        return self.k // run * -(-run // bk)

    @property
    def reuse(self) -> float:
        """How many rows of A share an element of memory, on average."""
        return 1.0 if self.window is None else self.window.reuse


def chip_of(hardware: GpuHardware, dtype: DType) -> Chip:
    tuning = hardware.tuning
    return Chip(
        multiprocessors=hardware.multiprocessors,
        l2_bytes_per_s=tuning.l2_rate_ratio * hardware.l2_bandwidth_bytes_per_s,
        dram_bytes_per_s=tuning.sustained_dram_share * hardware.dram_bandwidth_bytes_per_s,
        held_bytes=tuning.l2_share * hardware.l2_bytes,
        reduce_s=tuning.reduce_latencies * hardware.dram_latency_s,
        launch_s=hardware.launch_s + tuning.ramp_latencies * hardware.dram_latency_s,
        itemsize=dtype.itemsize,
        overlap_exponent=tuning.overlap_exponent,
        last_unit_share=tuning.last_unit_share,
        absent_line_s=tuning.absent_line_cycles / hardware.clock_hz,
    )


def tiling_of(
    tiles: tuple[TileCost, ...], n: int, k: int, batch: int, chained: bool,
    window: ReadWindow | None = None,
) -> Tiling:  # fmt: skip
    """Returns the tiling by one tile or two; a launch of both has blocks of the larger one."""
    second = tiles[1] if len(tiles) > 1 else None
    blocks = min(tile.blocks for tile in tiles)
    columns = -(-n // tiles[0].tile.bn)
    return Tiling(tiles[0], second, blocks, columns, chained, n, k, batch, window)


def split_k_choices(
    tuning: GpuTuning, multiprocessors: int, tiling: Tiling, units: int
) -> tuple[int, ...]:
    """Returns the values of split-k to try for `units` tiles: 1, and where tiles are few, those
    that fill one wave, two waves, or all resident blocks."""
    steps, least = tiling.steps, tuning.split_k_steps
    if units >= tuning.starved_waves * multiprocessors or steps < 2 * least:
        return (1,)
    most = min(steps // least, tuning.max_split_k)
    cut = {min(waves * multiprocessors // units, most) for waves in (1, 2, tiling.blocks)}
    return tuple(sorted((cut | {1}) - {0}))


def estimate_product(chip: Chip, tiling: Tiling, schedule: TileSchedule, m: int) -> ProductEstimate:
    """Returns the estimate of `m` rows: the first band of all batch elements, then the second."""
    first, second = tiling.first, tiling.second or tiling.first
    (tall, low), split_k, _, programs = schedule
    per_row = tiling.batch * tiling.columns * split_k
    units_tall, units_low = tall * per_row, low * per_row
    units = units_tall + units_low
    sms = chip.multiprocessors
    steps = -(-tiling.steps // split_k)

    # The busiest multiprocessor.
    share = -(-units // sms)
    share_tall = -(-units_tall // sms)
    resident = min(-(-programs // sms), share)
    tall_s = first.seconds_of_step(resident)
    low_s = second.seconds_of_step(resident)
    even = steps / sms
    issue_s = even * (units_tall * first.issue_s + units_low * second.issue_s)
    shared_s = even * (units_tall * first.shared_s + units_low * second.shared_s)
    even_s = even * (units_tall * tall_s + units_low * low_s)
    busiest_s = steps * (share_tall * tall_s + (share - share_tall) * low_s)

    # Other blocks hide fills and stores, except for the first fill and the last store.
    rounds = -(-units // programs)
    rounds_tall = -(-units_tall // programs)
    rounds_low = rounds - rounds_tall
    hidden = 1.0 - 1.0 / resident
    fills_s = first.fill_s
    if not tiling.chained or split_k > 1:
        fills_s = rounds_tall * first.fill_s + rounds_low * second.fill_s
    stores_s = rounds_tall * first.store_s + rounds_low * second.store_s
    last = second if rounds_low else first
    reduce_s = 0.0
    summed_bytes = 0.0
    if split_k > 1:
        partial_s = rounds_tall * first.partial_s + rounds_low * second.partial_s
        reduce_s = chip.reduce_s + partial_s * (1 + split_k)
        # Written, and read back by the last-arriving program.
        summed_bytes = 2.0 * split_k * tiling.batch * m * tiling.n * ACCUMULATOR_BYTES

    # L2 and DRAM.
    row_bytes = tiling.batch * tiling.k * chip.itemsize
    written_bytes = tiling.batch * m * tiling.n * chip.itemsize
    l2_bytes = row_bytes * (m * tiling.columns + tiling.n * (tall + low)) + written_bytes
    passes_a, passes_b = passes(chip, tiling, schedule)
    dram_bytes = row_bytes * (m * passes_a / tiling.reuse + tiling.n * passes_b) + written_bytes
    return ProductEstimate(
        overlap_exponent=chip.overlap_exponent,
        issue_s=issue_s,
        shared_s=shared_s,
        stall_s=max(even_s - max(issue_s, shared_s), 0.0),
        tail_s=max(busiest_s - even_s, 0.0),
        l2_s=(l2_bytes + summed_bytes) / chip.l2_bytes_per_s,
        dram_s=dram_bytes / chip.dram_bytes_per_s,
        fill_s=fills_s / resident + hidden * first.fill_s,
        store_s=stores_s / resident + hidden * last.store_s,
        reduce_s=reduce_s,
        absent_s=max(first.tile.bm - m, 0) * absent_s_per_row(chip, tiling, split_k),
        launch_s=chip.launch_s,
    )


def absent_s_per_row(chip: Chip, tiling: Tiling, split_k: int) -> float:
    """Returns the seconds of the busiest multiprocessor for each row that A has less than a tile; 0
    where no copy engine loads tiles. The last of several row tiles ends at the edge of A."""
    if not tiling.chained:
        return 0.0
    units = -(-tiling.batch * tiling.columns * split_k // chip.multiprocessors)
    lines = tiling.first.tile.bk * chip.itemsize / LINE_BYTES
    return units * -(-tiling.steps // split_k) * lines * chip.absent_line_s


def passes(chip: Chip, tiling: Tiling, schedule: TileSchedule) -> tuple[int, int]:
    """Returns how often A and B of a batch element are read from DRAM."""
    rows = schedule.row_tiles[0] * tiling.first.tile.bm
    if tiling.second is not None:
        rows += schedule.row_tiles[1] * tiling.second.tile.bm
    row_bytes = tiling.k * chip.itemsize
    if (rows / tiling.reuse + tiling.n) * row_bytes <= chip.held_bytes:
        return 1, 1
    tiles = schedule.row_tiles[0] + schedule.row_tiles[1]
    # Half of L2's share is for the operand that is reused, half for the one that streams.
    kept = chip.held_bytes / 2
    passes_b = 1 if tiling.n * row_bytes <= kept else -(-tiles // schedule.swizzle)
    if schedule.swizzle * tiling.first.tile.bm * row_bytes / tiling.reuse <= kept:
        return 1, passes_b
    at_once = max(schedule.programs // schedule.split_k, 1)
    return -(-schedule.swizzle * tiling.columns // at_once), passes_b
