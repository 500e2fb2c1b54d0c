"""The section of transfer: how few measurements a machine needs if others were measured before."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.units import count
from ftuner.report.html import Html, html, name_text
from ftuner.report.svg import SERIES, Curve, Marks, Point
from ftuner_tools.report.findings import Transfer
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.plot import linear_axis, plot, spaced_axis
from ftuner_tools.report.section import MEASURE, Section, missing, panels, paragraphs

TITLE = "Transfer from other machines"
MOST_TARGETS = 8
MOST_LINES = 24
"""Most lines of a chart."""
_DASHES = ("none", "7 3", "2 3", "7 3 2 3")
"""Line styles, by how the measured plans were picked."""


class _Method(NamedTuple):
    """What a line stands for."""

    name: str
    picked: str

    def __str__(self) -> str:
        picked = f", {name_text(self.picked)} plans" if self.picked else ""
        return f"{name_text(self.name)}{picked}"


def section(measured: Measured) -> Section:
    """A chart for each machine that was predicted: a line for each method."""
    transfer = measured.findings.transfer
    if not transfer:
        return missing(TITLE, "transfer is", MEASURE)
    by_target: dict[str, list[Transfer]] = {}
    for found in transfer:
        by_target.setdefault(found.target, []).append(found)
    methods = list(dict.fromkeys(_Method(found.method, found.picked) for found in transfer))
    targets = list(by_target)[:MOST_TARGETS]
    said = (
        "The error of predicted times of plans on a machine, over the number of its own "
        "measurements that a method was given: the mean of |log(measured / predicted)|. A method "
        "that takes nothing from other machines starts high; one that transfers starts low."
    )
    charts = [(name_text(t), _chart(by_target[t], methods[:MOST_LINES])) for t in targets]
    parts = [paragraphs(said), panels(*charts)]
    left = (("machine", len(by_target) - len(targets)), ("method", len(methods) - MOST_LINES))
    parts += [
        paragraphs(f"{count(number, what)} more in the file, not drawn.")
        for what, number in left
        if number > 0
    ]
    return Section(TITLE, html(*parts))


def _chart(found: list[Transfer], methods: list[_Method]) -> Html:
    places = sorted({f.measurements for f in found})
    across = spaced_axis("measurements on the machine", [str(n) for n in places])
    up = linear_axis("error", [f.error for f in found], lambda x: f"{x:.3g}")
    names = list(dict.fromkeys(method.name for method in methods))
    picks = list(dict.fromkeys(method.picked for method in methods))
    curves, marks = [], []
    for method in methods:
        own = [f for f in found if (f.method, f.picked) == method]
        if not own:
            continue
        own.sort(key=lambda f: f.measurements)
        colour = SERIES[names.index(method.name) % len(SERIES)]
        dashes = _DASHES[picks.index(method.picked) % len(_DASHES)]
        at = [(float(places.index(f.measurements)), f.error) for f in own]
        curves.append(Curve(str(method), at, colour, dashes))
        points = [
            Point(x, y, f"{method}, {count(f.measurements, 'measurement')}: error {y:.3g}")
            for (x, y), f in zip(at, own, strict=True)
        ]
        marks.append(Marks(str(method), points, colour))
    return plot(across, up, curves, marks, "error over measurements")
