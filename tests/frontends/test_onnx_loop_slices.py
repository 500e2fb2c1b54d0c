"""Loops whose iterations slice between bounds that data decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.control_models import (
    BOOL,
    INT64,
    NODE,
    RNG,
    body_of,
    expect_agreement,
    floats,
    model_of,
    stored,
    value,
)

from ftuner.errors import ShapeError
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend


def test_bounds_as_many_as_the_axes_that_they_are_of(
    widest: CpuBackend, compiled: list[Any]
) -> None:
    """Data decides how many bounds are computed; the axes of the slice are constants, so that there
    is one."""
    nodes = [
        NODE("Add", ["i", "one"], ["after"]),
        NODE("Unsqueeze", ["i", "zeros"], ["at"]),
        NODE("Unsqueeze", ["after", "zeros"], ["past"]),
        NODE("Slice", ["starts", "at", "past", "zeros"], ["begin"]),
        NODE("Add", ["begin", "two"], ["end"]),
        NODE("Slice", ["x", "begin", "end", "zeros"], ["piece"]),
        NODE("ReduceSum", ["piece"], ["sum"], keepdims=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    body = body_of(nodes, [], [value("go_next", [], BOOL), value("sum", [])])
    model = model_of(
        [NODE("Loop", ["n", ""], ["sums"], body=body)],
        [value("n", [], INT64), value("x", ["m"]), value("starts", ["k"], INT64)],
        [value("sums", ["l"])],
        [stored("one", np.int64(1)), stored("two", np.array([2])), stored("zeros", np.array([0]))],
    )
    feeds = [{"n": np.array(n), "x": floats(9), "starts": np.arange(n)[::-1]} for n in (1, 3, 8)]
    expect_agreement(model, *feeds)
    loaded = load(model)
    count = len(compiled)
    for given in feeds:
        loaded.run(given)
    assert len(compiled) == count


def sliced(bounds: Sequence[str], axes: Sequence[int], steps: Sequence[int], trips: Any) -> Any:
    """A loop whose iteration i slices x by row i of the inputs `starts` and `ends`. `bounds`: which
    of these are inputs; the others are constants."""
    nodes = [
        NODE("Gather", ["starts", "i"], ["start"], axis=0),
        NODE("Gather", ["ends", "i"], ["end"], axis=0),
        NODE("Slice", ["x", "start", "end", "axes", "steps"], ["piece"]),
        NODE("ReduceSum", ["piece"], ["sum"], keepdims=0),
        NODE("Concat", ["c", "piece_flat"], ["c_next"], axis=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    nodes.insert(3, NODE("Reshape", ["piece", "flat"], ["piece_flat"]))
    outputs = [value("go_next", [], BOOL), value("c_next", ["p"]), value("sum", [])]
    body = body_of(nodes, [value("c", ["p"])], outputs)
    rows = "n" if trips is None else trips
    inputs = [value(name, [rows, len(axes)], INT64) for name in bounds]
    known = trips is not None
    prologue = [] if known else [
        NODE("Shape", [bounds[0]], ["shape"]), NODE("Gather", ["shape", "first"], ["trips"]),
    ]  # fmt: skip
    constants = [stored("trips", np.int64(trips))] if known else [stored("first", np.int64(0))]
    for name, end in (("starts", 1), ("ends", 30)):
        if name not in bounds:
            constants.append(stored(name, np.full((64, len(axes)), end)))
    return model_of(
        [*prologue, NODE("Loop", ["trips", "", "none"], ["all", "sums"], body=body)],
        [value("x", ["a", "b"]), *inputs],
        [value("all", ["q"]), value("sums", ["k"])],
        [
            stored("axes", np.array(axes)), stored("steps", np.array(steps)),
            stored("flat", np.array([-1])), stored("none", np.zeros(0, np.float32)), *constants,
        ],
    )  # fmt: skip


FAR = 2**63 - 2
"""Backwards, ONNX Runtime takes the largest number as the beginning."""


BOUNDS = np.array(
    [[0, 3], [2, 2], [5, 2], [-3, FAR], [-99, 99], [99, -99], [-FAR - 1, -1], [3, -FAR], [7, 8]]
)


@pytest.mark.each_value
@pytest.mark.parametrize("trips", [None, 9])
@pytest.mark.parametrize("step", [1, 3, -1, -2])
@pytest.mark.parametrize("given", [("starts", "ends"), ("starts",), ("ends",)])
def test_slices_by_data_within_a_loop(
    widest: CpuBackend, compiled: list[Any], given: Sequence[str], step: int, trips: int | None
) -> None:
    model = sliced(given, [1], [step], trips)
    feeds = [
        {"x": floats(a, b), "starts": BOUNDS[:n, :1], "ends": BOUNDS[:n, 1:]}
        for a, b, n in ((2, 9, 9), (3, 1, 9), (1, 0, 9), (2, 9, 9 if trips else 4))
    ]
    feeds = [{k: v for k, v in f.items() if k == "x" or k in given} for f in feeds]
    count = len(compiled)
    loaded = load(model)
    count = len(compiled) - count
    assert type(loaded) is Model
    expect_agreement(model, *feeds)
    # Loading it again compiled as much; the calls compiled nothing.
    assert len(compiled) == 2 * count


def test_slices_of_several_axes_within_a_loop(widest: CpuBackend) -> None:
    model = sliced(("starts", "ends"), [-1, 0], [1, -2], None)
    starts, ends = BOUNDS[:, :1].repeat(2, 1), BOUNDS[::-1, 1:].repeat(2, 1)
    starts[:, 1], ends[:, 1] = BOUNDS[::-1, 1], BOUNDS[:, 0]
    feeds = [{"x": floats(a, b), "starts": starts, "ends": ends} for a, b in ((4, 9), (9, 2))]
    loaded = expect_agreement(model, *feeds)
    assert type(loaded) is Model


def test_slices_by_data_within_two_loops(widest: CpuBackend) -> None:
    """The inner loop slices by what the outer one carries, and by its own position."""
    inner = body_of(
        [
            NODE("Add", ["i", "start"], ["from"]),
            NODE("Slice", ["x", "from", "o_stop"], ["part"]),
            NODE("ReduceSum", ["part"], ["sum"], keepdims=0),
            NODE("Identity", ["go"], ["go_next"]),
        ],
        [], [value("go_next", [], BOOL), value("sum", [])],
    )  # fmt: skip
    outer = helper.make_graph(
        [
            NODE("Gather", ["stops", "o"], ["stop"], axis=0),
            NODE("Unsqueeze", ["stop", "first"], ["o_stop"]),
            NODE("Loop", ["stop", ""], ["sums"], body=inner),
            NODE("ReduceSum", ["sums"], ["total"], keepdims=0),
            NODE("Identity", ["o_go"], ["o_go_next"]),
        ],
        "outer", [value("o", [], INT64), value("o_go", [], BOOL)],
        [value("o_go_next", [], BOOL), value("total", [])],
    )  # fmt: skip
    model = model_of(
        [NODE("Size", ["stops"], ["trips"]), NODE("Loop", ["trips", ""], ["totals"], body=outer)],
        [value("x", ["m"]), value("stops", ["n"], INT64)],
        [value("totals", ["n"])],
        [stored("first", np.array([0])), stored("start", np.array([1]))],
    )
    feeds = [{"x": floats(12), "stops": np.array(s)} for s in ([3, 12, 1], [5], [2, 2, 9, 30])]
    loaded = expect_agreement(model, *feeds)
    assert type(loaded) is Model


@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_slices_between_any_bounds_that_a_loop_carries(widest: CpuBackend, step: int) -> None:
    """Bounds before the first row, after the last, in the wrong order, and open ones."""
    nodes = [
        NODE("Gather", ["begins", "i"], ["begin"]),
        NODE("Gather", ["ends", "i"], ["end"]),
        NODE("Slice", ["x", "begin", "end", "rows", "step"], ["piece"]),
        NODE("ReduceSum", ["piece"], ["sum"], keepdims=0),
        NODE("Shape", ["piece"], ["shape"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("sum", []), value("shape", [2], INT64)]
    constants = [stored("rows", np.array([0])), stored("step", np.array([step]))]
    model = model_of(
        [NODE("Loop", ["n", ""], ["sums", "shapes"], body=body_of(nodes, [], outputs, constants))],
        [value("n", [], INT64), value("x", ["m", 3]), *(
            value(name, ["k", 1], INT64) for name in ("begins", "ends")
        )],
        [value("sums", ["k"]), value("shapes", ["k", 2], INT64)],
    )  # fmt: skip
    far = np.iinfo(np.int64)
    bounds = [0, 2, 5, 6, 40, -1, -3, -40, far.min]
    # Going back, ONNX Runtime takes the largest end for an open one.
    begins, ends = np.meshgrid([*bounds, far.max], [*bounds, *([far.max] if step > 0 else [])])
    begins, ends = begins.reshape(-1, 1), ends.reshape(-1, 1)
    given = {"begins": begins, "ends": ends}
    count = np.array(begins.size)
    loaded = expect_agreement(model, *({"n": count, "x": floats(m, 3), **given} for m in (6, 1, 0)))
    assert type(loaded) is Model


FURTHEST = (2**63 - 1, 1 - 2**63, -(2**63), 2**62)


@pytest.mark.parametrize("step", FURTHEST)
def test_the_longest_steps_of_slices_within_a_loop(widest: CpuBackend, step: int) -> None:
    """They leave the first element alone. ONNX Runtime takes no such step backwards."""
    loaded = load(sliced(["starts", "ends"], [1], [step], None))
    assert type(loaded) is Model
    x = floats(2, 5)
    bounds = [(0, 5), (1, 1), (4, -1), (3, 0)]
    starts, ends = (np.array(column)[:, None] for column in zip(*bounds, strict=True))
    pieces = [x[:, start:end:step] for start, end in bounds]
    found, sums = loaded.run({"x": x, "starts": starts, "ends": ends})
    np.testing.assert_array_equal(found, np.concatenate([piece.ravel() for piece in pieces]))
    np.testing.assert_allclose(sums, [piece.sum() for piece in pieces], 1e-6)


def test_iterations_that_stack_unequal_slices(widest: CpuBackend) -> None:
    nodes = [
        NODE("Gather", ["ends", "i"], ["end"]),
        NODE("Slice", ["x", "zeros", "end"], ["piece"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("piece", ["p"])]
    model = load(
        model_of(
            [NODE("Loop", ["n", ""], ["y"], body=body_of(nodes, [], outputs))],
            [value("n", [], INT64), value("x", ["m"]), value("ends", ["k", 1], INT64)],
            [value("y", ["k", "p"])], [stored("zeros", np.array([0]))],
        )
    )  # fmt: skip
    x = floats(4)
    given = {"n": np.array(2), "x": x}
    (found,) = model.run({**given, "ends": np.array([[3], [-1]])})
    np.testing.assert_array_equal(found, [x[:3], x[:3]])
    with pytest.raises(ShapeError, match=r"shapes \[\(2,\), \(3,\)\] to be stacked"):
        model.run({**given, "ends": np.array([[3], [2]])})


def test_slices_from_a_number_that_only_begins_constant(widest: CpuBackend) -> None:
    nodes = [
        NODE("Gather", ["steps", "i"], ["step"]),
        NODE("Add", ["at", "two"], ["end"]),
        NODE("Slice", ["x", "at", "end"], ["piece"]),
        NODE("ReduceSum", ["piece"], ["sum"], keepdims=0),
        NODE("Add", ["at", "step"], ["at_next"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("at_next", [1], INT64), value("sum", [])]
    body = body_of(nodes, [value("at", [1], INT64)], outputs, [stored("two", np.array([2]))])
    model = model_of(
        [NODE("Loop", ["trips", "", "first"], ["last", "sums"], body=body)],
        [value("x", ["m"]), value("steps", ["k", 1], INT64)],
        [value("last", [1], INT64), value("sums", ["k"])],
        [stored("trips", np.int64(20)), stored("first", np.array([0]))],
    )
    steps = RNG.integers(0, 3, (20, 1))
    loaded = expect_agreement(model, *({"x": floats(m), "steps": steps} for m in (50, 12, 0)))
    assert type(loaded) is Model
