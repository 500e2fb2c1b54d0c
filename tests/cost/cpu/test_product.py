"""Estimates are made of non-negative terms, grow with the work, and never beat the machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import recorded_cpus

from ftuner.core.cpu.tile import ROW, RegisterTile
from ftuner.core.dtype import DTYPES, FLOAT32
from ftuner.cost.cpu.product import Estimate, efficiency, panel_intensity, step_cycles, tile_cycles
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import Planner
from ftuner.ukernels.cpu.library import build_library

tiles = st.builds(RegisterTile, st.integers(1, 12), st.integers(1, 8), st.integers(1, 8))
machines = st.sampled_from(recorded_cpus())


@given(tile=tiles, machine=machines)
def test_step_cycles(tile: RegisterTile, machine: CpuHardware) -> None:
    for isa in machine.isas:
        step = step_cycles(tile, isa)
        assert min(step.issue, step.latency, step.load) > 0
        assert step.cycles == max(step.issue, step.latency, step.load)
        assert 0 < efficiency(tile, isa) <= 1
        taller = step_cycles(RegisterTile(tile.mr + 1, tile.vectors, tile.chains), isa)
        assert taller.cycles >= step.cycles
        chained = step_cycles(RegisterTile(tile.mr, tile.vectors, tile.chains + 1), isa)
        assert chained.cycles <= step.cycles
        assert 0 < tile_cycles(tile, machine.tuning) < tile_cycles(tile, machine.tuning, True)
        l1, l2 = machine.levels[:2]
        for dtype in DTYPES.values():
            assert panel_intensity(tile, isa, dtype, machine, l1) > 0
            assert panel_intensity(tile, isa, dtype, machine, l2) > 0


def test_known_step() -> None:
    """6x16 of float32 on a core with two 8-lane multiply-adds and two loads a cycle: 12
    multiply-adds take 6 cycles, 8 loads take 4, and 4 cycles of latency hide."""
    machine = next(m for m in recorded_cpus() if m.name == "core-i7-8700")
    isa = machine.isa("avx2")
    step = step_cycles(RegisterTile(6, 2, 1), isa)
    assert (step.issue, step.latency, step.load) == (6.0, 4.0, 4.0)
    assert efficiency(RegisterTile(6, 2, 1), isa) == 1.0
    assert efficiency(RegisterTile(1, 1, 1), isa) == pytest.approx(0.125)


def test_seconds_are_the_largest_of_what_overlaps() -> None:
    terms = Estimate(1.0, 2.0, 7.0, 5.0, 3.0, 10.0, 20.0)
    assert terms.seconds == 7.0 + 10.0 + 20.0
    assert terms.bound == "l3"
    assert Estimate(issue_s=1.0, tile_s=1.5, dram_s=2.0).seconds == 2.5
    assert Estimate(issue_s=1.0, dram_s=2.0).bound == "dram"
    assert Estimate(issue_s=3.0, dram_s=2.0).bound == "compute"
    assert sum(terms.terms().values()) == 48.0


def estimate_of(machine: CpuHardware, problem: Problem) -> Estimate:
    planner = Planner(build_library(machine, machine.widest.name, FLOAT32))
    return planner.estimate(planner.plan(problem))


@settings(max_examples=100, deadline=None)
@given(
    machine=machines, m=st.integers(1, 3000), n=st.integers(1, 3000), k=st.integers(1, 3000),
    batch=st.integers(1, 20), workers=st.integers(1, 64),
    source=st.sampled_from(["rows", "other"]),
)  # fmt: skip
def test_terms_and_bounds(
    machine: CpuHardware, m: int, n: int, k: int, batch: int, workers: int, source: str
) -> None:
    workers = min(workers, machine.cores)
    problem = Problem(m, n, k, batch, ROW, False, source, 0, 4 * n, workers)
    planner = Planner(build_library(machine, machine.widest.name, FLOAT32))
    plan = planner.plan(problem)
    estimate = planner.estimate(plan)
    assert all(seconds >= 0 for seconds in estimate.terms().values())
    # No worker is faster than the hardware, and none does less than its part.
    peak = machine.peak_flops_per_s(machine.widest, FLOAT32, plan.workers)
    assert estimate.seconds >= 0.999 * 2 * batch * m * n * k / peak
    assert (estimate.synchronise_s > 0) == (plan.workers > 1)
    assert estimate.bound in ("compute", "l3", "dram")


@pytest.mark.parametrize(("n", "k"), [(768, 768), (770, 768), (2304, 768), (33, 64), (100, 5000)])
@pytest.mark.parametrize("workers", [1, 2, 6])
def test_more_rows_take_longer(recorded: CpuHardware, n: int, k: int, workers: int) -> None:
    """For fixed n and k, to within a few percent: tiles fit some heights better than others, and
    terms appear where operands outgrow a cache."""
    planner = Planner(build_library(recorded, recorded.widest.name, FLOAT32))
    width = planner.library.widths[-1]
    before = 0.0
    for m in range(1, 400):
        problem = Problem(m, n, k, 1, ROW, False, "panels", width, 0, workers)
        seconds = planner.estimate(planner.plan(problem)).seconds
        assert seconds >= before * 0.97, f"m = {m}"
        before = max(before, seconds)


def test_twice_the_work_takes_about_twice_as_long(recorded: CpuHardware) -> None:
    for m in (200, 2000):
        once = estimate_of(recorded, Problem(m, 768, 768, 1, ROW, False, "rows", 0, 3072, 1))
        twice = estimate_of(recorded, Problem(2 * m, 768, 768, 1, ROW, False, "rows", 0, 3072, 1))
        assert 1.8 < twice.seconds / once.seconds < 2.2
