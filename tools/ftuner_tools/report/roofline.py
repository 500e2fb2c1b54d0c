"""The section of the roofline: estimated and, where there are samples, measured rates of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from ftuner.core.dtype import DTYPES
from ftuner.core.product import Contraction, product_types
from ftuner.core.units import count, duration, rate
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware
from ftuner.learn.samples import Sample
from ftuner.report.charts import roof_curves, roofline_axes
from ftuner.report.html import Html, html
from ftuner.report.roofline import level_rates
from ftuner.report.svg import INK, Marks, Point
from ftuner.ukernels.cpu.library import Library
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.plans import explained, level_colour, on_cpu
from ftuner_tools.report.plot import plot
from ftuner_tools.report.section import MEASURE, Section, Subject, missing, panels, paragraphs

TITLE = "Roofline"
SHAPES = (
    (1, 768, 768), (4, 768, 768), (16, 768, 768), (64, 768, 768), (256, 768, 768), (1, 4096, 4096),
    (8, 4096, 4096), (64, 3072, 768), (512, 3072, 768), (1024, 1024, 1024),
)  # fmt: skip
"""Shapes (m, n, k) that are estimated where nothing was measured."""
GPU_SHAPES = (
    (1, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (256, 4096, 4096), (1024, 4096, 4096),
    (4096, 4096, 4096), (512, 14336, 4096), (300, 1024, 1024), (8192, 8192, 8192),
)  # fmt: skip
"""Shapes that are estimated for a GPU."""
MOST_POINTS = 160
"""Most points of a chart; more would cover each other."""
MOST_CHARTS = 4

_T = TypeVar("_T")


class _Kind(NamedTuple):
    """What samples under one roofline have in common."""

    isa: str
    dtype: str
    workers: int


def section(subject: Subject, measured: Measured) -> Section:
    """A chart for each number of workers, ISA and dtype that was measured; without samples one of
    estimates."""
    by_kind: dict[_Kind, list[Sample]] = {}
    for sample in measured.chosen:
        kind = _Kind(sample.isa, sample.dtype, sample.workers)
        by_kind.setdefault(kind, []).append(sample)
    said = (
        "Rate of work over its operations for each byte of A, B and C, each counted once. A line "
        "is the bound that a memory level sets."
    )
    hardware = subject.hardware
    if not by_kind or not isinstance(hardware, CpuHardware):
        drawn = panels((_estimated_title(subject), _estimated(subject)))
        note, command = Html(), None
        if isinstance(hardware, CpuHardware):
            absent = missing("", "measured plans are", MEASURE)
            note, command = absent.body, absent.missing
        return Section(TITLE, html(paragraphs(said), drawn, note), command)
    kinds = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    charts = [(_title(kind), _measured(subject, hardware, kind, by_kind[kind]))
              for kind in sorted(kinds[:MOST_CHARTS])]  # fmt: skip
    said += (
        " Weights come from the level that is named, so a point may be above the roof of a level "
        "further away."
    )
    parts = [paragraphs(said), panels(*charts)]
    if len(kinds) > MOST_CHARTS:
        left = len(kinds) - MOST_CHARTS
        parts.append(paragraphs(f"{count(left, 'kind')} with fewer samples are not drawn."))
    return Section(TITLE, html(*parts))


def _title(kind: _Kind) -> str:
    return f"{kind.dtype} on {kind.isa}, {count(kind.workers, 'worker')}"


def _estimated_title(subject: Subject) -> str:
    library = subject.library
    if isinstance(library, Library):
        return f"{library.types}, {count(subject.workers, 'worker')}, estimates"
    return f"{library.dtype}, multiplied as {library.multiply}, estimates"


def _measured(
    subject: Subject, hardware: CpuHardware, kind: _Kind, samples: Sequence[Sample]
) -> Html:
    """Measured rates by the level that the weight came from, and the estimate of each."""
    types = product_types(DTYPES[kind.dtype])
    machine = Machine(hardware, hardware.isa(kind.isa), kind.workers)
    peak = hardware.peak_flops_per_s(machine.isa, types, kind.workers)
    by_level: dict[str, list[Point]] = {level.name: [] for level in hardware.levels}
    estimates = []
    for sample in _spread(sorted(samples, key=lambda s: (s.level, s.problem)), MOST_POINTS):
        work = Contraction(*sample.problem, types)
        at, estimated_s = work.flops / work.bytes_moved, sample.terms.seconds
        text = (
            f"{work.m} x {work.n} x {work.k}, weight from {sample.level}: measured "
            f"{duration(sample.seconds)} ({rate(work.flops / sample.seconds, 'flop/s')}), "
            f"estimated {duration(estimated_s)}"
        )
        by_level[sample.level].append(Point(at, work.flops / sample.seconds, text))
        estimates.append(Point(at, work.flops / estimated_s, text))
    marks = [Marks("estimate", estimates, INK, "ring")]
    marks += [
        Marks(f"measured, weight from {level}", points, level_colour(subject, level))
        for level, points in by_level.items()
        if points
    ]
    drawn = _chart(peak, list(level_rates(hardware, kind.workers)), marks)
    if len(estimates) < len(samples):
        note = f"{len(estimates)} of {count(len(samples), 'sample')} are drawn."
        return html(drawn, paragraphs(note))
    return drawn


def _estimated(subject: Subject) -> Html:
    points = []
    shapes = SHAPES if on_cpu(subject) else GPU_SHAPES
    found = [explained(subject, *shape) for shape in shapes]
    for e in found:
        line, seconds = e.roofline, e.estimate.seconds
        text = (
            f"{e.contraction.m} x {e.contraction.n} x {e.contraction.k}: estimated "
            f"{duration(seconds)} ({rate(line.predicted_flops_per_s, 'flop/s')}), {line.bound}"
        )
        points.append(Point(line.flops_per_byte, line.predicted_flops_per_s, text))
    line = found[0].roofline
    levels = [(roof.level, roof.bandwidth_bytes_per_s) for roof in line.roofs]
    return _chart(line.peak_flops_per_s, levels, [Marks("estimate", points, INK, "ring")])


def _chart(peak: float, levels: Sequence[tuple[str, float]], marks: Sequence[Marks]) -> Html:
    points = [point for kind in marks for point in kind.points]
    across, up = roofline_axes(peak, levels, [p.x for p in points], [p.y for p in points])
    curves = roof_curves(peak, levels, across, up)
    return plot(across, up, curves, marks, "rates of products under the roofline", 330)


def _spread(values: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` of the values, evenly spread over them."""
    if len(values) <= most:
        return values
    return [values[i * len(values) // most] for i in range(most)]
