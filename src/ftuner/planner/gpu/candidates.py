"""Candidates for a product on a GPU: estimates of a tile, or a pair of tiles, as functions of m.

A candidate computes what does not depend on m once for each problem, and what depends on the number
of row tiles once for each number. Planning another m then takes a few multiply-adds per candidate.
The seconds equal those of `cost.gpu.product.estimate_product`, which a test checks: its terms for
the busiest multiprocessor, `max(issue, shared) + stall + tail`, simplify to the seconds of that
multiprocessor's k steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isqrt
from typing import NamedTuple

from ftuner.core.gpu.tile import MOST_COUNTED, BlockTile
from ftuner.cost.gpu.product import Chip, Tiling, absent_s_per_row, split_k_choices
from ftuner.cost.gpu.tile import ACCUMULATOR_BYTES, TileCost, overlapped_seconds
from ftuner.hardware.gpu_tuning import GpuTuning

MAX_ENTRIES = 4096
"""Numbers of row tiles whose estimates a candidate keeps."""
UNCOUNTED_S = 1e9
"""More seconds than any product takes, for more tiles than a launch can count: chosen last."""


class CandidateEstimate(NamedTuple):
    """The estimate of a candidate for one number of row tiles: seconds, and seconds per row."""

    near_s: float
    """K steps of the busiest multiprocessor."""
    around_s: float
    """Terms that do not overlap: launch, fills, stores, reduction."""
    l2_s: float
    l2_s_per_row: float
    dram_s: float
    dram_s_per_row: float
    tile_rows: int
    """Below this many rows, each one fewer takes `absent_s_per_row`."""
    absent_s_per_row: float
    rows: int
    """Rows of the first band of a pair; 0 for a single tile."""
    split_k: int
    swizzle: int
    programs: int

    def seconds(self, m: int, overlap_exponent: float) -> float:
        l2_s = self.l2_s + m * self.l2_s_per_row
        dram_s = self.dram_s + m * self.dram_s_per_row
        absent_s = self.absent_s_per_row * max(self.tile_rows - m, 0)
        overlapping_s = overlapped_seconds(overlap_exponent, self.near_s, l2_s, dram_s)
        return self.around_s + absent_s + overlapping_s


ENDLESS = CandidateEstimate(inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0, 1, 1, 1)
"""The estimate of a candidate that cannot cover the rows, or exceeds a limit."""


class Candidate:
    """A tile, or a pair of them, for a problem of any m."""

    def __init__(
        self, chip: Chip, tiles: tuple[BlockTile, ...], tiling: Tiling, tuning: GpuTuning
    ) -> None:
        self.tiles = tiles
        self.tiling = tiling
        self.granule = tiles[-1].bm
        """Rows between two estimates."""
        self.entries: dict[int, CandidateEstimate] = {}
        """Estimates by number of row tiles; in a pair, of the lower tile."""
        self._chip = chip
        self._tuning = tuning
        self._sms = chip.multiprocessors
        self._blocks = tiling.blocks
        self._resident = tiling.blocks * chip.multiprocessors
        self._per_row_tile = tiling.batch * tiling.columns
        self._steps = tiling.steps
        self._tall, self._low = tiling.first, tiling.second or tiling.first
        self._tall_step_s = self._step_table(self._tall)
        self._low_step_s = self._step_table(self._low)
        # Transfers.
        size = chip.itemsize
        self._batch_k = tiling.batch * tiling.k * size
        self._written = tiling.batch * tiling.n * size
        self._l2_per_tile_s = self._batch_k * tiling.n / chip.l2_bytes_per_s
        row_s = (self._batch_k * tiling.columns + self._written) / chip.l2_bytes_per_s
        self._l2_per_row_s = row_s
        self._part_per_row_s = (
            2.0 * tiling.batch * tiling.n * ACCUMULATOR_BYTES / chip.l2_bytes_per_s
        )
        # What L2 holds, in rows of A or columns of B.
        row_bytes = tiling.k * size
        kept = chip.held_bytes / 2 / row_bytes
        self._reuse = tiling.reuse
        self._kept_tiles = int(kept * tiling.reuse) // tiles[0].bm
        self._b_is_kept = tiling.n <= kept
        self._all_kept = (chip.held_bytes / row_bytes - tiling.n) * tiling.reuse
        self._wave_aspect = tiles[0].bn / tiles[0].bm
        # A lower bound for any cover by these tiles: all blocks resident, A and C moved once.
        tables = (self._tall, self._tall_step_s), (self._low, self._low_step_s)
        near_s = min(
            self._steps * self._per_row_tile * min(table[1:]) / (self._sms * cost.tile.bm)
            for cost, table in tables
        )
        l2_s = row_s + self._l2_per_tile_s / tiles[0].bm
        dram_s = (self._batch_k / self._reuse + self._written) / chip.dram_bytes_per_s
        self.least_s_per_row = overlapped_seconds(chip.overlap_exponent, near_s, l2_s, dram_s)
        self.least_s = chip.launch_s + min(cost.fill_s for cost, _ in tables) / self._blocks
        """Lower bound of the seconds that do not depend on rows."""

    def _step_table(self, tile: TileCost) -> tuple[float, ...]:
        """Returns the seconds of a step of a tile, by the number of resident blocks."""
        return (0.0, *(tile.seconds_of_step(r + 1) for r in range(self._blocks)))

    def at(self, m: int, limit_s: float = inf) -> CandidateEstimate:
        """Returns the estimate for m rows; `ENDLESS` if a pair has no rows for both tiles, or
        exceeds the limit."""
        tiles = -(-m // self.granule)
        found = self.entries.get(tiles)
        if found is None:
            if len(self.tiles) == 1:
                found = self._single(tiles)
            else:
                talls, near_s = self._height(tiles)
                if near_s >= limit_s:
                    return ENDLESS
                found = ENDLESS
                if talls:
                    lows = tiles - talls * (self.tiles[0].bm // self.tiles[1].bm)
                    found = self.estimate(talls, lows, 1, limit_s)
                    if found is ENDLESS:
                        return found
            if len(self.entries) >= MAX_ENTRIES:
                self.entries.clear()
            self.entries[tiles] = found
        return found

    def _single(self, tiles: int) -> CandidateEstimate:
        found = [self.estimate(tiles, 0, split_k) for split_k in self.split_k_choices(tiles)]
        if len(found) == 1:
            return found[0]
        m, exponent = tiles * self.granule, self._chip.overlap_exponent
        return min(found, key=lambda estimate: estimate.seconds(m, exponent))

    def split_k_choices(self, tiles: int) -> tuple[int, ...]:
        """Returns the values of split-k to try for a number of row tiles."""
        units = tiles * self._per_row_tile
        return split_k_choices(self._tuning, self._sms, self.tiling, units)

    def _height(self, lows: int) -> tuple[int, float]:
        """Returns the row tiles of the best first band, 0 if there is none, and the seconds of the
        k steps, which are what differs between heights."""
        ratio = self.tiles[0].bm // self.tiles[1].bm
        chosen, least_s = 0, inf
        for talls in self.heights(lows):
            near_s = self._near_s(talls, lows - talls * ratio, 1)[2]
            if near_s < least_s:
                chosen, least_s = talls, near_s
        return chosen, least_s

    def heights(self, lows: int) -> Iterator[int]:
        """Yields the row tiles of the first band to try, where `lows` lower ones would cover all
        rows: as many as fit, and as many as fill whole waves."""
        most = (lows - 1) // (self.tiles[0].bm // self.tiles[1].bm)
        if most:
            yield most
        waves = most * self._per_row_tile // self._sms
        filling = waves * self._sms // self._per_row_tile
        if 0 < filling < most:
            yield filling

    def _near_s(self, talls: int, lows: int, split_k: int) -> tuple[int, int, float]:
        """Returns the units of the first band and of both, and the seconds of the k steps of the
        busiest multiprocessor."""
        per_row = self._per_row_tile * split_k
        units_tall = talls * per_row
        units = units_tall + lows * per_row
        share = -(-units // self._sms)
        share_tall = -(-units_tall // self._sms)
        resident = self._blocks if share > self._blocks else share
        near_s = share_tall * self._tall_step_s[resident]
        near_s += (share - share_tall) * self._low_step_s[resident]
        return units_tall, units, near_s * -(-self._steps // split_k)

    def estimate(
        self, talls: int, lows: int, split_k: int, limit_s: float = inf
    ) -> CandidateEstimate:
        """Returns the estimate of `talls` and `lows` row tiles (split-k takes one band); `ENDLESS`
        beyond the limit."""
        chip = self._chip
        units_tall, units, near_s = self._near_s(talls, lows, split_k)
        resident = min(self._blocks, -(-units // self._sms))
        programs = min(units, self._resident)

        # Around the steps.
        tall, low = self._tall, self._low
        rounds = -(-units // programs)
        rounds_tall = -(-units_tall // programs)
        rounds_low = rounds - rounds_tall
        hidden = 1.0 - 1.0 / resident
        stores_s = rounds_tall * tall.store_s + rounds_low * low.store_s
        last_s = low.store_s if rounds_low else tall.store_s
        around_s = chip.launch_s + stores_s / resident + hidden * last_s
        if units > MOST_COUNTED:
            around_s += UNCOUNTED_S
        if self.tiling.chained and split_k == 1:
            around_s += tall.fill_s
        else:
            fills_s = rounds_tall * tall.fill_s + rounds_low * low.fill_s
            around_s += fills_s / resident + hidden * tall.fill_s
        if near_s + around_s >= limit_s:
            return ENDLESS
        l2_per_row_s = self._l2_per_row_s
        if split_k > 1:
            partial_s = rounds_tall * tall.partial_s + rounds_low * low.partial_s
            around_s += chip.reduce_s + partial_s * (1 + split_k)
            l2_per_row_s += split_k * self._part_per_row_s

        # Order of tiles, and what it leaves to DRAM.
        tiles = talls + lows
        at_once = max(programs // split_k, 1)
        square = min(isqrt(int(at_once * self._wave_aspect)) or 1, tiles)
        swizzle, passes_a, passes_b = square, 1, 1
        if talls * tall.tile.bm + lows * low.tile.bm > self._all_kept:
            swizzle, passes_a, passes_b = self._swizzle(tiles, square, at_once)
        rate = chip.dram_bytes_per_s
        return CandidateEstimate(
            near_s,
            around_s,
            tiles * self._l2_per_tile_s,
            l2_per_row_s,
            self._batch_k * self.tiling.n * passes_b / rate,
            (self._batch_k * passes_a / self._reuse + self._written) / rate,
            tall.tile.bm,
            absent_s_per_row(chip, self.tiling, split_k),
            talls * tall.tile.bm if lows else 0,
            split_k,
            swizzle,
            programs,
        )

    def _swizzle(self, tiles: int, square: int, at_once: int) -> tuple[int, int, int]:
        """Returns the swizzle, and how often A and B are read from DRAM. The swizzle is that whose
        rows of A stay in L2, or that of square waves, whichever reads less from DRAM."""
        best = None
        for swizzle in {square, min(max(self._kept_tiles, 1), tiles)}:
            passes_b = 1 if self._b_is_kept else -(-tiles // swizzle)
            passes_a = 1
            if swizzle > self._kept_tiles:
                passes_a = -(-swizzle * self.tiling.columns // at_once)
            moved = passes_a * tiles * self.tiles[0].bm / self._reuse + passes_b * self.tiling.n
            if best is None or moved < best[0]:
                best = (moved, swizzle, passes_a, passes_b)
        assert best is not None
        return best[1:]
