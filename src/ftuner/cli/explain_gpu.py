"""The output of `ftuner explain gemm` for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftuner.cli.output import console, show_table
from ftuner.cli.roofline import roofline_table
from ftuner.cli.terms import estimate_table

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.report.gpu.explain import BlockExplanation


def show_block(found: BlockExplanation) -> None:
    """Print the plan, its picture, its estimate and its place on the roofline."""
    from ftuner.core.units import count
    from ftuner.report.gpu.picture import wave_picture

    out = console()
    show_table(out, _plan_table(found))
    plan = found.plan
    split_k = f", split-k {plan.split_k}" if plan.split_k > 1 else ""
    out.print(
        f"{plan.kernel.loads}; swizzle of {count(plan.swizzle, 'row tile')}{split_k}; "
        f"library: {found.enumerated} tiles enumerated, {found.kept} kept",
        soft_wrap=True,
    )
    out.print(wave_picture(found.plan))
    show_table(out, estimate_table(found.estimate))
    show_table(out, roofline_table(found.roofline))
    out.print(f"computed and thrown away: {found.wasted_fraction:.1%}")


def _plan_table(found: BlockExplanation) -> Table:
    from rich.table import Table

    table = Table(title=found.title, title_justify="left")
    for column in ("band", "tile", "rows", "tiles", "rows thrown away"):
        table.add_column(column, justify="left" if column == "tile" else "right")
    for number, band in enumerate(found.bands()):
        first, last = band.rows
        table.add_row(str(number), str(band.tile), f"{first}..{last}", str(band.tiles),
                      str(band.wasted_rows))  # fmt: skip
    return table
