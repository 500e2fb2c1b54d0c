"""Conditions on the variables of loops, which are decided once for many elements."""

import ftuner
from ftuner.tasks import Out, f32, lanes, repeat, split, worker, workers


@ftuner.schedule
def corner(x: f32["m", "a", "b", "n"], y: Out[f32["m"]]):
    for i in split(m, workers)(worker):
        total = 0.0
        for r, s in repeat(a, b):
            for j in lanes(n):
                total += x[i, r, s, j] if r + s < 5 else 0.0
        y[i] = total


def test_conditions_on_several_variables_of_a_loop() -> None:
    ftuner.check(corner)
