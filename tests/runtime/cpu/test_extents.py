"""Extents that native code does not evaluate: these are bound all the same, or refused by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import Maker, S, graph_of

from ftuner.core.dim import Dim, quotient
from ftuner.errors import AllocationError, ShapeError
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

LARGE = 1 << 62


def broadcast(backend: CpuBackend, extent: Dim) -> Callable[..., Any]:
    """Sums of a row with a column of an extent."""

    def body(g: Maker) -> Any:
        x = g.given("x", S)
        column = g.add("broadcast", g.number(2), shape=(extent, 1))
        return [g.add("add", x, column)]

    model = Model(graph_of(body), backend, Options(threads=1))
    return lambda rows: model.run({"x": np.arange(rows, dtype=np.float32)})[0]


def test_numbers_of_more_than_a_word_on_the_way(widest: CpuBackend) -> None:
    run = broadcast(widest, quotient(S * LARGE, LARGE + 1) + 1)
    # The first ones are evaluated by native code.
    for rows in (1, 2, 7, 1, 7):
        found = run(rows)
        np.testing.assert_array_equal(found, np.tile(np.arange(rows) + 2, (rows, 1)))


@pytest.mark.parametrize(
    ("extent", "refused", "error", "text"),
    [
        (S - 3, 2, ShapeError, "S - 3"),
        (quotient(12, S - 3), 3, ShapeError, "divided by zero"),
        (S * (1 << 50), 1, AllocationError, "no memory|elements"),
        (S * LARGE, 5, AllocationError, "no memory|extents"),
    ],
)
def test_extents_that_no_run_can_have(
    widest: CpuBackend, extent: Dim, refused: int, error: type[Exception], text: str
) -> None:
    run = broadcast(widest, extent)
    for _ in range(2):
        with pytest.raises(error, match=text):
            run(refused)
    if error is ShapeError:
        # What was refused leaves nothing behind.
        assert run(5).shape == {"S - 3": (2, 5)}.get(text, (6, 5))
