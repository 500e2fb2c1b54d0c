"""The panel width of a weight, which is packed once for any number of rows."""

from __future__ import annotations

import math

from ftuner.core.cpu.tile import ROW
from ftuner.core.product import ReadWindow
from ftuner.planner.cpu.planner import PanelWidth, Planner
from ftuner.planner.cpu.problem import Problem

REFERENCE_ROWS = (1, 2, 3, 5, 8, 13, 24, 32, 49, 64, 100, 128, 256, 512)
"""The definition of a good width: the one that is best over these rows, equally weighted. They are
sentence lengths and batch sizes from one to some hundreds, and so depend on no machine."""


def panel_problem(
    n: int, k: int, width: int, rows: int, workers: int, layout: str = ROW,
    must_pack: bool = False, window: ReadWindow | None = None, footprint_bytes: int = 0,
) -> Problem:  # fmt: skip
    """The problem of a product with a weight in panels and an A of layout `layout`.
    `footprint_bytes`: bytes of weights that are read between two uses of this one."""
    return Problem(
        rows, n, k, 1, layout, must_pack, "panels", width, 0, workers, window, footprint_bytes
    )


def best_width(planner: Planner, n: int, k: int, workers: int, footprint_bytes: int = 0) -> int:
    """The width that products with a weight of `n` columns and `k` steps are cheapest with."""
    widths = planner.library.widths
    if len(widths) == 1 or not n:
        return widths[0]
    known = planner.widths.get((n, k, workers, footprint_bytes))
    if known is not None:
        return known.width

    def total(width: int) -> float:
        """Sum of the logarithms of seconds, so that all numbers of rows have equal weight."""
        problems = (
            panel_problem(n, k, width, rows, workers, footprint_bytes=footprint_bytes)
            for rows in REFERENCE_ROWS
        )
        return sum(math.log(planner.least_seconds(p)) for p in problems)

    found = min(widths, key=total)
    know_width(planner, PanelWidth(n, k, workers, footprint_bytes, found))
    return found


def know_width(planner: Planner, found: PanelWidth) -> None:
    """Have `best_width` return a width."""
    planner.widths.add(found[:-1], found)
