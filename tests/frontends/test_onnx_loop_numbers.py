"""Loops whose bodies need numbers of each iteration: extents, ranges and counts by data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.control_models import (
    BOOL,
    FLOAT,
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

from ftuner.errors import AllocationError, FTunerError, ShapeError
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel


def test_numbers_that_a_loop_carries(widest: CpuBackend, compiled: list[Any]) -> None:
    """A body that slices at what it carries has other extents in each iteration, which are bound
    when they are known."""
    nodes = [
        NODE("Slice", ["x", "begin", "end"], ["piece"]),
        NODE("ReduceSum", ["piece"], ["sum"], keepdims=0),
        NODE("Identity", ["end"], ["begin_next"]),
        NODE("Add", ["end", "one"], ["grown"]),
        NODE("Add", ["grown", "one"], ["end_next"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [
        value("go_next", [], BOOL), value("begin_next", [1], INT64), value("end_next", [1], INT64),
        value("sum", []),
    ]  # fmt: skip
    carried = [value("begin", [1], INT64), value("end", [1], INT64)]
    model = model_of(
        [
            NODE(
                "Loop",
                ["n", "", "zero", "one"],
                ["b", "e", "sums"],
                body=body_of(nodes, carried, outputs),
            )
        ],
        [value("n", [], INT64), value("x", ["m"])],
        [value("e", [1], INT64), value("sums", ["k"])],
        [stored("zero", np.array([0])), stored("one", np.array([1]))],
    )
    expect_agreement(model, *({"n": np.array(n), "x": floats(30)} for n in (3, 12, 0)))
    count = len(compiled)
    loaded = load(model)
    assert type(loaded) is Model
    assert len(compiled) == 2 * count


def test_other_extents_that_a_loop_carries(widest: CpuBackend, compiled: list[Any]) -> None:
    """A range, a filled tensor, repetitions and the largest elements, as many as an input says for
    each iteration."""
    nodes = [
        NODE("Gather", ["counts", "i"], ["count"], axis=0),
        NODE("Unsqueeze", ["count", "first"], ["counted"]),
        NODE("Range", ["one", "count", "two"], ["range"]),
        NODE("Cast", ["range"], ["numbers"], to=FLOAT),
        NODE("ConstantOfShape", ["counted"], ["filled"], value=stored("v", np.ones(1, np.float32))),
        NODE("Tile", ["x", "counted"], ["tiled"]),
        NODE("Min", ["counted", "three"], ["k"]),
        NODE("TopK", ["x", "k"], ["largest", "at"]),
        NODE("Concat", ["numbers", "filled", "tiled", "largest"], ["row"], axis=0),
        NODE("Concat", ["c", "row"], ["c_next"], axis=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["p"])]
    body = body_of(nodes, [value("c", ["p"])], outputs)
    model = model_of(
        [
            NODE("Size", ["counts"], ["trips"]),
            NODE("Loop", ["trips", "", "none"], ["all"], body=body),
        ],
        [value("x", [5]), value("counts", ["n"], INT64)],
        [value("all", ["q"])],
        [
            stored("first", np.array([0])), stored("one", np.int64(1)), stored("two", np.int64(2)),
            stored("three", np.array([3])), stored("none", np.zeros(0, np.float32)),
        ],
    )  # fmt: skip
    feeds = [{"x": floats(5), "counts": np.array(c)} for c in ([3, 0, 1, 8], [2], [7, 7, 2, 9, 4])]
    loaded = expect_agreement(model, *feeds)
    assert type(loaded) is Model
    count = len(compiled)
    for given in feeds:
        loaded.run(given)
    assert len(compiled) == count
    with pytest.raises(ShapeError, match="extents"):
        loaded.run({"x": floats(5), "counts": np.array([2, -1])})


@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_ranges_between_numbers_that_a_loop_carries(widest: CpuBackend, step: int) -> None:
    nodes = [
        NODE("Gather", ["begins", "i"], ["begin"]),
        NODE("Range", ["begin", "i", "step"], ["numbers"]),
        NODE("Gather", ["x", "numbers"], ["taken"]),
        NODE("ReduceSum", ["taken"], ["sum"], keepdims=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    body = body_of(
        nodes, [], [value("go_next", [], BOOL), value("sum", [])], [stored("step", np.int64(step))]
    )
    model = model_of(
        [NODE("Loop", ["n", ""], ["sums"], body=body)],
        [value("n", [], INT64), value("x", ["m"]), value("begins", ["k"], INT64)],
        [value("sums", ["k"])],
    )
    loaded = load(model)
    assert type(loaded) is Model
    for n in (17, 1):
        x, begins = floats(20), RNG.integers(-3, 17, n)
        (found,) = loaded.run({"n": np.array(n), "x": x, "begins": begins})
        # ONNX Runtime 1.31.1 gives other numbers than zero for some empty ranges.
        wanted = [x[np.arange(begin, end, step)].sum() for end, begin in enumerate(begins)]
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


def reading(nodes: Sequence[Any], trips: int | None) -> Any:
    """A loop that adds to c what its nodes make of x and of k, which is an element of `ks`."""
    nodes = [
        NODE("Gather", ["ks", "i"], ["k"]),
        *nodes,
        NODE("Concat", ["c", "made"], ["c_next"], axis=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    body = body_of(nodes, [value("c", ["p"])], [value("go_next", [], BOOL), value("c_next", ["p"])])
    inputs = [value("x", ["m"]), value("ks", ["n", 1], INT64)]
    known = [] if trips is None else [stored("trips", np.int64(trips))]
    return model_of(
        [NODE("Loop", ["trips", "", "x"], ["y"], body=body)],
        inputs if known else [*inputs, value("trips", [], INT64)], [value("y", ["q"])],
        [*known, stored("zeros", np.array([0]))],
    )  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "nodes",
    [
        [NODE("Slice", ["x", "zeros", "k"], ["made"])],
        [NODE("Expand", ["x", "k"], ["wide"]), NODE("Reshape", ["wide", "k"], ["made"])],
    ],
    ids=["slice", "reshape"],
)
def test_no_iteration_of_a_body_that_needs_numbers(
    widest: CpuBackend, nodes: Sequence[Any], known: bool
) -> None:
    trips = {} if known else {"trips": np.array(0)}
    given = {"x": floats(3), "ks": np.array([[3], [1]])}
    expect_agreement(reading(nodes, 0 if known else None), {**given, **trips})


def test_pictures_are_resized_by_what_a_loop_reads(widest: CpuBackend, compiled: list[Any]) -> None:
    """Each iteration resizes a picture to the sides of its box. Channels stay as they are."""
    nodes = [
        NODE("Gather", ["x", "i"], ["picture"]),
        NODE("Unsqueeze", ["picture", "zeros"], ["image"]),
        NODE("Gather", ["sides", "i"], ["side"]),
        NODE("Shape", ["image"], ["shape"]),
        NODE("Slice", ["shape", "zeros", "two"], ["kept"]),
        NODE("Concat", ["kept", "side"], ["sizes"], axis=0),
        NODE("Resize", ["image", "", "", "sizes"], ["resized"], mode="cubic"),
        NODE("ReduceMax", ["resized", "axes"], ["most"], keepdims=0),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("most", [1, "c"])]
    model = model_of(
        [
            NODE("Shape", ["x"], ["all"], start=0, end=1),
            NODE("Loop", ["all", ""], ["y"], body=body_of(nodes, [], outputs)),
        ],
        [value("x", ["n", "c", "h", "w"]), value("sides", ["n", 2], INT64)],
        [value("y", ["n", 1, "c"])],
        [
            stored("zeros", np.array([0])),
            stored("two", np.array([2])),
            stored("axes", np.array([2, 3])),
        ],
    )
    loaded = load(model)
    assert not isinstance(loaded, SpecializedModel)
    count = len(compiled)
    feeds = [
        {"x": floats(n, 3, h, w), "sides": np.random.default_rng(n).integers(1, 20, (n, 2))}
        for n, h, w in ((2, 5, 6), (9, 4, 7), (1, 12, 3))
    ]
    for given in feeds:
        loaded.run(given)
    assert len(compiled) == count
    expect_agreement(model, *feeds)


def test_no_iteration_over_a_tensor_without_elements(widest: CpuBackend) -> None:
    """A first iteration would read row 0, which does not exist, and make a tensor of its extent."""
    nodes = [
        NODE("Gather", ["x", "i"], ["row"], axis=0),
        NODE("ReduceMax", ["row"], ["most"], keepdims=1),
        NODE("Cast", ["most"], ["extent"], to=INT64),
        NODE("Expand", ["row", "extent"], ["wide"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    body = body_of(nodes, [], [value("go_next", [], BOOL), value("wide", ["m"])])
    model = model_of(
        [
            NODE("Identity", ["none"], ["x"]),
            NODE("Shape", ["x"], ["shape"], start=0, end=1),
            NODE("Loop", ["shape", ""], ["found"], body=body),
            NODE("ReduceSum", ["found"], ["total"], keepdims=0),
            NODE("Add", ["total", "y"], ["out"]),
        ],
        [value("y", ["n"])],
        [value("out", ["n"])],
        [stored("none", np.zeros((0, 1), np.float32))],
    )
    expect_agreement(model, {"y": floats(3)}, {"y": floats(5)})


BEYOND: dict[str, tuple[list[Any], type[FTunerError]]] = {
    "top k": ([NODE("TopK", ["x", "k"], ["made", "at"])], ShapeError),
    "fill": ([NODE("ConstantOfShape", ["k"], ["made"])], AllocationError),
    "tile": ([NODE("Tile", ["x", "k"], ["made"])], AllocationError),
}


@pytest.mark.parametrize(("nodes", "error"), BEYOND.values(), ids=BEYOND)
def test_more_elements_than_fit_within_a_loop(
    widest: CpuBackend, nodes: Sequence[Any], error: type[FTunerError]
) -> None:
    model = reading(nodes, None)
    given = {"x": floats(3), "ks": np.array([[3], [1]]), "trips": np.array(2)}
    loaded = expect_agreement(model, given)
    assert type(loaded) is Model
    with pytest.raises(error):
        loaded.run({**given, "ks": np.array([[3], [2**61]])})
    with pytest.raises(ShapeError, match="expected zero or more"):
        loaded.run({**given, "ks": np.array([[3], [-1]])})


def test_ranges_with_steps_of_an_extent(widest: CpuBackend) -> None:
    """Where rows begin, as torch's exporter writes EmbeddingBag of a matrix of indices."""
    nodes = [
        NODE("Shape", ["x"], ["shape"]),
        NODE("Gather", ["shape", "one"], ["columns"]),
        NODE("Size", ["x"], ["size"]),
        NODE("Range", ["zero", "size", "columns"], ["begins"]),
        NODE("Range", ["one", "size", "columns"], ["others"]),
    ]
    names = ["begins", "others"]
    model = model_of(
        nodes, [value("x", ["n", "m"])], [value(y, ["k"], INT64) for y in names],
        [stored("zero", np.int64(0)), stored("one", np.int64(1))],
    )  # fmt: skip
    loaded = expect_agreement(model, *({"x": floats(n, m)} for n, m in ((2, 5), (1, 1), (7, 3))))
    assert type(loaded) is Model
    with pytest.raises(ShapeError, match=r"Range node .* steps of 0"):
        loaded.run({"x": floats(3, 0)})
