"""The section of time over the number of rows, which has no cliffs if every number is covered
well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ftuner.core.units import count, duration
from ftuner.report.html import Html, html, name_text
from ftuner.report.svg import INK, Curve, Marks, Point
from ftuner.ukernels.cpu.library import Library
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.plans import level_colour, levels_of_weight, on_cpu, seconds_over_rows
from ftuner_tools.report.plot import linear_axis, plot, whole_axis
from ftuner_tools.report.section import MEASURE, Section, Subject, missing, panels, paragraphs

TITLE = "Time over rows"
MOST_ROWS = 64
ROWS = range(1, MOST_ROWS + 1)
WEIGHTS = ((768, 768), (3072, 768), (768, 3072), (4096, 4096))
"""Weights (n, k) of a CPU's section: the layers of common encoders, and a large one."""
GPU_WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192))
"""Weights of a GPU's section: the layers of common language models."""
MOST_WEIGHTS = 6
LEAST_ROWS = 8
"""Different numbers of rows that samples of a weight must have to be drawn as a series."""


class _Weight(NamedTuple):
    """A weight, and the workers that its products were measured with."""

    n: int
    k: int
    workers: int


class _Series(NamedTuple):
    """Measured times over m, with the weight from one level."""

    level: str
    times: tuple[tuple[int, float], ...]


def section(subject: Subject, measured: Measured) -> Section:
    """A chart for each weight: the estimate as a line, and what was measured as points."""
    series = _measured_series(subject, measured)
    # Those with most points first.
    weights = sorted(series, key=lambda w: (-sum(len(s.times) for s in series[w]), w))
    weights = weights[:MOST_WEIGHTS]
    known = {(w.n, w.k) for w in weights}
    defaults = WEIGHTS if on_cpu(subject) else GPU_WEIGHTS
    for n, k in defaults:
        if len(weights) < len(defaults) and (n, k) not in known:
            weights.append(_Weight(n, k, 1))
    drawn = [(_title(subject, w), _chart(subject, w, series.get(w, []))) for w in weights]
    said = (
        f"Products of 1 to {MOST_ROWS} rows with one weight of n columns and k steps. A cliff "
        "would be a number of rows that takes much longer than the one before. Below each chart is "
        "the largest step of the time per row from one number of rows to the next, which is "
        "negative where every row more makes the others cheaper."
    )
    parts, command = [paragraphs(said), panels(*drawn)], None
    if not series and on_cpu(subject):
        absent = missing("", "measured times are", MEASURE)
        parts.append(absent.body)
        command = absent.missing
    return Section(TITLE, html(*parts), command)


def _title(subject: Subject, weight: _Weight) -> str:
    workers = f", {count(weight.workers, 'worker')}" if on_cpu(subject) else ""
    return f"n = {weight.n}, k = {weight.k}{workers}"


def _measured_series(subject: Subject, measured: Measured) -> dict[_Weight, list[_Series]]:
    """The times over m of each weight: those that were measured to see cliffs, else the samples of
    chosen plans in the library's ISA and dtype."""
    found: dict[_Weight, list[_Series]] = {}
    for cliffs in measured.findings.cliffs:
        pairs = sorted(zip(cliffs.m, cliffs.seconds, strict=True))
        times = tuple(pair for pair in pairs if pair[0] <= MOST_ROWS)
        if times:
            weight = _Weight(cliffs.n, cliffs.k, 1)
            found.setdefault(weight, []).append(_Series(cliffs.level, times))
    library = subject.library
    if found or not isinstance(library, Library):
        return found
    sampled: dict[tuple[_Weight, str], dict[int, float]] = {}
    for sample in measured.chosen:
        m, n, k = sample.problem
        alike = (sample.isa, sample.dtype) == (library.isa.name, library.types.a.name)
        if alike and m <= MOST_ROWS and sample.workers <= library.hardware.cores:
            place = _Weight(n, k, sample.workers), sample.level
            sampled.setdefault(place, {})[m] = sample.seconds
    for (weight, level), seconds in sampled.items():
        if len(seconds) >= LEAST_ROWS:
            series = _Series(level, tuple(sorted(seconds.items())))
            found.setdefault(weight, []).append(series)
    return found


def _chart(subject: Subject, weight: _Weight, series: Sequence[_Series]) -> Html:
    n, k, workers = weight
    curves, steps = [], []
    times: list[float] = []
    for level, footprint in (levels_of_weight(subject, n, k) or {"": 0}).items():
        seconds = seconds_over_rows(subject, n, k, ROWS, workers, footprint)
        times += seconds
        points = list(zip(ROWS, seconds, strict=True))
        name, colour = "estimate", INK
        if level:
            name, colour = f"estimate, weight from {level}", level_colour(subject, level)
        curves.append(Curve(name, points, colour))
        steps.append(_largest_step(f"estimate, {level}" if level else name, points))
    marks = []
    for own in series:
        times += (s for _, s in own.times)
        name = f"measured, weight from {name_text(own.level)}"
        dots = [Point(m, s, f"{m} rows: {name}, {duration(s)}") for m, s in own.times]
        marks.append(Marks(name, dots, level_colour(subject, own.level)))
        steps.append(_largest_step(f"measured, {name_text(own.level)}", own.times))
    across = whole_axis("m, rows", 0, MOST_ROWS, range(0, MOST_ROWS + 1, 8))
    up = linear_axis("time", times, duration)
    label = f"time of products with a weight of {n} columns and {k} steps"
    said = "Largest step of the time per row: " + "; ".join(filter(None, steps)) + "."
    return html(plot(across, up, curves, marks, label), paragraphs(said))


def _largest_step(name: str, times: Iterable[tuple[int, float]]) -> str:
    """By how much one more row raises the time per row at most; empty if no two numbers of rows
    follow each other."""
    steps = [
        (after / following / (before / m), m)
        for (m, before), (following, after) in pairwise(times)
        if following == m + 1
    ]
    if not steps:
        return ""
    ratio, m = max(steps)
    return f"{name} {ratio - 1:+.1%} from {m} to {m + 1}"
