"""Estimates of products on the machine of a page, and the section of plans: the output of a few
shapes, cut into patches or tiles."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.units import duration
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import best_width, panel_problem, planner_for
from ftuner.report.charts import plan_chart
from ftuner.report.explain import BlockExplanation, Explanation, explain
from ftuner.report.html import Html, html
from ftuner.report.svg import PANEL, SERIES
from ftuner.ukernels.cpu.library import Library
from ftuner_tools.report.section import Section, Subject, panels, paragraphs

TITLE = "Plans"
SHAPES = ((7, 768, 768), (77, 770, 768), (200, 1000, 1024), (1920, 512, 512))
"""Shapes (m, n, k) of a CPU's section: few rows, tails, several heights, many rows."""
GPU_SHAPES = ((77, 4096, 4096), (300, 1024, 4096), (1000, 4096, 1024), (3000, 3000, 1024))
"""Shapes of a GPU's section, some with a partial last wave."""


def explained(subject: Subject, m: int, n: int, k: int) -> Explanation | BlockExplanation:
    """The plan of a product with a weight, in the dtype of the library."""
    library = subject.library
    if isinstance(library, Library):
        dtype, workers = library.types.a.name, subject.workers
        return explain(m, n, k, 1, dtype, workers, library.hardware, library.isa.name)
    return explain(m, n, k, 1, library.dtype.name, None, library.hardware)


def levels_of_weight(subject: Subject, n: int, k: int) -> dict[str, int]:
    """The memory levels that the estimate distinguishes as the source of a weight, with the bytes
    of weights that are read between two uses of it where it comes from there. Empty for a GPU."""
    hardware, library = subject.hardware, subject.library
    if not isinstance(hardware, CpuHardware) or not isinstance(library, Library):
        return {}
    *_, cache, memory = hardware.levels
    found = {memory.name: cache.capacity_bytes}
    if n * k * library.types.b.itemsize <= hardware.tuning.cache_share * cache.capacity_bytes:
        # Of a model: its other weights take the place of this one in L2.
        found = {cache.name: 0, **found}
    return found


def level_colour(subject: Subject, level: str) -> str:
    """The colour of all that comes from a memory level, in every chart."""
    hardware = subject.hardware
    names = [x.name for x in hardware.levels[1:]] if isinstance(hardware, CpuHardware) else []
    return SERIES[names.index(level) % len(SERIES)] if level in names else SERIES[-1]


def seconds_over_rows(
    subject: Subject, n: int, k: int, rows: Sequence[int], workers: int, footprint_bytes: int
) -> list[float]:
    """The estimated time of products with one weight for each number of rows. On a CPU the weight
    is packed once, for the width that is best over all numbers of rows. `footprint_bytes`: bytes of
    weights that are read between two uses of it."""
    library = subject.library
    if not isinstance(library, Library):
        return [explained(subject, m, n, k).estimate.seconds for m in rows]
    planner = planner_for(library)
    width = best_width(planner, n, k, workers, footprint_bytes)
    problems = (
        panel_problem(n, k, width, m, workers, footprint_bytes=footprint_bytes) for m in rows
    )
    return [planner.least_seconds(problem) for problem in problems]


def on_cpu(subject: Subject) -> bool:
    return isinstance(subject.hardware, CpuHardware)


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
    return f"{m} x {n} x {k}", html(plan_chart(found.plan, PANEL), paragraphs(said))
