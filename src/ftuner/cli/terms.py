"""The terms of an estimate, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cost.gpu.product import ProductEstimate
    from ftuner.cost.step import Estimate


def estimate_table(estimate: Estimate | ProductEstimate) -> Table:
    """A row for each term, and the total, which is less than the sum if terms overlap."""
    from rich.table import Table

    from ftuner.core.units import duration

    # GPU estimates have no correction.
    correction = getattr(estimate, "correction", 1.0)
    total, uncorrected = estimate.seconds, estimate.seconds / correction
    table = Table(title=f"estimate, bound by {estimate.bound}", title_justify="left")
    table.add_column("term")
    table.add_column("time", justify="right")
    table.add_column("of total", justify="right")
    for name, seconds in estimate.terms().items():
        table.add_row(name.removesuffix("_s"), duration(seconds), f"{seconds / uncorrected:.1%}")
    table.add_section()
    if correction != 1.0:
        table.add_row("learned correction", f"x {correction:.3f}", "")
    table.add_row("total, transfers overlapping", duration(total), "100.0%")
    return table
