"""The cost of a product on a CPU: what its busiest worker takes, at any number of rows.

All that does not depend on the rows is worked out once, so that another number of rows, the common
case, costs a few microseconds. The terms are those of `ftuner.cost.step.Estimate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ftuner.core.product import ProductTypes
from ftuner.cost.cpu.correction import UNKNOWN
from ftuner.cost.cpu.tile import FarPanel, Reading
from ftuner.cost.step import Estimate
from ftuner.hardware.model import CpuHardware

Floats = npt.NDArray[np.float64]


class Cover(NamedTuple):
    """Row tiles that cover an extent exactly, and their cycles for one panel."""

    segments: tuple[tuple[int, int], ...]
    """(mr, tiles), tallest first."""
    tiles: int
    step: float
    """Cycles of one k step of all tiles together."""
    issue: float
    """The part of `step` that multiply-adds take."""
    fixed: float
    """Cycles of entering and leaving all tiles, once for each block of k."""
    wait: float
    """Cycles that a k step takes longer because the panel comes from a level after L2."""
    reading: Reading
    """How the first tile reads the panel."""
    kind: int = 0
    """An index of `correction_features.KINDS`."""
    factor: float = UNKNOWN
    """Its part of the learned correction."""

    def cycles(self, steps: int) -> float:
        """Cycles of a block of k of `steps` steps."""
        return steps * (self.step + self.wait) + self.fixed


class Covers(Protocol):
    """The exact covers of all numbers of rows by the uKernels of one width."""

    @property
    def main(self) -> int:
        """The height with the fewest cycles a row."""

    def __getitem__(self, rows: int) -> Cover: ...

    def __hash__(self) -> int: ...


class UKernels(NamedTuple):
    """The uKernels of products by panels that stay in L2."""

    types: ProductTypes
    lanes: int
    width: int
    """Vectors of a full panel."""
    covers: Callable[[int, bool, int], Covers]
    """The covers of rows by vectors of a panel, whether it is a tail, and the length of k."""

    def cycles(self, columns: int, k: int, *heights: tuple[int, float]) -> Sequence[float]:
        """Cycles of products by a weight, as those of `Cover`: `issue` and `step` of all steps, and
        `fixed`. `heights`: rows, and how many products have as many."""
        issue = step = fixed = 0.0
        full, left = divmod(columns, self.width * self.lanes)
        parts = (full, self.width, False), (int(left > 0), -(-left // self.lanes), True)
        for panels, vectors, tail in parts:
            if not panels:
                continue
            covers = self.covers(vectors, tail, k)
            for rows, times in heights:
                cover, number = covers[rows], times * panels
                issue += number * k * cover.issue
                step += number * k * cover.step
                fixed += number * cover.fixed
        return issue, step, fixed


class ProductMachine:
    """What the cost of products depends on, in cycles, seconds and bytes: read once."""

    def __init__(self, hardware: CpuHardware, types: ProductTypes, lanes: int) -> None:
        """`lanes`: of a vector of accumulators."""
        self.tuning = tuning = hardware.tuning
        levels = hardware.levels
        l2 = levels[min(1, len(levels) - 1)]
        last_cache = levels[max(len(levels) - 2, 0)]
        self.types = types
        self.lanes = lanes
        self.page_bytes = hardware.page_bytes
        self.period_s = 1.0 / hardware.clock_hz
        self.l1_bytes = tuning.cache_share * levels[0].capacity_bytes
        self.l2_bytes = float(l2.capacity_bytes)
        self.l2_bytes_per_cycle = l2.bandwidth_bytes_per_s / hardware.clock_hz
        self.last_cache_bytes = tuning.cache_share * last_cache.capacity_bytes
        self._levels = levels
        self._ways = levels[0].associativity
        self._way_bytes = levels[0].capacity_bytes // max(self._ways, 1)

    def crowded_ways(self, k: int) -> int:
        """The ways of L1, if contiguous rows of `k` elements of A lead to the same sets of it;
        else 0."""
        return 0 if k * self.types.a.itemsize % self._way_bytes else self._ways

    def rates(self, workers: int) -> tuple[float, float]:
        """Bytes per second of one of `workers` from the last cache and from DRAM."""
        rates = [
            min(level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s / workers)
            for level in self._levels[max(len(self._levels) - 2, 0) :]
        ]
        return rates[0], rates[-1]

    def far_panel(self, row_bytes: int, from_dram: bool, workers: int) -> FarPanel:
        """A panel whose k steps have `row_bytes`, of which one of `workers` reads its own."""
        rate = self.rates(workers)[int(from_dram)]
        return FarPanel(row_bytes / (rate * self.period_s), from_dram, workers > 1)


class ProductShare(NamedTuple):
    """A product without its rows, and the share of it that the busiest worker has."""

    batch: int
    n: int
    k: int
    """At least 1: the sum of no elements takes as long as that of one."""
    elements: int
    """Batch elements of the worker."""
    panels: int
    """Full panels of the worker."""
    columns: int
    """Columns of the worker's panels, the padding of the last one included."""
    k_steps: int
    """Steps of k of the worker."""
    k_blocks: int
    """Blocks that these steps are cut into."""
    workers: int
    workers_m: int
    """Workers along m."""
    workers_k: int
    """Workers along k."""
    in_panels: bool
    """Whether B is a packed weight."""
    b_in_rows: bool
    """Whether B is contiguous along n."""
    b_k_bytes: int
    """Bytes between two k steps of a B that is not in panels; 0 if it is."""
    pack_a: bool
    pack_b: bool
    shared_pack: bool
    """Whether workers pack B together, then wait for each other."""
    widen: bool
    """Whether panels of narrower elements are widened one by one before they are used."""
    a_reuse: float = 1.0
    """Rows of A that share an element of memory, on average: several where A is read through a
    window."""
    window_elements: int = 0
    """Elements of the window that A is read through; 0 if there is none."""


class RowBlocks(NamedTuple):
    """How rows of A are blocked."""

    resident_rows: int
    """Rows whose steps of a block of k stay in L2 with all panels."""
    cached_rows: int
    """Largest number of rows that is not blocked."""
    block_rows: int
    """Rows of a block."""


class ProductCost:
    """The terms of a product for any number of rows. Thousands are kept, so it has slots."""

    __slots__ = (
        "_a_bytes_per_row", "_a_passes", "_b_bytes", "_blocks", "_c_bytes_per_row", "_covers",
        "_factors", "_far_s_per_tile", "_footprint_bytes",
        "_footprint_bytes_per_row", "_l2_bytes", "_last_cache_bytes", "_pack_s", "_pack_s_per_row",
        "_panels", "_partial_s_per_row", "_rate_dram", "_rate_l3", "_step_s", "_tail_covers",
        "_tile_s", "_wait_s", "_widen_s", "_window_s_per_tile", "_workers_m",
    )  # fmt: skip

    def __init__(
        self, machine: ProductMachine, share: ProductShare, blocks: RowBlocks, covers: Covers,
        tail_covers: Covers | None, factors: tuple[float, ...],
    ) -> None:  # fmt: skip
        """`covers`: of the worker's full panels; `tail_covers`: of its last columns, if it has a
        tail; `factors`: its part of the learned correction, by kind of cover."""
        types, lanes, tuning = machine.types, machine.lanes, machine.tuning
        a_size, b_size, c_size = types.a.itemsize, types.b.itemsize, types.c.itemsize
        period_s = machine.period_s
        elements, columns, k_steps = share.elements, share.columns, share.k_steps
        self._workers_m = share.workers_m
        self._blocks, self._factors = blocks, factors
        self._covers, self._tail_covers = covers, tail_covers
        self._l2_bytes, self._last_cache_bytes = machine.l2_bytes, machine.last_cache_bytes
        self._panels = share.panels
        self._step_s = elements * k_steps * period_s
        self._tile_s = elements * share.k_blocks * period_s

        # Transfers: B passes once for each block of rows, A once for each panel unless its block
        # stays in L2, C twice for each block of k.
        self._b_bytes = elements * columns * k_steps * b_size
        self._a_bytes_per_row = elements * a_size * k_steps / share.a_reuse
        self._a_passes = max(share.panels, 1)
        self._c_bytes_per_row = 2 * elements * columns * c_size * share.k_blocks
        self._rate_l3, self._rate_dram = machine.rates(share.workers)
        self._footprint_bytes = share.batch * share.k * share.n * b_size
        a_row_bytes = share.k * a_size / share.a_reuse
        self._footprint_bytes_per_row = share.batch * (a_row_bytes + share.n * c_size)
        # For each tile and element of the window, the addresses of the tile's rows are computed.
        elements_of_tiles = elements * share.window_elements * max(share.panels, 1)
        self._window_s_per_tile = elements_of_tiles * tuning.window_element_cycles * period_s

        # Each block of rows widens panels again.
        vectors = elements * columns * k_steps * types.steps / lanes
        self._widen_s = 0.0
        if share.widen:
            widening_s = vectors * tuning.widen_cycles_per_vector * period_s
            self._widen_s = max(widening_s, self._b_bytes / self._rate_l3)

        # Packing, and reading rows that are far apart in place.
        self._pack_s = self._pack_s_per_row = 0.0
        if share.pack_b:
            if share.shared_pack:
                vectors /= share.workers_m
            cycles = tuning.pack_transpose_cycles_per_vector
            if share.b_in_rows:
                cycles = tuning.pack_copy_cycles_per_vector
            self._pack_s = vectors * cycles * period_s
        if share.b_k_bytes >= machine.page_bytes:
            self._pack_s += self._b_bytes / tuning.far_row_bytes_per_cycle * period_s
        # Rows of B in place are apart, and fill the few cache sets that their distance leads to:
        # beyond a share of L1, each row tile fetches them from L2 again.
        self._far_s_per_tile = 0.0
        in_place = share.b_in_rows and not share.pack_b
        if in_place and k_steps * share.b_k_bytes > tuning.in_place_share_of_l1 * machine.l1_bytes:
            self._far_s_per_tile = self._b_bytes / machine.l2_bytes_per_cycle * period_s
        if share.pack_a:
            cycles = tuning.pack_transpose_cycles_per_vector
            self._pack_s_per_row = elements * k_steps / lanes * cycles * period_s

        # Waiting for each other.
        self._wait_s = self._partial_s_per_row = 0.0
        if share.workers > 1:
            rounds = 1 + int(share.shared_pack) + int(share.workers_k > 1)
            self._wait_s = rounds * tuning.synchronise_s
        if share.in_panels and share.workers_m > 1:
            self._wait_s += tuning.shared_panels_share * self._b_bytes / self._rate_dram
        if share.workers_k > 1:
            partial_bytes = (share.workers_k + 1) * share.n * c_size / share.workers
            self._partial_s_per_row = partial_bytes / machine.l2_bytes_per_cycle * period_s

    def terms(self, m: int) -> Estimate:
        """The terms of the busiest worker for a product of `m` rows."""
        rows = m
        if self._workers_m > 1:
            rows = most_rows(m, self._covers.main, self._workers_m)
        _, tiles, step, issue, fixed, wait, _, kind, factor = self._covers[rows]
        panels = self._panels
        step, issue, fixed = (step + wait) * panels, issue * panels, fixed * panels
        if self._tail_covers is not None:
            _, _, tail_step, tail_issue, tail_fixed, tail_wait, *_ = self._tail_covers[rows]
            step, issue, fixed = (
                step + tail_step + tail_wait,
                issue + tail_issue,
                fixed + tail_fixed,
            )
        issue_s = self._step_s * issue
        stall_s = self._step_s * (step - issue) + self._far_s_per_tile * (tiles - 1)
        tile_s = self._tile_s * fixed + self._partial_s_per_row * rows
        tile_s += self._window_s_per_tile * tiles

        b_bytes, a_bytes = self._b_bytes, self._a_bytes_per_row * rows
        widen_s = self._widen_s
        c_bytes = self._c_bytes_per_row * rows
        l3_s = dram_s = 0.0
        footprint_bytes = self._footprint_bytes + self._footprint_bytes_per_row * m
        resident_rows, cached_rows, block_rows = self._blocks
        if m > cached_rows:
            row_blocks = -(-rows // block_rows)
            b_bytes *= row_blocks
            widen_s *= row_blocks
        if footprint_bytes > self._l2_bytes:
            passes = self._a_passes if resident_rows < rows <= cached_rows else 1
            l3_s = (a_bytes * passes + b_bytes + c_bytes) / self._rate_l3
            if footprint_bytes > self._last_cache_bytes:
                dram_s = (a_bytes + self._b_bytes + c_bytes) / self._rate_dram
        pack_s = self._pack_s + self._pack_s_per_row * rows + widen_s
        # Without the call of `Estimate.__new__`, which takes the time of a tenth of this function.
        correction = self._factors[kind] * factor or 1.0
        return tuple.__new__(
            Estimate, (issue_s, stall_s, l3_s, dram_s, tile_s, pack_s, self._wait_s, correction)
        )

    def seconds_at(self, extents: tuple[int, ...]) -> Floats:
        """`terms(m).seconds` of several m at once, with the same bits in a tenth of the time."""
        rows_of = extents
        if self._workers_m > 1:
            main, workers = self._covers.main, self._workers_m
            rows_of = tuple([most_rows(m, main, workers) for m in extents])
        m, rows = np.array((extents, rows_of), np.float64)
        tiles, step, issue, fixed, wait, kind, factor = _numbers(self._covers, rows_of)
        panels = self._panels
        step, issue, fixed = (step + wait) * panels, issue * panels, fixed * panels
        if self._tail_covers is not None:
            _, more, more_issue, more_fixed, more_wait, *_ = _numbers(self._tail_covers, rows_of)
            step, issue, fixed = step + more + more_wait, issue + more_issue, fixed + more_fixed
        issue_s = self._step_s * issue
        stall_s = self._step_s * (step - issue) + self._far_s_per_tile * (tiles - 1)
        tile_s = self._tile_s * fixed + self._partial_s_per_row * rows
        tile_s += self._window_s_per_tile * tiles

        resident_rows, cached_rows, block_rows = self._blocks
        row_blocks = np.where(m > cached_rows, -(-rows // block_rows), 1)
        a_bytes, c_bytes = self._a_bytes_per_row * rows, self._c_bytes_per_row * rows
        passes = np.where((resident_rows < rows) & (rows <= cached_rows), self._a_passes, 1)
        l3_s = (a_bytes * passes + self._b_bytes * row_blocks + c_bytes) / self._rate_l3
        dram_s = (a_bytes + self._b_bytes + c_bytes) / self._rate_dram
        footprint_bytes = self._footprint_bytes + self._footprint_bytes_per_row * m
        l3_s[footprint_bytes <= self._l2_bytes] = 0.0
        dram_s[footprint_bytes <= max(self._l2_bytes, self._last_cache_bytes)] = 0.0
        pack_s = self._pack_s + self._pack_s_per_row * rows + self._widen_s * row_blocks
        seconds = np.maximum(np.maximum(issue_s + stall_s + tile_s, l3_s), dram_s)
        correction = np.array(self._factors)[kind.astype(np.intp)] * factor
        found: Floats = (seconds + pack_s + self._wait_s) * np.where(correction, correction, 1.0)
        return found


@lru_cache(maxsize=256)
def _numbers(covers: Covers, rows: tuple[int, ...]) -> Floats:
    """The tiles, cycles, kinds and factors of several covers."""
    found = [covers[n] for n in rows]
    numbers: Floats = np.array([(*c[1:6], c.kind, c.factor) for c in found], np.float64).T
    return numbers


def most_rows(m: int, main: int, workers: int) -> int:
    """The rows of the worker that has the most of `m`, in whole tiles of height `main`: up to a
    tile more than it has where the last tile of m is cut off."""
    if m >= 2 * main * workers:
        tiles = -(-m // main)
        return min(-(-tiles // workers) * main, m)
    return -(-m // workers)
