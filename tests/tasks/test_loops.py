"""Conditions on the variables of loops, which are decided once for many elements."""

import ftuner
from ftuner.tasks import Out, f32, grid, lanes, repeat, split, worker, workers


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


def test_loops_may_begin_below_zero() -> None:
    ftuner.check(around)


@ftuner.schedule
def prefixes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for r in repeat(n):
            total = 0.0
            for p in range(r + 1):
                for q in range(p, r + 1):
                    total += x[i, p] * x[i, q]
            y[i, r] = total


def test_loops_may_end_where_others_are() -> None:
    ftuner.check(prefixes)


@ftuner.schedule
def triangle(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in grid((m, n), (workers, 1))(worker):
        total = 0.5
        if i <= j:
            for p in range(i, j + 1):
                total += x[i, j] * p
        y[i, j] = total


def test_conditions_on_several_indices_of_a_task() -> None:
    ftuner.check(triangle)


def test_conditions_on_several_variables_of_a_loop() -> None:
    ftuner.check(corner)
