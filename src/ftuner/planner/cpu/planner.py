"""The planner: from a library and a run-time shape to the cheapest exact cover. Arithmetic only.

Axes batch, m, n and k are each cut for the workers (a grid, as even as tiles allow); within a
worker's rectangle, n falls into panels of one width and a tail, and m is covered by the dynamic
programme of `cover`. Candidates differ in grid, width and packing of B; the seconds of each have a
closed form, and the cheapest is laid out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ftuner.core.caching import RecentlyUsed
from ftuner.core.cpu.tile import DOT, PACKED, ROW
from ftuner.core.product import ReadWindow
from ftuner.core.ranges import fine_start
from ftuner.cost.cpu.product import UKernels
from ftuner.cost.step import Estimate
from ftuner.hardware.correction import LearnedCorrection
from ftuner.planner.cpu.candidates import MAX_MAGNITUDE, Candidate, PlannerTables, split_rows
from ftuner.planner.cpu.cover import CoverTable
from ftuner.planner.cpu.plan import Band, Choice, Grid, Plan, Problem, Share
from ftuner.ukernels.cpu.library import Family, Library

MAX_WIDTHS = 1 << 12
"""Panel widths kept, each of some extents."""
MAX_CANDIDATES = 1 << 17
"""Candidates kept, of all problems. Derived: one takes about a kilobyte; a problem, apart from m,
has some 20 on two workers and 200 on sixteen."""


@lru_cache(maxsize=4096)
def grids(workers: int, batch: int, panels: int, parts_k: int) -> tuple[Grid, ...]:
    """Ways to spread workers over (batch, m, n, k), one worker alone among them.

    No axis gets more workers than it has units; m is not known here, `Candidate.fits` checks it.
    k is cut only where batch and n have fewer units than there are workers. Of grids that cost the
    same the first is taken, so those that cut batch come first: their workers share no operand.
    """
    found = [Grid(1, 1, 1, 1)]
    starved = batch == 1 and panels < 2 * workers
    for used in {workers, *(1 << i for i in range(1, workers.bit_length()))}:
        for parts_b in reversed(_divisors(used)):
            for parts_m in _divisors(used // parts_b):
                for parts_n in _divisors(used // (parts_b * parts_m)):
                    parts = used // (parts_b * parts_m * parts_n)
                    if parts_b > batch or parts_n > panels:
                        continue
                    if parts == 1 or (starved and parts <= parts_k):
                        found.append(Grid(parts_b, parts_m, parts_n, parts))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=256)
def _divisors(value: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, value + 1) if value % d == 0)


class PanelWidth(NamedTuple):
    """The arguments and the result of `panel_width.best_width`."""

    n: int
    k: int
    workers: int
    footprint_bytes: int
    width: int


class Planner:
    """Plans for one library. Holds tables of covers and a bounded number of candidates; safe to use
    from several threads."""

    def __init__(self, library: Library, learned: LearnedCorrection | None = None) -> None:
        """`learned`: a correction of the estimates."""
        self.library = library
        self._tables = PlannerTables(library, learned)
        self._lanes = library.lanes
        self.widths: RecentlyUsed[tuple[int, ...], PanelWidth] = RecentlyUsed(MAX_WIDTHS)
        """What `panel_width.best_width` has found, by its arguments."""
        self._candidates: RecentlyUsed[tuple[object, ...], tuple[Candidate, ...]] = RecentlyUsed(
            MAX_CANDIDATES, size=len
        )

    def plan(self, problem: Problem) -> Plan:
        """The cheapest plan; every extent of the problem but k is positive."""
        return self.lay_out(problem, *self.decided(problem))

    def decided(self, problem: Problem) -> tuple[Candidate, int]:
        """The cheapest candidate, and its chunks."""
        best, least = self._cheapest(problem)
        return best, best.chunks(problem.m, least)

    def decided_at(self, problem: Problem, extents: tuple[int, ...]) -> list[tuple[Candidate, int]]:
        """`decided` for several numbers of rows of a problem, at once."""
        candidates = self.candidates(problem)
        m = np.array(extents)
        seconds = np.array([
            np.where((c.first_row <= m) & (m <= c.last_row), c.cost.seconds_at(extents), math.inf)
            for c in candidates
        ])  # fmt: skip
        best = [candidates[number] for number in seconds.argmin(axis=0)]
        least = seconds.min(axis=0).tolist()
        return [(c, c.chunks(m, s)) for c, m, s in zip(best, extents, least, strict=True)]

    def plan_of_range(self, problem: Problem) -> Plan:
        """The plan that a program has for the rows of a problem with a packed weight: that of the
        first rows of their fine range, with the row tiles of all."""
        first = problem._replace(m=fine_start(problem.m))
        return self.lay_out(problem, *self.decided(first))

    def least_seconds(self, problem: Problem) -> float:
        """Estimated seconds of the cheapest plan."""
        return self._cheapest(problem)[1]

    def _cheapest(self, problem: Problem) -> tuple[Candidate, float]:
        m = problem.m
        best, least = None, 0.0
        for candidate in self.candidates(problem):
            if candidate.first_row <= m <= candidate.last_row:
                terms = candidate.cost.terms(m)
                issue_s, stall_s, l3_s, dram_s, tile_s, pack_s, wait_s, correction = terms
                # A copy of `Estimate.seconds`: the call would take as long as the arithmetic.
                seconds = max(issue_s + stall_s + tile_s, l3_s, dram_s) + pack_s + wait_s
                seconds *= correction
                if best is None or seconds < least:
                    best, least = candidate, seconds
        assert best is not None
        return best, least

    def cover(
        self, vectors: int, tail: bool, steps: int, layout: str = ROW
    ) -> tuple[Family, CoverTable]:
        """Exact covers of rows of A in a layout by uKernels of a width, by panels that stay in
        L2."""
        family = self.library.family(vectors, tail, layout, PACKED)
        return family, self._tables.covers(family, steps, False)

    def ukernels(self, width: int) -> UKernels:
        """What estimates know of the uKernels of panels of `width` vectors."""
        library = self.library
        return UKernels(library.types, library.lanes, width, lambda *panel: self.cover(*panel)[1])

    def prepare_covers(self) -> None:
        """Solve what `cover` may be asked for panels of the first width and their tails, which
        takes some milliseconds: a new length then only looks them up."""
        widest = self.library.widths[0]
        for vectors, tail in ((widest, False), *((v, True) for v in range(1, widest + 1))):
            for magnitude in range(MAX_MAGNITUDE + 1):
                self.cover(vectors, tail, 1 << magnitude >> 1)

    def estimate(self, plan: Plan) -> Estimate:
        """What the busiest worker of a plan spends its time on."""
        for candidate in self.candidates(plan.problem):
            if candidate.choice == plan.choice:
                return candidate.cost.terms(plan.problem.m)
        raise AssertionError(f"no such choice: {plan.choice}")

    def candidates(self, problem: Problem) -> tuple[Candidate, ...]:
        """The candidates of a problem, for any m: widths, grids, ways to hold B, blocks of k, and
        dot tiles where operands allow them."""
        key = problem[1:]
        found = self._candidates.get(key)
        if found is None:
            found = tuple(self._make_candidates(problem))
            self._candidates.add(key, found)
        return found

    def _make_candidates(self, problem: Problem) -> Iterator[Candidate]:
        n, k = problem.n, max(problem.k, 1)
        widths = (problem.width,) if problem.in_panels else self.library.widths
        reads, types = self.library.b_reads(problem.a_layout, problem.b_source), self.library.types
        split_k_steps = -(-self.library.hardware.tuning.split_k_steps // types.steps)
        of_panels = [read for read in reads if read.layout != DOT]
        for vectors in widths:
            nr = vectors * self._lanes
            window = problem.window
            blocks_of_k = self._tables.blocks_of_k
            by_read = [(r, blocks_of_k(k, nr, window, r.dtype.itemsize)) for r in of_panels]
            parts_k = 1 if window is not None or self._tables.whole_sums else k // split_k_steps
            for grid in grids(problem.workers, problem.batch, -(-n // nr), parts_k):
                for read, kc, lengths in ((r, kc, some) for r, some in by_read for kc in some):
                    pack_b = read.layout == PACKED and not problem.in_panels
                    widen = read.dtype != types.b
                    shared = pack_b and grid.m > 1 and problem.batch == 1 and grid.k == 1
                    choice = Choice(grid, vectors, kc, problem.a_must_pack, pack_b, shared,
                                    widen=widen)  # fmt: skip
                    yield Candidate(self._tables, problem, choice, lengths)
        if len(of_panels) < len(reads):
            for columns in self.library.dot_columns:
                if columns <= n:
                    for grid in grids(problem.workers, problem.batch, -(-n // columns), 1):
                        choice = Choice(grid, columns, k, False, False, False, dot=True)
                        yield Candidate(self._tables, problem, choice, ())

    def candidate(self, problem: Problem, choice: Choice) -> Candidate:
        """The candidate of a choice, whether or not the planner would try it."""
        nr = choice.vectors * self._lanes
        lengths: tuple[int, ...] = ()
        if not choice.dot:
            types = self.library.types
            read = types.widened.b if choice.widen else types.b
            k = max(problem.k, 1)
            lengths = self._tables.blocks_of_k(k, nr, problem.window, read.itemsize)
        return Candidate(self._tables, problem, choice, lengths)

    def lay_out(self, problem: Problem, candidate: Candidate, chunks: int = 0) -> Plan:
        """The patches of a candidate, worker by worker; `chunks` as in `Plan`."""
        choice, m = candidate.choice, problem.m
        nr, full, left, pack_b = candidate.nr, candidate.full, candidate.left, choice.pack_b
        table, family = candidate.table, candidate.family
        # A tail is always read from a packed panel: memory after the last column must not be read.
        pack_tail = not problem.in_panels and not choice.dot
        shares = []
        for batch in candidate.batch_ranges:
            for rows in split_rows(m, table.main, choice.grid.m):
                height = rows[1] - rows[0]
                cover = table[height]
                for first, last in candidate.unit_ranges:
                    bands: tuple[Band, ...] = ()
                    panels = (last if last < full else full) - first
                    if height and panels > 0:
                        bands = (Band(first * nr, panels, panels * nr, rows, cover.segments,
                                      family, pack_b, cover.reading),)  # fmt: skip
                    if height and last > full:
                        assert candidate.tail_table is not None
                        assert candidate.tail_family is not None
                        tail = candidate.tail_table[height].segments
                        bands += (Band(full * nr, 1, left, rows, tail, candidate.tail_family,
                                       pack_tail),)  # fmt: skip
                    for part, k_range in enumerate(candidate.k_ranges):
                        shares.append(Share(batch, k_range, part, bands))
        return Plan(problem, choice, tuple(shares), candidate.block_of_rows(m), chunks)


@lru_cache(maxsize=64)
def planner_for(library: Library) -> Planner:
    """The one planner of a library, with its tables and the correction of its machine."""
    return Planner(library, library.hardware.correction)


REFERENCE_ROWS = (1, 2, 3, 5, 8, 13, 24, 32, 49, 64, 100, 128, 256, 512)
"""The definition of a good width: the one that is best over these rows, equally weighted. They are
sentence lengths and batch sizes from one to some hundreds, and so depend on no machine."""


def panel_problem(
    n: int, k: int, width: int, rows: int, workers: int, layout: str = ROW,
    must_pack: bool = False, window: ReadWindow | None = None, footprint_bytes: int = 0,
) -> Problem:  # fmt: skip
    """The problem of a product with a weight in panels and an A of layout `layout`.
    `footprint_bytes`: bytes of weights that are read between two uses of this one."""
    return Problem(
        rows, n, k, 1, layout, must_pack, "panels", width, 0, workers, window, footprint_bytes
    )


def best_width(planner: Planner, n: int, k: int, workers: int, footprint_bytes: int = 0) -> int:
    """The width that products with a weight of `n` columns and `k` steps are cheapest with."""
    widths = planner.library.widths
    if len(widths) == 1 or not n:
        return widths[0]
    known = planner.widths.get((n, k, workers, footprint_bytes))
    if known is not None:
        return known.width

    def total(width: int) -> float:
        """Sum of the logarithms of seconds, so that all numbers of rows have equal weight."""
        problems = (
            panel_problem(n, k, width, rows, workers, footprint_bytes=footprint_bytes)
            for rows in REFERENCE_ROWS
        )
        return sum(math.log(planner.least_seconds(p)) for p in problems)

    found = min(widths, key=total)
    know_width(planner, PanelWidth(n, k, workers, footprint_bytes, found))
    return found


def know_width(planner: Planner, found: PanelWidth) -> None:
    """Have `best_width` return a width."""
    planner.widths.add(found[:-1], found)
