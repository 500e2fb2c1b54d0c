"""The section of transfer: how few measurements a machine needs if others were measured before."""

from __future__ import annotations

from ftuner.core.units import count
from ftuner.report.html import Html, html, name_text
from ftuner.report.machine.findings import Transfer
from ftuner.report.machine.measured import Measured
from ftuner.report.machine.section import MEASURE, Section, missing, panels, paragraphs
from ftuner.report.plot import Curve, Marks, Point, linear_axis, plot, spaced_axis
from ftuner.report.svg import SERIES

TITLE = "Transfer from other machines"
MOST_TARGETS = 8
MOST_METHODS = 12
_DASHES = ("none", "6 3")
"""Line styles: the second is for methods for which the colours start again."""


def section(measured: Measured) -> Section:
    """A chart for each machine that was predicted: a line for each method."""
    transfer = measured.findings.transfer
    if not transfer:
        return missing(TITLE, "transfer is", MEASURE)
    by_target: dict[str, list[Transfer]] = {}
    for found in transfer:
        by_target.setdefault(found.target, []).append(found)
    methods = list(dict.fromkeys(found.method for found in transfer))[:MOST_METHODS]
    targets = list(by_target)[:MOST_TARGETS]
    said = (
        "The error of predicted times of plans on a machine over the number of its own "
        "measurements that a method was given. A method that takes nothing from other machines "
        "starts high; one that transfers starts low and needs few."
    )
    charts = [(name_text(t), _chart(by_target[t], methods)) for t in targets]
    parts = [paragraphs(said), panels(*charts)]
    if len(by_target) > len(targets):
        left = count(len(by_target) - len(targets), "machine")
        parts.append(paragraphs(f"{left} more in the file, not drawn."))
    return Section(TITLE, html(*parts))


def _chart(found: list[Transfer], methods: list[str]) -> Html:
    places = sorted({f.measurements for f in found})
    across = spaced_axis("measurements on the machine", [str(n) for n in places])
    up = linear_axis("error", [f.error for f in found], lambda x: f"{x:.3g}")
    curves, marks = [], []
    for number, method in enumerate(methods):
        own = sorted((f for f in found if f.method == method), key=lambda f: f.measurements)
        if not own:
            continue
        name, colour = name_text(method), SERIES[number % len(SERIES)]
        dashes = _DASHES[number // len(SERIES) % len(_DASHES)]
        at = [(float(places.index(f.measurements)), f.error) for f in own]
        curves.append(Curve(name, at, colour, dashes))
        points = [
            Point(x, y, f"{name}, {count(f.measurements, 'measurement')}: error {y:.3g}")
            for (x, y), f in zip(at, own, strict=True)
        ]
        marks.append(Marks(name, points, colour))
    return plot(across, up, curves, marks, "error over measurements")
