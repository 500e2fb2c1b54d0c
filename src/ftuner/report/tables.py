"""Tables for the terminal: of texts, of an estimate by terms, of a roofline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ftuner.core.units import duration, rate

if TYPE_CHECKING:
    from ftuner.report.roofline import Estimated, Roofline


def table(
    title: str | None, head: Sequence[str], rows: Iterable[Sequence[str | Text] | None],
    **more: Any,
) -> Table:  # fmt: skip
    """A table with a title. Columns whose name begins with `>` are aligned right, and of others
    long texts are whole, in several lines. None is a line between rows. `more`: as of rich."""
    found = Table(title=title, title_justify="left", **more)
    for name in head:
        if name.startswith(">"):
            found.add_column(name[1:], justify="right")
        else:
            found.add_column(name, overflow="fold")
    for row in rows:
        if row is None:
            found.add_section()
        else:
            # Names of files may look like markup.
            found.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return found


def estimate_table(estimate: Estimated) -> Table:
    """A row for each term, and the total, which is less than the sum if terms overlap."""
    # GPU estimates have no correction.
    correction = getattr(estimate, "correction", 1.0)
    total, uncorrected = estimate.seconds, estimate.seconds / correction
    rows: list[Sequence[str] | None] = [
        (name.removesuffix("_s"), duration(seconds), f"{seconds / uncorrected:.1%}")
        for name, seconds in estimate.terms().items()
    ]
    learned = [("learned correction", f"x {correction:.3f}", "")] if correction != 1.0 else []
    rows += [None, *learned, ("total, transfers overlapping", duration(total), "100.0%")]
    return table(f"estimate, bound by {estimate.bound}", ("term", ">time", ">of total"), rows)


def roofline_table(line: Roofline, measured_flops_per_s: float | None = None) -> Table:
    """A row for each memory level, then the peak, the estimate, and the measured rate if given."""

    def row(name: str, bandwidth: str, flops_per_s: float) -> Sequence[str]:
        share = flops_per_s / line.peak_flops_per_s
        return name, bandwidth, rate(flops_per_s, "flop/s"), f"{share:.1%}"

    rows: list[Sequence[str] | None] = [
        row(
            f"{roof.level} (operands fit)" if roof.level == line.home else roof.level,
            rate(roof.bandwidth_bytes_per_s, "B/s"), roof.attainable_flops_per_s,
        )
        for roof in line.roofs
    ]  # fmt: skip
    rows += [None, row("peak", "", line.peak_flops_per_s)]
    rows.append(row("estimate", "", line.predicted_flops_per_s))
    if measured_flops_per_s is not None:
        rows.append(row("measured", "", measured_flops_per_s))
    title = f"roofline at {line.flops_per_byte:.3g} flop/byte, bound by {line.bound}"
    return table(title, ("roof", ">bandwidth", ">attainable", ">of peak"), rows)
