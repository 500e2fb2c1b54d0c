"""The terms of an estimate, and the roofline, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cost.gpu.product import ProductEstimate
    from ftuner.cost.step import Estimate
    from ftuner.report.roofline import Roofline


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


def roofline_table(line: Roofline, measured_flops_per_s: float | None = None) -> Table:
    """A row for each memory level, then the peak, the estimate, and the measured rate if given."""
    from rich.table import Table

    from ftuner.core.units import rate

    table = Table(
        title=f"roofline at {line.flops_per_byte:.3g} flop/byte, bound by {line.bound}",
        title_justify="left",
    )
    table.add_column("roof")
    for column in ("bandwidth", "attainable", "of peak"):
        table.add_column(column, justify="right")
    peak = line.peak_flops_per_s
    for roof in line.roofs:
        name = f"{roof.level} (operands fit)" if roof.level == line.home else roof.level
        attainable = roof.attainable_flops_per_s
        table.add_row(name, rate(roof.bandwidth_bytes_per_s, "B/s"), rate(attainable, "flop/s"),
                      f"{attainable / peak:.1%}")  # fmt: skip
    table.add_section()
    reached = [("peak", peak), ("estimate", line.predicted_flops_per_s)]
    if measured_flops_per_s is not None:
        reached.append(("measured", measured_flops_per_s))
    for name, flops_per_s in reached:
        table.add_row(name, "", rate(flops_per_s, "flop/s"), f"{flops_per_s / peak:.1%}")
    return table
