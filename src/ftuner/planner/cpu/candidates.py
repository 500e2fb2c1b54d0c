"""Pricing: what a candidate plan costs, as a function of m.

All that does not depend on m is worked out once for each problem, so that a shape that differs in m
alone, the common case, costs a few microseconds a candidate. The terms are those of
`ftuner.cost.cpu.product.Estimate`, in its order.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, PACKED_INT8, STRIDED
from ftuner.core.dtype import INT8
from ftuner.core.mapping import bounds
from ftuner.planner.cpu.cover import CoverTable
from ftuner.planner.cpu.plan import Choice, Problem
from ftuner.ukernels.cpu.library import Family, Library

K_ALIGNMENT = 8
"""Blocks of k are multiples of this, so that every block but the last takes whole chains."""
MAX_MAGNITUDE = 12
"""Bits of the lengths of k from which on entering a tile weighs too little to change a cover."""
MAX_ROWS = 1 << 62


class PricedMachine:
    """What pricing needs of a library and its hardware, in cycles and bytes, and cover tables."""

    def __init__(self, library: Library) -> None:
        hardware = library.hardware
        self.tuning = tuning = hardware.tuning
        levels = hardware.levels
        l2 = levels[min(1, len(levels) - 1)]
        self.library = library
        self.size = library.dtype.itemsize
        self.lanes = library.lanes
        self.page_bytes = hardware.page_bytes
        self.vector_bytes = library.isa.vector_bytes
        self.period = 1.0 / hardware.clock_hz
        self.l1_bytes = tuning.cache_share * levels[0].capacity_bytes
        self.l2_bytes = float(l2.capacity_bytes)
        self.l2_bytes_per_cycle = l2.bandwidth_bytes_per_s / hardware.clock_hz
        last_cache = levels[max(len(levels) - 2, 0)]
        self.last_cache_bytes = tuning.cache_share * last_cache.capacity_bytes
        block_bytes = tuning.block_share_of_l2 * self.l2_bytes
        self.steps_of_block = block_bytes / (tuning.block_rows * self.size)
        self.synchronise_s = hardware.synchronise_s
        self._levels = levels
        self._covers: dict[tuple[str, int, bool], CoverTable] = {}
        self._families: dict[tuple[int, bool, str, str], Family] = {}

    def rates(self, workers: int) -> tuple[float, float]:
        """Bytes per second of one of `workers` from the last cache and from DRAM."""
        rates = [
            min(level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s / workers)
            for level in self._levels[max(len(self._levels) - 2, 0) :]
        ]
        return rates[0], rates[-1]

    def covers(self, family: Family, steps: int, in_l1: bool) -> CoverTable:
        """The cover table of a family, for lengths of k around `steps`."""
        magnitude = min(steps.bit_length(), MAX_MAGNITUDE)
        key = (family.name, magnitude, in_l1)
        found = self._covers.get(key)
        if found is None:
            row_of_b_bytes = family.nr * family.kernels[0].b_itemsize
            row_of_b = 0.0 if in_l1 else row_of_b_bytes / self.l2_bytes_per_cycle
            typical = 3 << max(magnitude - 2, 0)
            found = CoverTable(family, self.library.isa, self.tuning, typical, row_of_b)
            self._covers[key] = found
        return found

    def family(self, vectors: int, tail: bool, a_layout: str, b_layout: str) -> Family:
        key = (vectors, tail, a_layout, b_layout)
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = self.library.family(*key)
        return found

    def blocks_of_k(self, k: int, nr: int) -> tuple[int, ...]:
        """Steps of k in a block, longest first: all unless a panel then crowds L2, and for an A
        that is to be blocked, so few that L2 holds `block_rows` rows of it."""
        panel_bytes = min(self.tuning.panel_share_of_l2 * self.l2_bytes, self.tuning.panel_bytes)
        by_panel = panel_bytes / (nr * self.size)
        long = _even_blocks(k, int(by_panel))
        short = _even_blocks(k, int(min(by_panel, self.steps_of_block)))
        return (long,) if long == short else (long, short)


class Option:
    """One candidate for a problem of any m. Thousands are kept, so it has slots."""

    __slots__ = (
        "_a_bytes_per_row", "_a_passes", "_b_bytes", "_block_rows", "_c_bytes_per_row",
        "_cached_rows", "_exposed_fetch_tiles", "_far_s_per_tile", "_fetch_s",
        "_footprint_fixed", "_footprint_per_row",
        "_machine", "_most_chunks", "_most_chunks_blocked", "_pack_s", "_pack_s_per_row", "_panels",
        "_partial_s_per_row", "_parts_m", "_priced_tail", "_rate_dram", "_rate_l3",
        "_resident_rows", "_step_s", "_tile_s", "_wait_s", "_widen_s", "_workers", "batch_ranges",
        "choice", "family", "first_row", "full", "k_ranges", "last_row", "left", "nr", "table",
        "tail_family", "tail_table", "unit_ranges",
    )  # fmt: skip

    def __init__(self, machine: PricedMachine, problem: Problem, choice: Choice) -> None:
        # The sum of no elements takes as long as that of one.
        n, k, batch = problem.n, max(problem.k, 1), problem.batch
        dot = choice.dot
        # Dot tiles read A and B where they lie and all of k at once.
        assert not dot or (choice.kc >= k and choice.grid[3] == 1)
        assert not dot or not (choice.pack_a or choice.pack_b)
        parts_b, parts_m, parts_n, parts_k = choice.grid
        size, lanes, tuning = machine.size, machine.lanes, machine.tuning
        self.choice = choice
        self._machine = machine
        self.nr = nr = choice.vectors * (1 if dot else lanes)
        self.full, self.left = divmod(n, nr)
        tail_vectors = -(-self.left // lanes)
        tail_columns = self.left if dot else tail_vectors * lanes
        self._parts_m = parts_m
        # The uKernels, and the ranges of workers along the axes other than m.
        a_layout = COLUMN if choice.pack_a else problem.a_layout
        in_panels = choice.pack_b or problem.in_panels
        panels = PACKED_INT8 if problem.int8 and not choice.widen else PACKED
        b_layout = DOT if dot else panels if in_panels else STRIDED
        b_itemsize = INT8.itemsize if problem.int8 else size
        self.family = machine.family(choice.vectors, False, a_layout, b_layout)
        self.tail_family = None
        if self.left and dot:
            self.tail_family = machine.family(self.left, False, a_layout, DOT)
        elif self.left:
            self.tail_family = machine.family(tail_vectors, True, a_layout, panels)
        units = self.full + (1 if self.left else 0)
        self.batch_ranges = _ranges(batch, parts_b)
        self.unit_ranges = _ranges(units, parts_n)
        self.k_ranges = _ranges(problem.k, parts_k)
        workers = parts_b * parts_m * parts_n * parts_k
        self._workers = workers
        units_cut = units if parts_n > 1 else batch
        one_axis = workers in (parts_b, parts_n) and workers > 1 and not choice.pack_a
        # Workers that take chunks have room for all of B each.
        if choice.pack_b and workers * n * k * size > tuning.max_chunked_pack_bytes:
            one_axis = False
        most = min(units_cut, tuning.chunks_per_worker * workers)
        self._most_chunks = most if one_axis and most > workers else 0
        """No chunks if that is zero."""
        self._most_chunks_blocked = self._most_chunks
        if parts_n > 1 and self._most_chunks:
            # As many for each worker.
            most = units // tuning.panels_per_chunk // workers * workers
            self._most_chunks_blocked = min(self._most_chunks, most) if most > workers else 0
        elements = -(-batch // parts_b)
        k_part = -(-k // parts_k)
        blocks_k = -(-k_part // choice.kc)
        in_l1 = choice.kc * nr * size <= machine.l1_bytes
        # Cycles do not depend on how operands lie, nor do heights, but for tiles in parts: layouts
        # share their tables.
        priced, priced_tail = self.family, self.tail_family
        if not dot and panels == PACKED:
            if not in_panels:
                priced = machine.family(choice.vectors, False, COLUMN, PACKED)
            ragged = self.left < tail_columns
            priced_tail = (
                machine.family(tail_vectors, ragged, COLUMN, PACKED) if self.left else None
            )
        self.table = machine.covers(priced, choice.kc, in_l1)
        self.tail_table: CoverTable | None = None
        if priced_tail is not None:
            self.tail_table = machine.covers(priced_tail, choice.kc, in_l1)

        # The busiest worker: where n is cut, one that has only full panels.
        if parts_n == 1:
            self._panels, has_tail = self.full, self.left > 0
        else:
            self._panels, has_tail = -(-(self.full + (self.left > 0)) // parts_n), False
        self._priced_tail = self.tail_table if has_tail else None
        columns = self._panels * nr + (tail_columns if has_tail else 0)
        period = machine.period
        self._step_s = elements * k_part * period
        self._tile_s = elements * blocks_k * period

        # Transfers: B passes once for each block of rows, A once for each panel unless its block
        # stays in L2, C twice for each block of k.
        row_bytes = size * k_part
        self._b_bytes = elements * columns * k_part * b_itemsize
        self._a_bytes_per_row = elements * row_bytes
        self._a_passes = max(self._panels, 1)
        self._c_bytes_per_row = 2 * elements * columns * size * blocks_k
        self._rate_l3, self._rate_dram = machine.rates(workers)
        # A weight comes from there whatever its size: a model's others have taken its place in L2.
        self._fetch_s = self._b_bytes / self._rate_l3 if problem.in_panels else 0.0
        self._exposed_fetch_tiles = tuning.exposed_fetch_tiles
        self._footprint_fixed = batch * k * n * b_itemsize
        self._footprint_per_row = batch * (k + n) * size
        share_bytes = tuning.block_share_of_l2 * machine.l2_bytes
        block_bytes = share_bytes
        unblocked_bytes = tuning.a_share_of_last_cache * machine.last_cache_bytes
        if machine.steps_of_block >= tuning.long_block_steps:
            unblocked_bytes = min(unblocked_bytes, parts_m * share_bytes)
            block_bytes = tuning.block_share_of_large_l2 * machine.l2_bytes
        self._resident_rows = int(share_bytes / (size * choice.kc))
        self._block_rows = max(int(block_bytes / (size * choice.kc)), 1)
        self._cached_rows = int(unblocked_bytes / (size * k))
        lengths = () if dot else machine.blocks_of_k(k, nr)
        # The rows that the option is for: every worker gets some worth its while, blocks of k are
        # short if and only if A is to be blocked, and one worker alone is not
        # asked where its multiply-adds already take many times what workers wait for each other.
        self.first_row, self.last_row = 1, MAX_ROWS
        if parts_m > 1:
            self.first_row = tuning.rows_worth_a_worker * parts_m
        if len(lengths) > 1 and choice.kc == lengths[-1]:
            self.first_row = max(self.first_row, self._cached_rows + 1)
        elif len(lengths) > 1:
            self.last_row = self._cached_rows
        if workers == 1 and problem.workers > 1 and batch * (n // nr) >= problem.workers:
            row_s = self._step_s * self._panels * self.table.issue_per_row
            self.last_row = min(
                self.last_row, int(tuning.alone_waits * machine.synchronise_s / row_s)
            )

        # What each block of rows widens again.
        self._widen_s = 0.0
        if choice.widen:
            vectors = elements * columns * k_part / lanes
            self._widen_s = vectors * tuning.widen_cycles_per_vector * period

        # Packing and reading far apart rows in place.
        self._pack_s = self._pack_s_per_row = 0.0
        if choice.pack_b:
            vectors = elements * columns * k_part / lanes
            if choice.shared_pack:
                vectors /= parts_m
            copies = problem.b_source == "rows"
            cycles = (
                tuning.pack_copy_cycles_per_vector
                if copies
                else tuning.pack_transpose_cycles_per_vector
            )
            self._pack_s = vectors * cycles * period
        if problem.b_k_bytes >= machine.page_bytes:
            self._pack_s += self._b_bytes / tuning.far_row_bytes_per_cycle * period
        # Rows of B in place are apart, and fill the few cache sets that their distance leads to:
        # beyond half of L1, each row tile fetches them from L2 again.
        self._far_s_per_tile = 0.0
        in_place = problem.b_source == "rows" and not choice.pack_b
        if in_place and k_part * problem.b_k_bytes > tuning.in_place_share_of_l1 * machine.l1_bytes:
            self._far_s_per_tile = self._b_bytes / machine.l2_bytes_per_cycle * period
        if choice.pack_a:
            vectors_per_row = elements * k_part / lanes
            self._pack_s_per_row = (
                vectors_per_row * tuning.pack_transpose_cycles_per_vector * period
            )

        # Waiting for each other.
        self._wait_s = self._partial_s_per_row = 0.0
        if workers > 1:
            rounds = 1 + int(choice.shared_pack) + int(parts_k > 1)
            self._wait_s = rounds * machine.synchronise_s
        if parts_k > 1:
            partial = (parts_k + 1) * n * size / workers
            self._partial_s_per_row = partial / machine.l2_bytes_per_cycle * period

    def chunks(self, m: int, seconds: float) -> int:
        """Chunks to cut the work on m rows into, which takes every worker `seconds`; 0 for none.

        Only where the grid cuts one axis, batch or n, and chunks share nothing that each would
        make again: then they cost next to nothing, and even out what else runs on the machine. What
        they do read again is A where it is blocked: there they are wider.
        """
        wanted = int(seconds * self._workers / self._machine.tuning.chunk_s)
        most = self._most_chunks if m <= self._cached_rows else self._most_chunks_blocked
        return min(wanted, most) if wanted >= 2 * self._workers else 0

    def fits(self, m: int) -> bool:
        """Whether the option is for this m."""
        return self.first_row <= m <= self.last_row

    def block_of_rows(self, m: int) -> int:
        """Rows of A in a block: all, unless A is too large to be read again for every panel."""
        return m if m <= self._cached_rows else self._block_rows

    def terms(self, m: int) -> tuple[float, float, float, float, float, float, float]:
        """The terms of `Estimate`, in its order, for the busiest worker."""
        rows = m
        if self._parts_m > 1:
            rows = most_rows(m, self.table.main, self._parts_m)
        _, tiles, step, issue, fixed, first = self.table[rows]
        panels = self._panels
        step, issue, fixed, first = step * panels, issue * panels, fixed * panels, first * panels
        if self._priced_tail is not None:
            _, _, tail_step, tail_issue, tail_fixed, tail_first = self._priced_tail[rows]
            step, issue, fixed = step + tail_step, issue + tail_issue, fixed + tail_fixed
            first += tail_first
        issue_s = self._step_s * issue
        stall_s = self._step_s * (step - issue) + self._far_s_per_tile * (tiles - 1)
        tile_s = self._tile_s * fixed + self._partial_s_per_row * rows

        b_bytes, a_bytes = self._b_bytes, self._a_bytes_per_row * rows
        widen_s = self._widen_s
        c_bytes = self._c_bytes_per_row * rows
        l3_s = dram_s = 0.0
        footprint = self._footprint_fixed + self._footprint_per_row * m
        if m > self._cached_rows:
            row_blocks = -(-rows // self._block_rows)
            b_bytes *= row_blocks
            widen_s *= row_blocks
        if footprint > self._machine.l2_bytes:
            passes = self._a_passes if self._resident_rows < rows <= self._cached_rows else 1
            l3_s = (a_bytes * passes + b_bytes + c_bytes) / self._rate_l3
            if footprint > self._machine.last_cache_bytes:
                dram_s = (a_bytes + self._b_bytes + c_bytes) / self._rate_dram
        if self._fetch_s > 0.0:
            first_s = self._step_s * first
            waiting_s = max(self._fetch_s - first_s, 0.0)
            if self._parts_m > 1:
                # Workers that read the same panels wait for each of them, and cannot help each
                # other: neither computing nor fetching hides all of the other. A smooth maximum,
                # fitted on Intel Ice Lake with two workers: 24 rows run up to 1.4 times as fast
                # with n cut, on none of six weights slower, and 18 to 22 rows alike either way.
                # Not measured on more workers.
                waiting_s = math.hypot(first_s, self._fetch_s) - first_s
            stall_s += waiting_s * min(self._exposed_fetch_tiles / tiles, 1.0)
        pack_s = self._pack_s + self._pack_s_per_row * rows + widen_s
        return issue_s, stall_s, l3_s, dram_s, tile_s, pack_s, self._wait_s


@lru_cache(maxsize=4096)
def _ranges(extent: int, parts: int) -> tuple[tuple[int, int], ...]:
    """The ranges of all parts: one tuple for all options that cut an extent so."""
    return tuple(bounds(extent, parts, i) for i in range(parts))


def _even_blocks(k: int, most: int) -> int:
    """The length of the fewest blocks of at most `most` steps, all but the last alike."""
    if k <= most:
        return k
    blocks = -(-k // max(most, K_ALIGNMENT))
    return -(-k // (blocks * K_ALIGNMENT)) * K_ALIGNMENT


def split_rows(m: int, main: int, parts: int) -> list[tuple[int, int]]:
    """The rows of each of `parts` workers: whole main tiles where there are enough of them."""
    if parts == 1:
        return [(0, m)]
    if m < 2 * main * parts:
        return [bounds(m, parts, i) for i in range(parts)]
    tiles = -(-m // main)
    units = [bounds(tiles, parts, i) for i in range(parts)]
    return [(min(begin * main, m), min(end * main, m)) for begin, end in units]


def most_rows(m: int, main: int, parts: int) -> int:
    """The rows of the worker that `split_rows` gives the most, in whole tiles: up to a tile more
    than it has where the last tile of m is cut off."""
    if m >= 2 * main * parts:
        tiles = -(-m // main)
        return min(-(-tiles // parts) * main, m)
    return -(-m // parts)
