"""Schedules against the interpreter, and what code generators write for a small one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.ir as ir
import pytest
from tests.conftest import HOST_ISAS, share
from tests.tasks.random_schedules import made

import ftuner
from ftuner.hardware.isa import instruction_set
from ftuner.tasks import Out, f32, grid, lanes, repeat, split, worker, workers
from ftuner.tasks.llvm import emit
from ftuner.tasks.triton import kernel_source


@ftuner.schedule
def scaled(x: f32["m", 8], scale: f32["m"], y: Out[f32["m", 8]]):
    for i in split(m, workers)(worker):
        for j in lanes(8):
            y[i, j] = x[i, j] * scale[i]


(PROGRAM,) = scaled.programs.values()


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512"])
def test_llvm(isa: str, golden: Callable[[str, str], None]) -> None:
    module = ir.Module("schedule")
    emit(module, "scaled", PROGRAM, instruction_set(isa))
    golden(f"schedule-{isa}.ll", str(module))


def test_triton(golden: Callable[[str, str], None]) -> None:
    golden("schedule.py.txt", kernel_source(PROGRAM).text)


@ftuner.schedule
def corner(x: f32["m", "a", "b", "n"], y: Out[f32["m"]]):
    for i in split(m, workers)(worker):
        total = 0.0
        for r, s in repeat(a, b):
            for j in lanes(n):
                total += x[i, r, s, j] if r + s < 5 else 0.0
        y[i] = total


@ftuner.schedule
def around(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for j in lanes(n):
            total = 0.0
            for p in range(-3, 3):
                weight = p // 2 + p % 3 * max(p, 0)
                total += (x[i, j + p] if 0 <= j + p < n else 0.5) * weight
            for p in range(i - 2, i):
                total += (x[p, j] if p >= 0 else 0.25) * (p % 2)
            y[i, j] = total


@ftuner.schedule
def prefixes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for r in repeat(n):
            total = 0.0
            for p in range(r + 1):
                for q in range(p, r + 1):
                    total += x[i, p] * x[i, q]
            y[i, r] = total


@ftuner.schedule
def triangle(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in grid((m, n), (workers, 1))(worker):
        total = 0.5
        if i <= j:
            for p in range(i, j + 1):
                total += x[i, j] * p
        y[i, j] = total


@pytest.mark.parametrize("schedule", [around, prefixes, triangle, corner], ids=lambda s: s.__name__)
def test_conditions_and_bounds_of_loops(schedule: Any) -> None:
    """Loops begin below zero and end where others are; conditions on several indices of tasks, or
    variables of loops, are decided once for many elements."""
    ftuner.check(schedule)


FEW, MANY = range(4), share(range(4, 104), 2, 1)


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.full) for seed in MANY)]
)
def test_random_schedules(seed: int, tmp_path: Path) -> None:
    isa = HOST_ISAS[-1 - seed % len(HOST_ISAS)]
    assert ftuner.check(made(seed, tmp_path), cases=3, seed=seed, isas=[isa]).cases == 3
