"""Estimates of products on the machine of a page."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import best_width, panel_problem, planner_for
from ftuner.report.cpu.explain import Explanation, explain
from ftuner.report.gpu.explain import BlockExplanation
from ftuner.report.machine.section import Subject
from ftuner.report.svg import SERIES
from ftuner.ukernels.cpu.library import Library


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
