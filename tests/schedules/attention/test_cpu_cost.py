"""Estimates of attention, on recorded machines."""

from __future__ import annotations

import pytest
from tests.recorded_cpus import planner_of
from tests.schedules.attention.test_cpu_plan import plain

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.schedules.attention.cpu_cost import AttentionLayout, AttentionProblem
from ftuner.schedules.attention.cpu_plan import attention_estimate

PLAIN = AttentionLayout(masked=False, k_copies=False, v_copies=True)


def test_causal_attention_costs_about_half() -> None:
    square = plain(12, 512, 64, 512, 64, 1)
    causal = square._replace(offset=0)
    assert 0.45 < seconds("epyc-milan-2", causal) / seconds("epyc-milan-2", square) < 0.7


def seconds(name: str, problem: AttentionProblem, layout: AttentionLayout = PLAIN) -> float:
    moved = (
        4 * problem.elements * (problem.rows + problem.steps) * (problem.depth + problem.columns)
    )
    return attention_estimate(planner_of(name), problem, layout, moved).seconds


@pytest.mark.parametrize("workers", [1, 2])
def test_more_rows_are_not_cheaper(recorded: CpuHardware, workers: int) -> None:
    """To within a few percent: tiles fit some heights better than others."""
    before = 0.0
    for rows in range(1, 300):
        problem = plain(12, rows, 64, 77, 64, workers)
        now = seconds(recorded.name, problem)
        assert now >= 0.97 * before, rows
        before = max(before, now)
    longer = plain(12, 299, 64, 154, 64, workers)
    assert seconds(recorded.name, longer) > 1.5 * before


def test_terms(recorded: CpuHardware) -> None:
    """No worker is faster than its multiply-adds, and each thing that is asked for costs."""
    found = planner_of(recorded.name)
    problem = plain(12, 77, 64, 77, 64, 1)
    estimate = attention_estimate(found, problem, PLAIN, 4 * 12 * 77 * 64 * 4)
    assert all(s >= 0 for s in estimate.terms().values())
    assert estimate.synchronise_s == 0 < min(estimate.pack_s, estimate.tile_s)
    peak = recorded.peak_flops_per_s(found.library.isa, product_types(FLOAT32))
    assert estimate.seconds > 2 * 12 * 77 * 77 * (64 + 64) / peak
    whole = seconds(recorded.name, problem)
    assert seconds(recorded.name, problem, PLAIN._replace(masked=True)) > whole
    assert seconds(recorded.name, problem, PLAIN._replace(k_copies=True)) < whole
    if recorded.cores > 1:
        assert seconds(recorded.name, problem._replace(workers=2)) < whole


@pytest.mark.parametrize("name", ["epyc-milan-2", "core-i7-8700"])
def test_two_workers_share_one_head(name: str) -> None:
    """Near evenly, however many rows it has: tasks are cut by row tiles, not by blocks."""
    for rows in range(100, 300, 7):
        alone, shared = (seconds(name, plain(1, rows, 64, rows, 64, n)) for n in (1, 2))
        assert shared < 0.8 * alone, rows
