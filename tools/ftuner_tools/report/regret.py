"""The sections of regret and of rank correlation: how good the choice among plans is."""

from __future__ import annotations

from collections.abc import Mapping

from ftuner.core.units import count, duration
from ftuner.report.html import Html, html, name_text, table
from ftuner.report.svg import FAINT, SERIES, Curve, Marks, Point, Shape
from ftuner_tools.report.findings import STAGES, Regret
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.plot import linear_axis, named_axis, plot
from ftuner_tools.report.section import MEASURE, Section, missing, panels, paragraphs

REGRET, RANK = "Regret of the chosen plans", "Rank correlation"
MOST_CASES = 24
"""Cases of a chart: those where a stage has the largest regret."""
CASE_PIXELS = 19
"""Height of a case in the chart."""
LABEL = 22
"""Characters of a case's label."""
_LOOKS: Mapping[str, tuple[str, Shape]] = {
    "prior": (SERIES[1], "ring"),
    "calibrated": (SERIES[0], "circle"),
    "thorough": (SERIES[2], "diamond"),
}
_Place = tuple[str, str]
"""A case and the level of its weight."""


def regret_section(measured: Measured) -> Section:
    """A table of the means and the worst cases, and a chart for each number of threads."""
    regret = measured.findings.regret
    if not any(regret.values()):
        return missing(REGRET, "regret is", MEASURE)
    stages = [stage for stage in STAGES if stage in regret]
    threads = sorted({t for by_threads in regret.values() for t in by_threads})
    rows = [
        _row(t, stage, regret[stage][t]) for t in threads for stage in stages if t in regret[stage]
    ]
    numbers = ("mean", "worst", "shapes")
    head = ("threads", "stage", *numbers, "worst shape")
    said = (
        "How much longer the chosen plan takes than the best measured one. Prior: the constants of "
        "the source. Calibrated: those that tuning measured on this machine. Thorough: those of "
        "a thorough calibration, with a learned correction if there is one."
    )
    charts = []
    for t in threads:
        own = {stage: regret[stage][t] for stage in stages if t in regret[stage]}
        if any(found.cases for found in own.values()):
            charts.append((count(t, "thread"), _chart(own)))
    return Section(REGRET, html(paragraphs(said), table(head, rows, numbers), panels(*charts)))


def _row(threads: int, stage: str, found: Regret) -> tuple[str, ...]:
    worst = max(found.cases, key=lambda c: c.regret, default=None)
    where = "" if worst is None else f"{name_text(worst.case)}, {name_text(worst.level)}"
    return (str(threads), stage, f"{found.mean:.1%}", f"{found.worst:.1%}",
            str(len(found.cases)), where)  # fmt: skip


def _chart(by_stage: Mapping[str, Regret]) -> Html:
    """A line for each case with the regret of each stage, the largest on top."""
    places: dict[_Place, dict[str, float]] = {}
    texts: dict[tuple[_Place, str], str] = {}
    for stage, found in by_stage.items():
        for case in found.cases:
            place = case.case, case.level
            places.setdefault(place, {})[stage] = case.regret
            texts[place, stage] = (
                f"{name_text(case.case)}, weight from {name_text(case.level)}, {stage}: "
                f"{case.regret:.1%} (noise {case.noise:.1%}); chosen {duration(case.chosen_s)}, "
                f"best {duration(case.best_s)}: {name_text(case.best)}"
            )
    ordered = sorted(places, key=lambda place: -max(places[place].values()))
    shown = ordered[:MOST_CASES][::-1]
    labels = [_cut(f"{name_text(case)} {name_text(level)}") for case, level in shown]
    up = named_axis("shape, level of the weight", labels)
    regrets = [regret for place in shown for regret in places[place].values()]
    across = linear_axis("regret", regrets, lambda x: f"{round(100 * x, 6):g}%")
    curves = []
    marks: dict[str, list[Point]] = {stage: [] for stage in by_stage}
    for row, place in enumerate(shown):
        own = places[place]
        curves.append(Curve("", [(min(own.values()), row), (max(own.values()), row)], FAINT,
                            weight=3.0))  # fmt: skip
        for stage, regret in own.items():
            marks[stage].append(Point(regret, row, texts[place, stage]))
    drawn = [Marks(stage, points, *_LOOKS[stage]) for stage, points in marks.items()]
    height = 70 + CASE_PIXELS * len(shown)
    chart = plot(across, up, curves, drawn, "regret by shape", height)
    if len(ordered) > len(shown):
        left = len(ordered) - len(shown)
        return html(chart, paragraphs(f"{count(left, 'shape')} with less regret are not drawn."))
    return chart


def _cut(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"


def rank_section(measured: Measured) -> Section:
    """Kendall's tau of the analytic and of the corrected estimate."""
    rank = measured.findings.rank
    if not rank:
        return missing(RANK, "rank correlation is", MEASURE)
    said = (
        "Kendall's tau between the estimated and the measured times of the plans of a problem, on "
        "average over problems: 1 if the estimate orders all plans as they are, 0 if it orders "
        "them by chance."
    )
    rows = [(name_text(name), f"{tau:.3f}") for name, tau in rank.items()]
    return Section(RANK, html(paragraphs(said), table(("estimate", "tau"), rows, ("tau",))))
