"""Loops whose iterations slice between bounds that data decides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.control_models import RNG, expect_agreement, floats
from tests.frontends.onnx_models import parsed

from ftuner.errors import ShapeError
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend


def test_bounds_as_many_as_the_axes_that_they_are_of(
    widest: CpuBackend, compiled: list[Any]
) -> None:
    """Data decides how many bounds are computed; the axes of the slice are constants, so that there
    is one."""
    model = parsed("""(int64 n, float[m] x, int64[k] starts) => (float[l] sums)
            <int64 one = {1}, int64[1] two = {2}, int64[1] zeros = {0}> {
        sums = Loop(n, "") <body = body (int64 i, bool go) => (bool go, float sum) {
            after = Add(i, one)
            at = Unsqueeze(i, zeros)
            past = Unsqueeze(after, zeros)
            begin = Slice(starts, at, past, zeros)
            end = Add(begin, two)
            piece = Slice(x, begin, end, zeros)
            sum = ReduceSum<keepdims=0>(piece)
        }>
    }""")
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
    rows = f"{'n' if trips is None else trips}, {len(axes)}"
    inputs = "".join(f", int64[{rows}] {name}" for name in bounds)
    text = f"""(float[a, b] x{inputs}) => (float[q] all, float[k] sums)
            <int64[1] flat = {{-1}}, int64 first = {{0}}> {{
        shape = Shape({bounds[0]})
        {"trips = Gather(shape, first)" if trips is None else ""}
        all, sums = Loop(trips, "", none) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next, float sum) {{
            start = Gather<axis=0>(starts, i)
            end = Gather<axis=0>(ends, i)
            piece = Slice(x, start, end, axes, steps)
            piece_flat = Reshape(piece, flat)
            sum = ReduceSum<keepdims=0>(piece)
            c_next = Concat<axis=0>(c, piece_flat)
        }}>
    }}"""
    constants = {
        "axes": np.array(axes), "steps": np.array(steps), "none": np.zeros(0, np.float32),
        "starts": np.full((64, len(axes)), 1), "ends": np.full((64, len(axes)), 30),
        "trips": np.int64(0 if trips is None else trips),
    }  # fmt: skip
    computed = {*bounds, *(["trips"] if trips is None else [])}
    return parsed(text, **{name: x for name, x in constants.items() if name not in computed})


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
    model = parsed("""(float[m] x, int64[n] stops) => (float[n] totals)
            <int64[1] first = {0}, int64[1] start = {1}> {
        trips = Size(stops)
        totals = Loop(trips, "") <body = outer (int64 o, bool o_go)
                => (bool o_go, float total) {
            stop = Gather<axis=0>(stops, o)
            o_stop = Unsqueeze(stop, first)
            sums = Loop(stop, "") <body = body (int64 i, bool go) => (bool go, float sum) {
                from = Add(i, start)
                part = Slice(x, from, o_stop)
                sum = ReduceSum<keepdims=0>(part)
            }>
            total = ReduceSum<keepdims=0>(sums)
        }>
    }""")
    feeds = [{"x": floats(12), "stops": np.array(s)} for s in ([3, 12, 1], [5], [2, 2, 9, 30])]
    loaded = expect_agreement(model, *feeds)
    assert type(loaded) is Model


@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_slices_between_any_bounds_that_a_loop_carries(widest: CpuBackend, step: int) -> None:
    """Bounds before the first row, after the last, in the wrong order, and open ones."""
    model = parsed(f"""(int64 n, float[m, 3] x, int64[k, 1] begins, int64[k, 1] ends)
            => (float[k] sums, int64[k, 2] shapes) {{
        sums, shapes = Loop(n, "") <body = body (int64 i, bool go)
                => (bool go, float sum, int64[2] shape)
                <int64[1] rows = {{0}}, int64[1] step = {{{step}}}> {{
            begin = Gather(begins, i)
            end = Gather(ends, i)
            piece = Slice(x, begin, end, rows, step)
            sum = ReduceSum<keepdims=0>(piece)
            shape = Shape(piece)
        }}>
    }}""")
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
    text = """(int64 n, float[m] x, int64[k, 1] ends) => (float[k, p] y) <int64[1] zeros = {0}> {
        y = Loop(n, "") <body = body (int64 i, bool go) => (bool go, float[p] piece) {
            end = Gather(ends, i)
            piece = Slice(x, zeros, end)
        }>
    }"""
    model = load(parsed(text))
    x = floats(4)
    given = {"n": np.array(2), "x": x}
    (found,) = model.run({**given, "ends": np.array([[3], [-1]])})
    np.testing.assert_array_equal(found, [x[:3], x[:3]])
    with pytest.raises(ShapeError, match=r"shapes \[\(2,\), \(3,\)\] to be stacked"):
        model.run({**given, "ends": np.array([[3], [2]])})


def test_slices_from_a_number_that_only_begins_constant(widest: CpuBackend) -> None:
    model = parsed("""(float[m] x, int64[k, 1] steps) => (int64[1] last, float[k] sums)
            <int64 trips = {20}, int64[1] first = {0}> {
        last, sums = Loop(trips, "", first) <body = body (int64 i, bool go, int64[1] at)
                => (bool go, int64[1] at_next, float sum) <int64[1] two = {2}> {
            step = Gather(steps, i)
            end = Add(at, two)
            piece = Slice(x, at, end)
            sum = ReduceSum<keepdims=0>(piece)
            at_next = Add(at, step)
        }>
    }""")
    steps = RNG.integers(0, 3, (20, 1))
    loaded = expect_agreement(model, *({"x": floats(m), "steps": steps} for m in (50, 12, 0)))
    assert type(loaded) is Model
