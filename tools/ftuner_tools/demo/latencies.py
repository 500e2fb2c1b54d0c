"""Latencies of calls by the shape of their input, as the demo shows them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from ftuner.cli.output import shape_text

if TYPE_CHECKING:
    from rich.table import Table

Timed = dict[tuple[int, ...], list[float]]
"""Seconds of calls, in their order, by the shape of the input."""
_R = TypeVar("_R")


@dataclass(frozen=True)
class Latency:
    """Calls of one model with inputs of one shape."""

    model: str
    shape: tuple[int, ...]
    calls: int
    first_s: float
    """Seconds of the first call at that shape."""
    later_s: float
    """Median seconds of the others."""


def timed_call(timed: Timed, shape: tuple[int, ...], call: Callable[[], _R]) -> _R:
    """The result of a call, whose seconds are appended to `timed[shape]`."""
    began = time.perf_counter()
    result = call()
    timed.setdefault(shape, []).append(time.perf_counter() - began)
    return result


def latencies(model: str, timed: Mapping[tuple[int, ...], Sequence[float]]) -> list[Latency]:
    """A row for each shape that was called more than once, smallest first."""
    return [
        Latency(model, shape, len(seconds), seconds[0], statistics.median(seconds[1:]))
        for shape, seconds in sorted(timed.items())
        if len(seconds) > 1
    ]


def latency_table(rows: Sequence[Latency]) -> Table:
    """A row for the smallest and one for the largest input of each model."""
    from rich.table import Table

    from ftuner.core.units import duration

    table = Table(
        title="latency by shape", title_justify="left",
        caption="nothing is padded, and nothing compiled between calls", caption_justify="left",
    )  # fmt: skip
    table.add_column("model")
    for column in ("input", "calls", "first call", "later calls, median"):
        table.add_column(column, justify="right")
    for _, of_model in groupby(rows, lambda row: row.model):
        first, *others = of_model
        for row in (first, *others[-1:]):
            table.add_row(row.model, shape_text(row.shape), str(row.calls), duration(row.first_s),
                          duration(row.later_s))  # fmt: skip
    return table
