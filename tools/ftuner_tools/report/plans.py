"""The section of plans: the output of a few shapes, cut into patches or tiles."""

from __future__ import annotations

from ftuner.core.units import duration
from ftuner.report.charts import patches_chart, waves_chart
from ftuner.report.cpu.explain import Explanation
from ftuner.report.html import Html, html
from ftuner.report.svg import PANEL
from ftuner_tools.report.estimates import explained, on_cpu
from ftuner_tools.report.section import Section, Subject, panels, paragraphs

TITLE = "Plans"
SHAPES = ((7, 768, 768), (77, 770, 768), (200, 1000, 1024), (1920, 512, 512))
"""Shapes (m, n, k) of a CPU's section: few rows, tails, several heights, many rows."""
GPU_SHAPES = ((77, 4096, 4096), (300, 1024, 4096), (1000, 4096, 1024), (3000, 3000, 1024))
"""Shapes of a GPU's section, some with a partial last wave."""


def section(subject: Subject) -> Section:
    """A picture of the plan of each shape, with its estimate."""
    said = (
        "The matrix C of a product, cut into patches: each is covered by the tiles of one uKernel "
        "(rows x columns; t: a tail, which stores only the columns asked for) and computed by the "
        "workers named. Both axes are stretched to fit."
    )
    if not on_cpu(subject):
        said = (
            "The matrix C of a product, cut into tiles, each coloured by the wave of programs that "
            "finishes it. Both axes are stretched to fit."
        )
    shapes = SHAPES if on_cpu(subject) else GPU_SHAPES
    return Section(TITLE, html(paragraphs(said), panels(*(_plan(subject, *s) for s in shapes))))


def _plan(subject: Subject, m: int, n: int, k: int) -> tuple[str, Html]:
    found = explained(subject, m, n, k)
    line, estimate = found.roofline, found.estimate
    said = (
        f"Estimated {duration(estimate.seconds)}, {line.fraction_of_peak:.0%} of the peak, bound "
        f"by {estimate.bound}; {found.wasted_fraction:.1%} of what is computed is not stored."
    )
    if isinstance(found, Explanation):
        drawn = patches_chart(found.plan, PANEL)
    else:
        drawn = waves_chart(found.plan, PANEL)
    return f"{m} x {n} x {k}", html(drawn, paragraphs(said))
