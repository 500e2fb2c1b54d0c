"""Covers are exact, short, and no worse than the obvious ones."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import recorded_cpus
from tests.recorded_cpus import library_of

from ftuner.core.cpu.tile import COLUMN, MAX_SEGMENTS, PACKED, ROW
from ftuner.core.dtype import DTYPES
from ftuner.cost.cpu.product import Cover
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.cover import PERIODS, CoverTable
from ftuner.ukernels.cpu.library import Family

STEPS = (1, 12, 96, 768, 6144)


def tables(machine: CpuHardware) -> Iterator[tuple[CoverTable, Family, Isa, int]]:
    """Tables of every family of a machine's widest ISA, at several lengths of k."""
    for dtype in DTYPES.values():
        library = library_of(machine, dtype)
        for vectors in range(1, max(library.widths) + 1):
            for tail in (False, True) if vectors in library.widths else (True,):
                family = library.family(vectors, tail, COLUMN, PACKED)
                for steps in STEPS:
                    for row_of_b_cycles in (0.0, 3.0):
                        table = CoverTable(
                            family, library.isa, library.hardware.tuning, steps, row_of_b_cycles
                        )
                        yield table, family, library.isa, steps


def cost(table: CoverTable, rows: int, steps: int) -> float:
    cover = table[rows]
    return steps * cover.step + cover.fixed


def test_exact_and_short(recorded: CpuHardware) -> None:
    for table, family, _, _ in tables(recorded):
        for rows in (*range(1, 501), 4096, 20011, 10**6 + 3, 2**40 + 1):
            cover = table[rows]
            assert sum(mr * tiles for mr, tiles in cover.segments) == rows
            assert sum(tiles for _, tiles in cover.segments) == cover.tiles
            assert 1 <= len(cover.segments) <= MAX_SEGMENTS
            heights = [mr for mr, _ in cover.segments]
            assert len(set(heights)) == len(heights)
            assert all(1 <= mr <= family.max_mr for mr in heights)
            assert all(tiles > 0 for _, tiles in cover.segments)
            assert 0 < cover.issue <= cover.step


def test_main_tile_comes_first(recorded: CpuHardware) -> None:
    """Native code blocks the first segment: it must be the one that grows with m."""
    for table, family, _, _ in tables(recorded):
        for rows in (10 * family.max_mr, 1000, 12345):
            assert table[rows].segments[0][0] == table.main


def test_parts_stand_alone(recorded: CpuHardware) -> None:
    """A tile in parts covers an extent by itself or not at all; what costs no more than it near
    operands goes without."""
    library = library_of(recorded)
    for width in library.widths:
        family = library.family(width, False, ROW, PACKED)
        without = CoverTable(
            library.family(width, False, COLUMN, PACKED),
            library.isa,
            library.hardware.tuning,
            768,
            0.0,
        )
        table = CoverTable(family, library.isa, library.hardware.tuning, 768, 0.0)
        heights = {kernel.mr for kernel in family.kernels if kernel.tile.parts > 1}
        assert heights or width % 2 or recorded.widest.name == "avx2"
        for rows in range(1, 200):
            cover, other = table[rows], without[rows]
            if heights.isdisjoint(mr for mr, _ in cover.segments):
                assert cover == other
            else:
                assert cover.segments == ((rows, 1),)
                assert 768 * cover.step + cover.fixed <= 1.05 * (768 * other.step + other.fixed)


def test_more_rows_never_cost_less(recorded: CpuHardware) -> None:
    for table, family, _, steps in tables(recorded):
        # In a few k steps tiles of several chains cost more to leave than a taller one with fewer.
        least = 1.0 if steps > 12 else 0.8
        costs = [cost(table, rows, steps) for rows in range(1, 12 * family.max_mr)]
        for fewer, more in pairwise(costs):
            assert more >= fewer * least * (1 - 1e-9)


def test_cheapest(recorded: CpuHardware) -> None:
    """No cover is cheaper, to three tallest tiles; beyond, by at most 3% of a short reduction,
    whose tiles cost more to enter than to run."""
    for table, family, _, steps in tables(recorded):
        one = {mr: cost(table, mr, steps) for mr in range(1, family.max_mr + 1)}
        best = [0.0]
        for rows in range(1, 12 * family.max_mr):
            best.append(min(best[rows - mr] + one[mr] for mr in one if mr <= rows))
            slack = 1e-9 if rows <= PERIODS * family.max_mr else 0.03 if steps < 96 else 0.01
            assert cost(table, rows, steps) <= best[rows] * (1 + slack)


@given(rows=st.integers(1, 10**7), machine=st.sampled_from(recorded_cpus()))
def test_any_extent(rows: int, machine: CpuHardware) -> None:
    library = library_of(machine)
    family = library.family(library.widths[0], False, COLUMN, PACKED)
    cover = CoverTable(family, library.isa, library.hardware.tuning, 512, 0.0)[rows]
    assert sum(mr * tiles for mr, tiles in cover.segments) == rows


def test_only_what_is_asked_for_is_solved(
    recorded: CpuHardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with a new length of k makes a table, and asks it for a few heights."""
    made: list[tuple[int, ...]] = []
    cover = CoverTable._cover

    def counted(self: CoverTable, heights: tuple[int, ...]) -> Cover:
        made.append(heights)
        return cover(self, heights)

    monkeypatch.setattr(CoverTable, "_cover", counted)
    for table, family, _, _ in tables(recorded):
        main = table.main
        made.clear()
        for _ in range(2):
            assert table[2 * main].segments == ((main, 2),)
        assert made == [(main, main)]
        assert len(table.rests) == len(table.solved) > 2 * family.max_mr


def test_terms_are_sums_of_their_tiles() -> None:
    """`step`, `issue` and `fixed` of a long cover are those of its tiles."""
    machine = recorded_cpus()[0]
    library = library_of(machine)
    family = library.family(library.widths[-1], False, COLUMN, PACKED)
    table = CoverTable(family, library.isa, library.hardware.tuning, 512, 0.0)
    single = {mr: table[mr] for mr in range(1, family.max_mr + 1)}
    single = {mr: cover for mr, cover in single.items() if cover.segments == ((mr, 1),)}
    for rows in (97, 1003):
        cover = table[rows]
        assert all(mr in single for mr, _ in cover.segments)
        for term in ("step", "issue", "fixed"):
            expected = sum(tiles * getattr(single[mr], term) for mr, tiles in cover.segments)
            assert getattr(cover, term) == pytest.approx(expected)
