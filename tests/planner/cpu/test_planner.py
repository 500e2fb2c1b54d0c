"""Plans cover every element of every product exactly once, on hardware that need not be at hand."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import recorded_cpus

from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, ROW, STRIDED
from ftuner.core.dtype import DTYPES, FLOAT32, FLOAT64, INT8
from ftuner.core.product import ProductTypes, product_types
from ftuner.cost.cpu.product import most_rows
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.candidates import split_rows
from ftuner.planner.cpu.plan import Plan, Problem
from ftuner.planner.cpu.planner import Planner, grids, panel_problem
from ftuner.ukernels.cpu.library import build_library

RECORDED = {machine.name: machine for machine in recorded_cpus()}
ARM = {
    # name: (model, cores, GHz, multiply-adds, loads and stores a cycle, KiB of caches, GB/s)
    "graviton3": ("Neoverse V1", 64, 2.6, (4, 3, 2), (64, 1024, 32 << 10), 307),
    "altra": ("Neoverse N1", 80, 3.0, (2, 2, 1), (64, 1024, 32 << 10), 205),
    "m1-max": ("Apple Firestorm", 8, 3.2, (4, 3, 2), (128, 12 << 10, 48 << 10), 400),
}
"""Further Arm machines by Arm's guides and vendors' datasheets; in all else like Graviton2. None
has been measured."""


def like_graviton2(name: str) -> CpuHardware:
    """A machine of the table above."""
    model, cores, ghz, (multiply_adds, loads, stores), capacities, memory = ARM[name]
    base = RECORDED["graviton2"]
    isa = replace(
        base.widest, fma_per_cycle=multiply_adds, load_per_cycle=loads, store_per_cycle=stores
    )
    clock = ghz * 1e9
    own = loads * isa.vector_bytes * clock
    *caches, dram = base.levels
    levels = [
        replace(
            level, capacity_bytes=kib << 10, shared_by_cores=min(level.shared_by_cores, cores),
            bandwidth_bytes_per_s=own / 2**i, bandwidth_all_bytes_per_s=cores * own / 2**i,
        )
        for i, (level, kib) in enumerate(zip(caches, capacities, strict=True))
    ]  # fmt: skip
    dram = replace(dram, shared_by_cores=cores, bandwidth_all_bytes_per_s=memory * 1e9)
    return replace(
        base, name=name, model_name=model, cores=cores, clock_hz=clock, isas=(isa,),
        levels=(*levels, dram),
    )  # fmt: skip


CPUS = RECORDED | {name: like_graviton2(name) for name in ARM}
MACHINES = {(machine.name, isa.name): machine for machine in CPUS.values() for isa in machine.isas}


@lru_cache(maxsize=64)
def planner_of(machine: str, isa: str, types: ProductTypes) -> Planner:
    return Planner(build_library(MACHINES[machine, isa], isa, types))


@st.composite
def planned(draw: st.DrawFn, largest: int = 300) -> tuple[Planner, Problem]:
    """A machine's planner and a problem for it."""
    machine, isa = draw(st.sampled_from(sorted(MACHINES)))
    source = draw(st.sampled_from(["panels", "rows", "columns", "other"]))
    int8 = source == "panels" and draw(st.booleans())
    types = product_types(draw(st.sampled_from([FLOAT32, FLOAT64])), INT8 if int8 else None)
    planner = planner_of(machine, isa, types)
    extent = st.integers(1, 40) | st.integers(1, largest)
    m, n, k = draw(extent), draw(extent), draw(extent | st.integers(0, 5000))
    in_panels = source == "panels"
    width = draw(st.sampled_from(planner.library.widths)) if in_panels else 0
    # Weights of 8-bit integers are read by products of contiguous rows alone.
    layouts = [ROW] if int8 else [ROW, COLUMN]
    must_pack = not int8 and draw(st.booleans())
    problem = Problem(
        m=m,
        n=n,
        k=k,
        batch=draw(st.integers(1, 5)),
        a_layout=COLUMN if must_pack else draw(st.sampled_from(layouts)),
        a_must_pack=must_pack,
        b_source=source,
        width=width,
        b_k_bytes=0 if in_panels else draw(st.sampled_from([4, 4 * n, 4096, 65536])),
        workers=draw(st.integers(1, 64)),
    )
    return planner, problem


def test_thin_products_of_contiguous_rows_are_dot_products(recorded: CpuHardware) -> None:
    """A matrix by a vector, or one row by a transposed matrix: nothing is packed."""
    planner = planner_of(recorded.name, recorded.widest.name, product_types(FLOAT32))
    for m, n, k in ((1, 1000, 100), (1000, 1, 100), (1, 1, 100), (1, 1000, 40000)):
        for workers in (1, 2, 8):
            problem = Problem(m, n, k, 1, ROW, False, "columns", 0, 4, workers)
            plan = planner.plan(problem)
            assert plan.choice.dot, (m, n, k, workers)
            assert not any(band.packed for share in plan.shares for band in share.bands)
    square = Problem(500, 500, 1000, 1, ROW, False, "columns", 0, 4, 1)
    assert not planner.plan(square).choice.dot


def assert_exact(plan: Plan) -> None:
    """Every (batch, row, column, step of k) belongs to exactly one patch."""
    problem = plan.problem
    parts = plan.choice.grid.k
    ranges = {share.part: share.k for share in plan.shares}
    assert sorted(ranges) == list(range(parts))
    ends = [0] + [ranges[part][1] for part in range(parts)]
    assert [ranges[part][0] for part in range(parts)] == ends[:-1]
    assert ends[-1] == problem.k
    assert all(begin < end or not problem.k for begin, end in ranges.values())
    times = np.zeros((parts, problem.batch, problem.m, problem.n), dtype=np.int8)
    for share in plan.shares:
        assert share.k == ranges[share.part]
        for patch in plan.patches(share):
            assert 1 <= patch.mr <= patch.family.max_mr
            assert patch.tiles > 0
            assert (patch.panels - 1) * patch.family.nr < patch.columns
            assert patch.columns <= patch.panels * patch.family.nr
            assert patch.family.tail or patch.columns == patch.panels * patch.family.nr
            # A NumPy slice is silent about what lies outside.
            assert patch.row + patch.mr * patch.tiles <= problem.m
            assert patch.column + patch.columns <= problem.n
            times[
                share.part,
                share.batch[0] : share.batch[1],
                patch.row : patch.row + patch.mr * patch.tiles,
                patch.column : patch.column + patch.columns,
            ] += 1
    assert np.all(times == 1)


@settings(max_examples=250)
@given(case=planned())
def test_plans_are_exact(case: tuple[Planner, Problem]) -> None:
    planner, problem = case
    plan = planner.plan(problem)
    assert_exact(plan)
    assert 1 <= plan.workers <= problem.workers
    assert plan.workers == np.prod(plan.choice.grid)
    assert plan.mc >= 1
    assert plan.choice.kc >= 1
    assert plan.choice.pack_a == problem.a_must_pack
    if problem.in_panels:
        assert plan.choice.vectors == problem.width
        assert not plan.choice.pack_b
    if problem.b_source == "other":
        assert plan.choice.pack_b


@settings(max_examples=40)
@given(case=planned(largest=90))
def test_every_candidate_is_exact(case: tuple[Planner, Problem]) -> None:
    """Whatever the prices are, a choice among right plans is right."""
    planner, problem = case
    for candidate in planner.candidates(problem):
        if candidate.fits(problem.m):
            assert_exact(planner.lay_out(problem, candidate))


@settings(max_examples=250)
@given(case=planned(), extents=st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_many_numbers_of_rows_are_decided_as_each(
    case: tuple[Planner, Problem], extents: list[int]
) -> None:
    planner, problem = case
    found = planner.decided_at(problem, tuple(extents))
    assert found == [planner.decided(problem._replace(m=m)) for m in extents]
    for candidate in planner.candidates(problem):
        seconds = [candidate.cost.terms(m).seconds for m in extents]
        assert candidate.cost.seconds_at(tuple(extents)).tolist() == seconds


@settings(max_examples=100)
@given(case=planned())
def test_patches_read_what_is_there(case: tuple[Planner, Problem]) -> None:
    """uKernels match how the operands lie; tails are packed, unless B is in panels already."""
    planner, problem = case
    plan = planner.plan(problem)
    for share in plan.shares:
        for band in share.bands:
            in_panels = band.packed or problem.in_panels
            in_place = DOT if plan.choice.dot else STRIDED
            assert band.family.b_layout == (PACKED if in_panels else in_place)
            types = planner.library.types
            read = types.multiplied.b if plan.choice.widen else types.b
            assert {kernel.types.b for kernel in band.family.kernels} == {read}
            assert band.family.a_layout == (COLUMN if plan.choice.pack_a else problem.a_layout)
            assert not (band.packed and problem.in_panels)
            assert not band.family.tail or in_panels


@settings(max_examples=60)
@given(case=planned())
def test_plans_are_deterministic(case: tuple[Planner, Problem]) -> None:
    planner, problem = case
    assert planner.plan(problem) == Planner(planner.library).plan(problem)


@settings(max_examples=60)
@given(case=planned())
def test_the_cheapest_is_chosen(case: tuple[Planner, Problem]) -> None:
    """The planner's own copy of `Estimate.seconds` is the same formula, to the bit."""
    planner, problem = case
    least = planner.estimate(planner.plan(problem)).seconds
    for candidate in planner.candidates(problem):
        if candidate.fits(problem.m):
            assert least <= candidate.cost.terms(problem.m).seconds
    fitting = [c for c in planner.candidates(problem) if c.fits(problem.m)]
    cheapest = min(fitting, key=lambda c: c.cost.terms(problem.m).seconds)
    assert planner.plan(problem).choice == cheapest.choice


def test_planning_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("planning is arithmetic")

    machine = recorded_cpus()[0]
    planner = Planner(build_library(machine, machine.widest.name, product_types(FLOAT32)))
    for name in ("perf_counter", "perf_counter_ns", "time", "monotonic"):
        monkeypatch.setattr(time, name, forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr("builtins.open", forbidden)
    plan = planner.plan(Problem(77, 770, 768, 1, ROW, False, "rows", 0, 3080, 8))
    monkeypatch.undo()
    assert_exact(plan)


@given(
    workers=st.integers(1, 70), batch=st.integers(1, 100), panels=st.integers(1, 300),
    parts_k=st.integers(0, 100),
)  # fmt: skip
def test_grids_are_legal(workers: int, batch: int, panels: int, parts_k: int) -> None:
    found = grids(workers, batch, panels, parts_k)
    assert found[0] == (1, 1, 1, 1)
    assert len(set(found)) == len(found)
    for parts_b, parts_m, parts_n, parts in found:
        assert 1 <= parts_b * parts_m * parts_n * parts <= workers
        assert parts_b <= batch
        assert parts_n <= panels
        assert parts == 1 or parts <= parts_k


@given(m=st.integers(1, 5000), main=st.integers(1, 14), parts=st.integers(1, 64))
def test_rows_are_split_exactly(m: int, main: int, parts: int) -> None:
    ranges = split_rows(m, main, parts)
    assert len(ranges) == parts
    assert ranges[0][0] == 0
    assert ranges[-1][1] == m
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    heights = [end - begin for begin, end in ranges]
    assert min(heights) >= 0
    # Counted in whole tiles, of which the last worker's last may be cut short.
    assert max(heights) <= most_rows(m, main, parts) < max(heights) + main
    assert max(heights) - min(heights) <= max(1, 2 * main - 1)


def test_parts_of_k_are_worth_it() -> None:
    for (machine, isa), hardware in MACHINES.items():
        planner = planner_of(machine, isa, product_types(FLOAT32))
        for k in (1, 63, 64, 127, 128, 1000):
            problem = Problem(4, 8, k, 1, ROW, False, "rows", 0, 32, hardware.cores)
            for candidate in planner.candidates(problem):
                if candidate.choice.grid.k > 1:
                    assert k // candidate.choice.grid.k >= CpuTuning().split_k_steps


def test_workers_begin_with_even_work() -> None:
    """Chunks of several panels are as many for each worker, whatever the time of the work."""
    planner = planner_of("xeon-8375c", "avx512", product_types(FLOAT32))
    width = planner.library.widths[0]
    numbers = set()
    for panels in (12, 15, 20, 31, 64):
        n = panels * width * planner.library.lanes
        for m in range(1, 100):
            problem = Problem(m, n, 512, 1, ROW, False, "panels", width, 0, workers=2)
            plan = planner.plan(problem)
            if not plan.chunks:
                continue
            numbers.add(plan.chunks)
            first = panels * (plan.chunks // 2) // plan.chunks
            assert abs(panels - 2 * first) <= 1, (m, panels, plan.chunks)
    assert len(numbers) > 3


def test_chunks_are_wider_where_each_reads_all_of_a_again() -> None:
    planner = planner_of("xeon-8375c", "avx512", product_types(FLOAT32))
    width = planner.library.widths[0]
    panels = 12
    n = panels * width * planner.library.lanes
    low, high = (
        planner.plan(Problem(m, n, 768, 1, ROW, False, "panels", width, 0, workers=2))
        for m in (64, 4096)
    )
    assert low.choice.grid == high.choice.grid == (1, 1, 2, 1)
    assert low.mc == 64
    assert high.mc < 4096
    assert low.chunks == panels
    assert high.chunks == panels // CpuTuning().panels_per_chunk


def test_a_vector_of_many_columns_uses_several_workers(recorded: CpuHardware) -> None:
    """m = 1 is held up by the transfer of B, which workers share until DRAM has no more to give."""
    planner = planner_of(recorded.name, recorded.widest.name, product_types(FLOAT32))
    width = planner.library.widths[0]
    problem = Problem(1, 20000, 4096, 1, ROW, False, "panels", width, 0, recorded.cores)
    plan = planner.plan(problem)
    assert plan.workers > 1
    assert plan.choice.grid.n == plan.workers


SHAPES = [
    # m, n, k, batch, where B is
    (1, 768, 768, 1, "panels"),
    (7, 3072, 768, 1, "panels"),
    (24, 2304, 768, 1, "panels"),
    (77, 770, 768, 1, "panels"),
    (128, 768, 3072, 1, "panels"),
    (3, 5, 20011, 1, "rows"),
    (512, 512, 512, 1, "rows"),
    (2000, 100, 100, 1, "rows"),
    (4096, 4096, 4096, 1, "rows"),
    (33, 33, 33, 12, "other"),
    (128, 128, 64, 12, "other"),
    (1, 1000, 4096, 1, "other"),
]


@pytest.mark.parametrize("name", CPUS)
def test_selection(name: str, golden) -> None:  # type: ignore[no-untyped-def]
    """What is kept and chosen on known machines, as tables to be read when they change."""
    machine = CPUS[name]
    lines = [f"# {machine.model_name}, {machine.cores} cores", "", "# widths and tallest tiles"]
    for isa in machine.isas:
        for dtype in DTYPES.values():
            funnel = build_library(machine, isa.name, product_types(dtype)).funnel
            tallest = [
                f"{max(t.mr for t in funnel.kept if t.vectors == v)}x{v * isa.lanes(dtype)}"
                for v in funnel.widths
            ]
            lines.append(f"{isa.name:7} {dtype!s:8} {' '.join(tallest)}")
    lines += ["", f"# plans: {machine.widest.name}, float32; workers along batch, m, n, k"]
    planner = planner_of(name, machine.widest.name, product_types(FLOAT32))
    for m, n, k, batch, source in SHAPES:
        width = planner.library.widths[-1] if source == "panels" else 0
        k_bytes = {"panels": 0, "rows": 4 * n, "other": 4}[source]
        problem = Problem(m, n, k, batch, ROW, False, source, width, k_bytes, machine.cores)
        plan = planner.plan(problem)
        choice = plan.choice
        bands = []
        for band in plan.shares[0].bands:
            tiles = (f"{count}*{mr}x{band.family.nr}" for mr, count in band.segments)
            bands.append(f"{band.panels}x[{' '.join(tiles)}]")
        shape = f"{batch}*{m}x{n}x{k}" if batch > 1 else f"{m}x{n}x{k}"
        packs = "together" if choice.shared_pack else "packs" if choice.pack_b else "in place"
        grid = "x".join(map(str, choice.grid))
        lines.append(
            f"{shape:15} {source:6} {grid:9} kc {choice.kc:<5} "
            f"{packs if source != 'panels' else '-':9} {' '.join(bands)}"
        )
    golden(f"plans-{name}.txt", "\n".join(lines) + "\n")


def test_other_covers_have_estimates() -> None:
    """Of the planner's own cover it is the estimate of the plan, tail and all."""
    planner = planner_of("xeon-8375c", "avx512", product_types(FLOAT32))
    for m in (1, 7, 16, 33, 500):
        problem = panel_problem(200, 300, planner.library.widths[0], m, 1)
        candidate = next(c for c in planner.candidates(problem) if c.fits(m))
        own = candidate.table[m].segments
        covered = candidate.estimate_covered(m, own)
        assert covered.terms() == pytest.approx(candidate.cost.terms(m).terms())
        single = candidate.estimate_covered(m, ((1, m),))
        assert single.seconds >= 0.99 * candidate.cost.terms(m).seconds
