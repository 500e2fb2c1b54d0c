"""Plots: values are where the axes say, and labels are round numbers."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.report.svg import PANEL, Axis, Curve, Frame, Marks, Point, log_axis
from ftuner_tools.report.plot import linear_axis, named_axis, plot, spaced_axis, whole_axis

POSITIVE = st.floats(1e-12, 1e12)


def expect_axis(axis: Axis, values: list[float]) -> None:
    """All values are on the axis in their order; labels are few, distinct and inside."""
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0.0 <= place <= 1.0 for place in places)
    ticks = [value for value, _ in axis.ticks]
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 10
    assert all(axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9) for tick in ticks)


@given(st.lists(st.floats(0, 1e12), max_size=5))
def test_linear_axis(values: list[float]) -> None:
    axis = linear_axis("x", values, str)
    expect_axis(axis, values)
    assert len(axis.ticks) >= 2
    assert axis.low == 0.0
    assert axis.high >= max(values, default=0.0) * (1 - 1e-9)


@given(st.lists(POSITIVE, min_size=1, max_size=5), st.sampled_from(["log2", "log10"]))
def test_log_axis(values: list[float], scale: str) -> None:
    axis = log_axis("x", values, str, "log2" if scale == "log2" else "log10", 2.0)
    expect_axis(axis, values)
    assert axis.ticks
    middle = math.sqrt(axis.low * axis.high)
    assert axis.place(middle) == pytest.approx(0.5)


def test_places_of_names() -> None:
    axis = named_axis("x", ["a", "b"])
    assert [axis.place(value) for value, _ in axis.ticks] == [0.25, 0.75]
    axis = spaced_axis("x", ["a", "b", "c"])
    assert [axis.place(value) for value, _ in axis.ticks] == [0.0, 0.5, 1.0]
    assert spaced_axis("x", ["a"]).place(0) == 0.0


def test_values_beyond_an_axis_are_at_its_end() -> None:
    axis = whole_axis("x", 0, 64, (0, 64))
    assert (axis.place(-5), axis.place(32), axis.place(100)) == (0.0, 0.5, 1.0)
    assert log_axis("x", [1.0], str).place(0.0) == 0.0


def test_plot() -> None:
    across, up = whole_axis("m", 0, 4, range(5)), linear_axis("time", [2.0], lambda x: f"{x:g}")
    curves = [Curve("both", [(0, 0), (4, 2)], "red"), Curve("", [(0, 0), (4, 0)])]
    marks = [Marks("both", [Point(2, 1, "<here>")], "red"), Marks("d", [], "blue", "diamond")]
    drawn = ElementTree.fromstring(f"<div>{plot(across, up, curves, marks, 'a plot')}</div>")
    chart, keys = drawn
    assert chart.attrib["aria-label"] == "a plot"
    texts = [text.text for text in chart.iter("text")]
    assert {"m", "time", "0", "4", "2"} <= set(texts)
    (circle,) = chart.iter("circle")
    assert [title.text for title in circle] == ["<here>"]
    line = next(chart.iter("polyline")).attrib["points"].split()
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in line)
    # A point in the middle of both axes is in the middle of the line.
    assert float(circle.attrib["cx"]) == pytest.approx((x0 + x1) / 2, abs=0.1)
    assert float(circle.attrib["cy"]) == pytest.approx((y0 + y1) / 2, abs=0.1)
    assert 0 < x0 < x1 < PANEL
    # A line and points of one name are one entry of the legend.
    assert ["".join(entry.itertext()).strip() for entry in keys] == ["bothboth", "dd"]
    assert [len(entry[0]) for entry in keys] == [2, 1]


def test_the_labels_of_a_frame_have_room() -> None:
    across = whole_axis("m", 0, 4, range(5))
    frame = Frame(across, named_axis("shape", ["a name that is long", "b"]), left=180)
    assert frame.x(0) == 180
    assert frame.x(4) < PANEL
    assert 0 < frame.y(1) < frame.y(0) < frame.bottom
