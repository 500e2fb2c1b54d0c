"""Estimates of products on the machine of a page."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.panel_width import best_width, panel_problem
from ftuner.planner.cpu.planner import planner_for
from ftuner.report.cpu.explain import Explanation, explain
from ftuner.report.gpu.explain import BlockExplanation
from ftuner.report.machine.section import Subject
from ftuner.ukernels.cpu.library import Library


def explained(subject: Subject, m: int, n: int, k: int) -> Explanation | BlockExplanation:
    """The plan of a product with a weight, in the dtype of the library."""
    library = subject.library
    if isinstance(library, Library):
        dtype, workers = library.types.a.name, subject.workers
        return explain(m, n, k, 1, dtype, workers, library.hardware, library.isa.name)
    return explain(m, n, k, 1, library.dtype.name, None, library.hardware)


def seconds_over_rows(
    subject: Subject, n: int, k: int, rows: Sequence[int], workers: int
) -> list[float]:
    """The estimated time of products with one weight for each number of rows. On a CPU the weight
    is packed once, for the width that is best over all numbers of rows."""
    library = subject.library
    if not isinstance(library, Library):
        return [explained(subject, m, n, k).estimate.seconds for m in rows]
    planner = planner_for(library)
    width = best_width(planner, n, k, workers)
    return [planner.least_seconds(panel_problem(n, k, width, m, workers)) for m in rows]


def on_cpu(subject: Subject) -> bool:
    return isinstance(subject.hardware, CpuHardware)
