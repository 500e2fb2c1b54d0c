"""Candidates: the ways to compute a product of any number of rows, and the tables they share.

What does not depend on m is computed once for each problem, so that a shape that differs only in m,
the common case, costs a few microseconds per candidate (`ftuner.cost.cpu.product`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, ROW, STRIDED
from ftuner.core.product import ReadWindow
from ftuner.core.ranges import bounds
from ftuner.cost.cpu.correction import UNKNOWN, Correction
from ftuner.cost.cpu.correction_features import KINDS, machine_features, share_features
from ftuner.cost.cpu.product import Covers, ProductCost, ProductMachine, ProductShare, RowBlocks
from ftuner.cost.step import Estimate
from ftuner.hardware.correction import LearnedCorrection
from ftuner.planner.cpu.cover import CoverTable, OneCover, Segments
from ftuner.planner.cpu.plan import Choice, Problem
from ftuner.ukernels.cpu.library import Family, Library

K_ALIGNMENT = 8
"""Blocks of k are multiples of this, so that every block but the last takes whole chains."""
MAX_MAGNITUDE = 12
"""Lengths of k with this many bits or more share a cover table: entering a tile then weighs too
little against its k steps to change a cover."""
MAX_ROWS = 1 << 62
NO_FACTORS = (UNKNOWN,) * len(KINDS)
"""Of candidates that are not corrected."""


class Far(NamedTuple):
    """A level after L2, and how many workers read it."""

    from_dram: bool
    workers: int


class PlannerTables:
    """What candidates of a library share: the machine of their costs, cover tables."""

    def __init__(self, library: Library, learned: LearnedCorrection | None = None) -> None:
        """`learned`: a correction of the estimates."""
        self.library = library
        hardware = library.hardware
        self.machine = machine = ProductMachine(hardware, library.types, library.lanes)
        self.machine_features = machine_features(hardware, library.isa, library.types)
        blocks = library.types.steps > 1
        # Nothing is learned of blocks.
        self._correction = None if learned is None or blocks else Correction(learned)
        self.tuning = tuning = machine.tuning
        self.a_block_bytes = tuning.block_share_of_l2 * machine.l2_bytes
        """Size of a block of A in L2."""
        self.a_itemsize = library.types.a.itemsize
        self.b_widened = library.types.widened.b
        """The dtype of B once it is widened; its own if it is not."""
        self.whole_sums = library.types.accumulator != library.types.c
        self.steps_of_block = self.a_block_bytes / (tuning.block_rows * self.a_itemsize)
        self._covers: dict[tuple[str, int, bool, Far | None, int, bool], CoverTable] = {}

    def correction_of(self, problem: Problem, widen: bool) -> Correction | None:
        """The correction of the estimates of a problem. None where B is not a packed weight, or is
        widened before its use: nothing is learned of these. None, too, for numbers of workers with
        which the estimate alone chooses as well."""
        learned = self._correction
        if learned is None or not problem.in_panels or widen:
            return None
        return learned if problem.workers in learned.workers else None

    def covers(
        self, family: Family, steps: int, in_l1: bool, far: Far | None = None, ways: int = 0,
        correction: Correction | None = None,
    ) -> CoverTable:  # fmt: skip
        """The cover table of a family, for lengths of k around `steps`. `far`: where panels come
        from, if that is after L2; `ways` and `correction`: as in `CoverTable`."""
        magnitude = min(steps.bit_length(), MAX_MAGNITUDE)
        key = (family.name, magnitude, in_l1, far, ways, correction is not None)
        found = self._covers.get(key)
        if found is None:
            row_of_b_bytes = family.nr * family.kernels[0].types.b.itemsize
            l2_bytes_per_cycle = self.tuning.l2_share * self.machine.l2_bytes_per_cycle
            row_of_b = 0.0 if in_l1 else row_of_b_bytes / l2_bytes_per_cycle
            typical = 3 << max(magnitude - 2, 0)
            panel = farther = None
            if far is not None:
                panel = self.machine.far_panel(row_of_b_bytes, *far)
                if not far.from_dram:
                    dram = far._replace(from_dram=True)
                    farther = self.machine.far_panel(row_of_b_bytes, *dram)
            found = CoverTable(
                family, self.library.isa, self.tuning, typical, row_of_b, panel, ways, correction,
                farther,
            )  # fmt: skip
            self._covers[key] = found
        return found

    def blocks_of_k(
        self, k: int, nr: int, window: ReadWindow | None, b_itemsize: int
    ) -> tuple[int, ...]:
        """Candidates for the k steps of a block, longest first: all steps unless a panel then fills
        its share of L2, and for an A that is blocked, as few as let L2 hold `block_rows` rows.
        Sums of integers stay in registers, because C holds floats. `b_itemsize`: of the elements
        that uKernels read."""
        if self.whole_sums:
            return (k,)
        tuning, machine = self.tuning, self.machine
        panel_bytes = min(tuning.panel_share_of_l2 * machine.l2_bytes, tuning.panel_bytes)
        by_panel = panel_bytes / (nr * b_itemsize)
        unit = K_ALIGNMENT if window is None else window.run
        long = _even_blocks(k, int(by_panel), unit)
        short = _even_blocks(k, int(min(by_panel, self.steps_of_block)), unit)
        return (long,) if long == short else (long, short)

    def row_blocks(self, k: int, kc: int, workers_m: int, reuse: float) -> RowBlocks:
        """How the rows of an A of `k` steps are blocked if blocks of k have `kc` steps. `reuse`:
        rows that share an element of memory."""
        tuning, machine = self.tuning, self.machine
        block_bytes = self.a_block_bytes
        unblocked_bytes = tuning.a_share_of_last_cache * machine.last_cache_bytes
        if self.steps_of_block * self.library.types.steps >= tuning.long_block_steps:
            unblocked_bytes = min(unblocked_bytes, workers_m * self.a_block_bytes)
            block_bytes = tuning.block_share_of_large_l2 * machine.l2_bytes
        step_bytes = self.a_itemsize * kc / reuse
        return RowBlocks(
            resident_rows=int(self.a_block_bytes / step_bytes),
            cached_rows=int(unblocked_bytes * reuse / (self.a_itemsize * k)),
            block_rows=max(int(block_bytes / step_bytes), 1),
        )


class Candidate:
    """One way to compute a problem of any m. Thousands are kept, so it has slots."""

    __slots__ = (
        "_blocks", "_chunk_s", "_factors", "_most_chunks", "_most_chunks_blocked", "_tables",
        "_units_cut", "_workers", "batch_ranges", "choice", "cost", "family", "first_row",
        "from_dram", "full", "k_ranges", "last_row", "left", "nr", "share", "table", "tail_family",
        "tail_table", "unit_ranges",
    )  # fmt: skip

    def __init__(
        self, tables: PlannerTables, problem: Problem, choice: Choice, lengths: tuple[int, ...]
    ) -> None:
        """`lengths`: the candidates for the length of blocks of k, longest first."""
        # An empty sum takes as long as that of one element.
        n, k, batch = problem.n, max(problem.k, 1), problem.batch
        machine, tuning, grid, dot = tables.machine, tables.tuning, choice.grid, choice.dot
        # Dot tiles read A and B in place, and all of k at once.
        assert not dot or (choice.kc >= k and grid.k == 1)
        assert not dot or not (choice.pack_a or choice.pack_b)
        library, lanes = tables.library, machine.lanes
        b_itemsize = tables.b_widened.itemsize
        self.choice, self._tables = choice, tables
        self.nr = nr = choice.vectors * (1 if dot else lanes)
        self.full, self.left = divmod(n, nr)
        tail_vectors = -(-self.left // lanes)
        tail_columns = self.left if dot else tail_vectors * lanes
        # The uKernels, and the ranges of workers along the axes other than m.
        a_layout = COLUMN if choice.pack_a else problem.a_layout
        in_panels = choice.pack_b or problem.in_panels
        # uKernels read B as it is, unless its panels are widened before.
        read = tables.b_widened if choice.widen else None
        b_layout = DOT if dot else PACKED if in_panels else STRIDED
        self.family = library.family(choice.vectors, False, a_layout, b_layout, read)
        self.tail_family = None
        if self.left and dot:
            self.tail_family = library.family(self.left, False, a_layout, DOT, read)
        elif self.left:
            self.tail_family = library.family(tail_vectors, True, a_layout, PACKED, read)
        units = self.full + (1 if self.left else 0)
        self.batch_ranges = _ranges(batch, grid.batch)
        self.unit_ranges = _ranges(units, grid.n)
        self.k_ranges = _ranges(problem.k, grid.k)
        workers = grid.workers
        self._workers = workers
        self._chunk_s = tuning.chunk_s
        self._units_cut = units_cut = units if grid.n > 1 else batch
        one_axis = workers in (grid.batch, grid.n) and workers > 1 and not choice.pack_a
        # Each worker that takes chunks has room for all of B.
        if choice.pack_b and workers * n * k * b_itemsize > tuning.max_chunked_pack_bytes:
            one_axis = False
        most = min(units_cut, tuning.chunks_per_worker * workers)
        self._most_chunks = most if one_axis and most > workers else 0
        """No chunks if that is zero."""
        self._most_chunks_blocked = self._most_chunks
        if grid.n > 1 and self._most_chunks:
            # The same number for each worker.
            most = units // tuning.panels_per_chunk // workers * workers
            self._most_chunks_blocked = min(self._most_chunks, most) if most > workers else 0
        # Cycles and heights do not depend on layouts, except for tiles in parts and for windows:
        # layouts share their tables.
        covered, covered_tail = self.family, self.tail_family
        if not dot and choice.widen == library.types.widens and problem.window is None:
            if not in_panels:
                covered = library.family(choice.vectors, False, COLUMN, PACKED, read)
            if self.left:
                ragged = self.left < tail_columns
                covered_tail = library.family(tail_vectors, ragged, COLUMN, PACKED, read)
        in_l1 = choice.kc * nr * b_itemsize <= machine.l1_bytes
        # A weight comes from after L2 whatever its size: a model's others have taken its place.
        far = None
        if problem.in_panels and not choice.widen:
            between = max(problem.b_footprint_bytes, n * k * library.types.b.itemsize)
            far = Far(between > machine.last_cache_bytes, workers)
        self.from_dram = far is not None and far.from_dram
        ways = machine.crowded_ways(k) if in_panels and problem.a_layout == ROW else 0
        correction = tables.correction_of(problem, choice.widen)
        self.table = tables.covers(covered, choice.kc, in_l1, far, ways, correction)
        self.tail_table: CoverTable | None = None
        if covered_tail is not None:
            self.tail_table = tables.covers(covered_tail, choice.kc, in_l1, far)

        # The busiest worker: where n is cut, one that has only full panels.
        if grid.n == 1:
            own_panels, has_tail = self.full, self.left > 0
        else:
            own_panels, has_tail = -(-units // grid.n), False
        elements = -(-batch // grid.batch)
        k_steps = -(-k // grid.k)
        window = problem.window
        reuse = 1.0 if window is None else window.reuse
        self.share = ProductShare(
            batch=batch, n=n, k=k, elements=elements, panels=own_panels,
            columns=own_panels * nr + (tail_columns if has_tail else 0), k_steps=k_steps,
            k_blocks=-(-k_steps // choice.kc), workers=workers, workers_m=grid.m, workers_k=grid.k,
            in_panels=problem.in_panels, b_in_rows=problem.b_source == "rows",
            b_k_bytes=problem.b_k_bytes, pack_a=choice.pack_a, pack_b=choice.pack_b,
            shared_pack=choice.shared_pack, widen=choice.widen, a_reuse=reuse,
            window_elements=0 if window is None else k // window.run,
        )  # fmt: skip
        self._blocks = blocks = tables.row_blocks(k, choice.kc, grid.m, reuse)
        self._factors = NO_FACTORS
        if correction is not None:
            self._factors = correction.share_factors(self.features())
        self.cost = self._cost(self.table)
        # The range of m of the candidate: every worker gets enough rows, blocks of k are short if
        # and only if A is blocked, and one worker alone is not tried where its multiply-adds
        # already take `alone_waits` times the synchronisation.
        self.first_row, self.last_row = 1, MAX_ROWS
        if grid.m > 1:
            self.first_row = tuning.rows_worth_a_worker * grid.m
        if len(lengths) > 1 and choice.kc == lengths[-1]:
            self.first_row = max(self.first_row, blocks.cached_rows + 1)
        elif len(lengths) > 1:
            self.last_row = blocks.cached_rows
        if workers == 1 and problem.workers > 1 and batch * (n // nr) >= problem.workers:
            row_s = elements * k_steps * machine.period_s * own_panels * self.table.issue_per_row
            alone_rows = int(tuning.alone_waits * tuning.synchronise_s / row_s)
            self.last_row = min(self.last_row, alone_rows)

    def chunks(self, m: int, seconds: float) -> int:
        """Chunks to cut the work on m rows into, which takes every worker `seconds`; 0 for none.

        Only where the grid cuts batch or n alone, and chunks repeat no packing of each other: then
        they cost nearly nothing, and balance other load on the machine. Where A is blocked, each
        chunk reads it again: there chunks are wider.
        """
        wanted = int(seconds * self._workers / self._chunk_s)
        cached = m <= self._blocks.cached_rows
        most = self._most_chunks if cached else self._most_chunks_blocked
        if wanted < 2 * self._workers:
            return 0
        found = min(wanted, most)
        # Workers begin with as many chunks each. Of 13 chunks one of two workers would begin with
        # 7; only where a chunk is a single panel is there nothing to even out.
        return found if found == self._units_cut else found // self._workers * self._workers

    def fits(self, m: int) -> bool:
        """Whether m is in the range of the candidate."""
        return self.first_row <= m <= self.last_row

    def block_of_rows(self, m: int) -> int:
        """Rows of A in a block: all, unless A is too large to be read again for every panel."""
        return m if m <= self._blocks.cached_rows else self._blocks.block_rows

    def alike(self, m: int) -> tuple[object, ...]:
        """Returns a key: the candidate's plans for two ranges of rows, each by its first rows m,
        are equal if their keys and chunks are."""
        choice, table = self.choice, self.table
        if choice.grid.k > 1 or choice.pack_a:
            # The workspace has room for all rows of the range.
            return (m,)
        rows = split_rows(m, table.main, choice.grid.m)
        readings = [table.reading(end - begin) for begin, end in rows]
        return (*readings, self.block_of_rows(m) < m)

    def features(self) -> tuple[float, ...]:
        """What a learned correction knows of the candidate, whatever its rows."""
        tables, library = self._tables, self._tables.library
        share = share_features(
            tables.machine, self.share, nr=self.nr, kc=self.choice.kc, cores=library.hardware.cores,
            registers=self.choice.vectors / library.isa.vector_registers, from_dram=self.from_dram,
            issue_per_row=self.table.issue_per_row,
        )  # fmt: skip
        return (*tables.machine_features, *share)

    def estimate_covered(self, m: int, segments: Segments) -> Estimate:
        """What the busiest worker spends its time on with other row tiles on full panels, of the
        family's heights: together the rows of the worker that has the most of `m`."""
        heights = tuple(mr for mr, tiles in segments for _ in range(tiles))
        return self._cost(OneCover(self.table.cover(heights), self.table.main)).terms(m)

    def _cost(self, covers: Covers) -> ProductCost:
        """The cost with some covers of full panels."""
        tail = self.tail_table if self.choice.grid.n == 1 else None
        machine = self._tables.machine
        return ProductCost(machine, self.share, self._blocks, covers, tail, self._factors)


@lru_cache(maxsize=4096)
def _ranges(extent: int, parts: int) -> tuple[tuple[int, int], ...]:
    """The ranges of all parts; candidates that cut an extent alike share the tuple."""
    return tuple(bounds(extent, parts, i) for i in range(parts))


def _even_blocks(k: int, most: int, unit: int) -> int:
    """The length of equal blocks, of which the last may be shorter, if there are as few blocks as
    `most` steps per block allow. A multiple of `unit`, unless there is one block."""
    if k <= most:
        return k
    blocks = -(-k // max(most, unit))
    return -(-k // (blocks * unit)) * unit


def split_rows(m: int, main: int, parts: int) -> list[tuple[int, int]]:
    """The rows of each of `parts` workers: whole main tiles where there are enough of them."""
    if parts == 1:
        return [(0, m)]
    if m < 2 * main * parts:
        return [bounds(m, parts, i) for i in range(parts)]
    tiles = -(-m // main)
    units = [bounds(tiles, parts, i) for i in range(parts)]
    return [(min(begin * main, m), min(end * main, m)) for begin, end in units]
