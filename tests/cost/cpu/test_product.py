"""Estimates are made of non-negative terms, grow with the work, and never beat the machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import recorded_cpus
from tests.recorded_cpus import planner_of

from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.step import Estimate
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Problem

machines = st.sampled_from(recorded_cpus())


def estimate_of(machine: CpuHardware, problem: Problem) -> Estimate:
    planner = planner_of(machine)
    return planner.estimate(planner.plan(problem))


@settings(max_examples=100)
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
    planner = planner_of(machine)
    plan = planner.plan(problem)
    estimate = planner.estimate(plan)
    assert all(seconds >= 0 for seconds in estimate.terms().values())
    # No worker is faster than the hardware, and none does less than its part.
    peak = machine.peak_flops_per_s(machine.widest, product_types(FLOAT32), plan.workers)
    assert estimate.seconds >= 0.999 * 2 * batch * m * n * k / peak
    assert (estimate.synchronise_s > 0) == (plan.workers > 1)
    assert estimate.bound in ("compute", "l3", "dram")


@pytest.mark.parametrize(("n", "k"), [(768, 768), (770, 768), (2304, 768), (33, 64), (100, 5000)])
@pytest.mark.parametrize("workers", [1, 2, 6])
def test_more_rows_take_longer(recorded: CpuHardware, n: int, k: int, workers: int) -> None:
    """For fixed n and k, to within a few percent: tiles fit some heights better than others, and
    terms appear where operands outgrow a cache."""
    planner = planner_of(recorded)
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
