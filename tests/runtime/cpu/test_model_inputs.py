"""Wrong inputs of a model, and indices out of range, are named; others are taken as they are."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.graph.graphs import (
    Maker,
    S,
    T,
    assert_close,
    builds,
    inputs_of,
    reference,
    selected,
    selection,
)
from tests.runtime.cpu.small_models import LAYER, assert_right, small

from ftuner.core.dtype import INT32, INT64
from ftuner.errors import IndexRangeError, InputError, ShapeError
from ftuner.graph.ir import Value
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model, TensorSpec

Array = npt.NDArray[Any]


def test_specifications(sums: Model) -> None:
    assert sums.inputs == [TensorSpec("x", "float32", ("B", "S")),
                           TensorSpec("y", "float32", ("B", "S"))]  # fmt: skip
    assert sums.outputs == [TensorSpec("y0", "float32", ("B", "S")),
                            TensorSpec("y1", "float32", ("B",))]  # fmt: skip


def test_wrong_inputs_are_named(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    for feeds, text in (
        ({"x": x}, "missing: y"),
        ({"x": x, "y": x, "z": x}, "unknown: z"),
        ({"x": x, "z": x}, r"missing: y; unknown: z"),
        ({}, "missing: x, y"),
        ({"x": x.astype(np.float64), "y": x}, "x has dtype float64.*float32"),
        ({"x": x.astype(">f4"), "y": x}, "x has dtype >f4"),
        ({"x": x.astype(np.int32), "y": x}, "x has dtype int32"),
        ({"x": x[0], "y": x}, r"x is \(3,\)"),
        ({"x": x, "y": x[None]}, r"y is \(1, 2, 3\)"),
        ({"x": [[1.0]], "y": x}, "x is a list"),
        ({"x": None, "y": x}, "x is a NoneType"),
        ({"x": x.astype(object), "y": x}, "dtype object"),
    ):
        with pytest.raises(InputError, match=text):
            sums.run(feeds)
    assert_right(sums, small(), B=2, S=3)


def test_extents_that_contradict_each_other(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    for other in ((2, 4), (3, 3), (1, 3), (0, 3)):
        with pytest.raises(ShapeError, match="elsewhere"):
            sums.run({"x": x, "y": np.ones(other, np.float32)})
    assert_right(sums, small(), B=2, S=3)


def test_extents_that_contradict_the_model(encoder: Model) -> None:
    inputs = inputs_of(LAYER, {"B": 2, "S": 3})
    with pytest.raises(ShapeError, match="24"):
        encoder.run({**inputs, "x": np.ones((2, 3, 23), np.float32)})
    assert_right(encoder, LAYER, B=2, S=3)


class Own(np.ndarray[Any, Any]):
    """An array of a library's own type."""


def lying(x: Array) -> dict[str, Array]:
    """The same elements in other ways."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    bytes_ = np.zeros(x.nbytes + 1, np.uint8)
    bytes_[1:] = np.frombuffer(x.tobytes(), np.uint8)
    constant = x.copy()
    constant.flags.writeable = False
    return {
        "contiguous": x,
        "by columns": np.asfortranarray(x),
        "strided": wide[::2, ::3],
        "backwards": x[::-1, ::-1].copy()[::-1, ::-1],
        "misaligned": bytes_[1:].view(x.dtype).reshape(x.shape),
        "read-only": constant,
        "a subclass": x.view(Own),
        "repeated": np.broadcast_to(x[:1], x.shape),
    }


@pytest.mark.parametrize("name", list(lying(np.ones((2, 3), np.float32))))
def test_inputs_that_lie_in_other_ways(sums: Model, name: str) -> None:
    inputs = inputs_of(small(), {"B": 5, "S": 7})
    x = lying(inputs["x"])[name]
    before = np.array(x)
    found = sums.run({"x": x, "y": inputs["y"]})
    assert_close(found, reference(small(), {"x": np.asarray(before), "y": inputs["y"]}))
    assert np.array_equal(x, before)
    assert type(found[0]) is np.ndarray


def test_one_array_as_several_inputs(sums: Model) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_close(sums.run({"x": x, "y": x}), [np.exp(2 * x), 2 * x.sum(1)])


def test_calls_by_name(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    found = sums(x=x, y=x)
    assert list(found) == ["y0", "y1"]
    assert np.array_equal(found["y1"], [6, 6])


# Indices.


@builds
def lookups(g: Maker) -> list[Value]:
    """Two gathers in two steps, a third one that reads what the first one gave."""
    x = g.given("x", S)
    g.where = "first"
    first = g.add("gather", x, g.given("i", T, dtype=INT64), axis=0, node="first")
    second = g.add("gather", x, g.given("j", T, dtype=INT32), axis=0, node="second")
    return [first, second]


def test_indices_out_of_range(widest: CpuBackend) -> None:
    graph = lookups()
    model = Model(graph, widest)
    x, right = np.arange(5, dtype=np.float32), np.array([0, -5, 4])
    for threads in (1, 2):
        widest.threads = threads
        for wrong in (5, -6, 2**31 - 1):
            bad = np.array([0, 1, wrong])
            found = f"first: an index is out of range: {wrong}, along an axis of 5 elements"
            with pytest.raises(IndexRangeError, match=found):
                model.run({"x": x, "i": bad, "j": right.astype(np.int32)})
            assert_close(model.run({"x": x, "i": right, "j": right.astype(np.int32)}),
                         [x[right], x[right]])  # fmt: skip
            with pytest.raises(IndexError, match="second"):
                model.run({"x": x, "i": right, "j": bad.astype(np.int32)})
            assert_close(model.run({"x": x, "i": right, "j": right.astype(np.int32)}),
                         [x[right], x[right]])  # fmt: skip


def test_two_indices_out_of_range_are_forgotten_together(widest: CpuBackend) -> None:
    graph = lookups()
    model = Model(graph, widest)
    x, right, bad = np.arange(5, dtype=np.float32), np.array([1, 2]), np.array([7, 0])
    with pytest.raises(IndexRangeError):
        model.run({"x": x, "i": bad, "j": bad.astype(np.int32)})
    found = model.run({"x": x, "i": right, "j": right.astype(np.int32)})
    assert_close(found, [x[right], x[right]])


def test_nothing_has_no_index(widest: CpuBackend) -> None:
    """It is refused before anything is read: an array without elements has no address to read."""
    model = Model(lookups(), widest)
    none = np.zeros(0, np.float32)
    with pytest.raises(ShapeError, match=r"first.*no element along axis 0"):
        model.run({"x": none, "i": np.zeros(1, np.int64), "j": np.zeros(1, np.int32)})
    found = model.run({"x": none, "i": np.zeros(0, np.int64), "j": np.zeros(0, np.int32)})
    assert [y.shape for y in found] == [(0,), (0,)]


def test_indices_with_extents_that_the_data_lacks(widest: CpuBackend) -> None:
    """Nothing is read or written outside the data, however long the axes of indices are."""
    model = Model(selection(), widest)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for columns in (3, 3_000_000):
        at, updates = np.zeros((2, columns), np.int64), np.ones((2, columns), np.float32)
        with pytest.raises(ShapeError, match="more indices than elements along axis 1"):
            model.run({"x": x, "at": at, "updates": updates})
    at, updates = np.array([[4], [-4]]), np.full((2, 1), 7, np.float32)
    assert_close(model.run({"x": x, "at": at, "updates": updates}), selected(x, at, updates))
