"""Loops whose bodies need numbers of each iteration: extents, ranges and counts by data."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.control_models import RNG, expect_agreement, floats
from tests.frontends.onnx_models import parsed

from ftuner.errors import AllocationError, FTunerError, ShapeError
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel


def test_numbers_that_a_loop_carries(widest: CpuBackend, compiled: list[Any]) -> None:
    """A body that slices at what it carries has other extents in each iteration, which are bound
    when they are known."""
    model = parsed("""(int64 n, float[m] x) => (int64[1] e, float[k] sums)
            <int64[1] zero = {0}, int64[1] one = {1}> {
        b, e, sums = Loop(n, "", zero, one) <body = body
                (int64 i, bool go, int64[1] begin, int64[1] end)
                => (bool go, int64[1] begin_next, int64[1] end_next, float sum) {
            piece = Slice(x, begin, end)
            sum = ReduceSum<keepdims=0>(piece)
            begin_next = Identity(end)
            grown = Add(end, one)
            end_next = Add(grown, one)
        }>
    }""")
    expect_agreement(model, *({"n": np.array(n), "x": floats(30)} for n in (3, 12, 0)))
    count = len(compiled)
    loaded = load(model)
    assert type(loaded) is Model
    assert len(compiled) == 2 * count


def test_other_extents_that_a_loop_carries(widest: CpuBackend, compiled: list[Any]) -> None:
    """A range, a filled tensor, repetitions and the largest elements, as many as an input says for
    each iteration."""
    text = """(float[5] x, int64[n] counts) => (float[q] all)
            <int64[1] first = {0}, int64 one = {1}, int64 two = {2}, int64[1] three = {3}> {
        trips = Size(counts)
        all = Loop(trips, "", none) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next) {
            count = Gather<axis=0>(counts, i)
            counted = Unsqueeze(count, first)
            range = Range(one, count, two)
            numbers = Cast<to=1>(range)
            filled = ConstantOfShape<value = float[1] {1}>(counted)
            tiled = Tile(x, counted)
            k = Min(counted, three)
            largest, at = TopK(x, k)
            row = Concat<axis=0>(numbers, filled, tiled, largest)
            c_next = Concat<axis=0>(c, row)
        }>
    }"""
    model = parsed(text, none=np.zeros(0, np.float32))
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
    model = parsed(f"""(int64 n, float[m] x, int64[k] begins) => (float[k] sums) {{
        sums = Loop(n, "") <body = body (int64 i, bool go) => (bool go, float sum)
                <int64 step = {{{step}}}> {{
            begin = Gather(begins, i)
            numbers = Range(begin, i, step)
            taken = Gather(x, numbers)
            sum = ReduceSum<keepdims=0>(taken)
        }}>
    }}""")
    loaded = load(model)
    assert type(loaded) is Model
    for n in (17, 1):
        x, begins = floats(20), RNG.integers(-3, 17, n)
        (found,) = loaded.run({"n": np.array(n), "x": x, "begins": begins})
        # ONNX Runtime 1.31.1 gives other numbers than zero for some empty ranges.
        wanted = [x[np.arange(begin, end, step)].sum() for end, begin in enumerate(begins)]
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


def reading(nodes: str, trips: int | None) -> Any:
    """A loop that adds to c what its nodes make of x and of k, which is an element of `ks`."""
    text = f"""(float[m] x, int64[n, 1] ks{", int64 trips" if trips is None else ""})
            => (float[q] y) <int64[1] zeros = {{0}}> {{
        y = Loop(trips, "", x) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next) {{
            k = Gather(ks, i)
            {nodes}
            c_next = Concat<axis=0>(c, made)
        }}>
    }}"""
    return parsed(text, **({} if trips is None else {"trips": np.int64(trips)}))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "nodes",
    ["made = Slice(x, zeros, k)", "wide = Expand(x, k) made = Reshape(wide, k)"],
    ids=["slice", "reshape"],
)
def test_no_iteration_of_a_body_that_needs_numbers(
    widest: CpuBackend, nodes: str, known: bool
) -> None:
    trips = {} if known else {"trips": np.array(0)}
    given = {"x": floats(3), "ks": np.array([[3], [1]])}
    expect_agreement(reading(nodes, 0 if known else None), {**given, **trips})


def test_pictures_are_resized_by_what_a_loop_reads(widest: CpuBackend, compiled: list[Any]) -> None:
    """Each iteration resizes a picture to the sides of its box. Channels stay as they are."""
    model = parsed("""(float[n, c, h, w] x, int64[n, 2] sides) => (float[n, 1, c] y)
            <int64[1] zeros = {0}, int64[1] two = {2}, int64[2] axes = {2, 3}> {
        all = Shape<start=0, end=1>(x)
        y = Loop(all, "") <body = body (int64 i, bool go) => (bool go, float[1, c] most) {
            picture = Gather(x, i)
            image = Unsqueeze(picture, zeros)
            side = Gather(sides, i)
            shape = Shape(image)
            kept = Slice(shape, zeros, two)
            sizes = Concat<axis=0>(kept, side)
            resized = Resize<mode="cubic">(image, "", "", sizes)
            most = ReduceMax<keepdims=0>(resized, axes)
        }>
    }""")
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
    text = """(float[n] y) => (float[n] out) {
        x = Identity(none)
        shape = Shape<start=0, end=1>(x)
        found = Loop(shape, "") <body = body (int64 i, bool go) => (bool go, float[m] wide) {
            row = Gather<axis=0>(x, i)
            most = ReduceMax<keepdims=1>(row)
            extent = Cast<to=7>(most)
            wide = Expand(row, extent)
        }>
        total = ReduceSum<keepdims=0>(found)
        out = Add(total, y)
    }"""
    model = parsed(text, none=np.zeros((0, 1), np.float32))
    expect_agreement(model, {"y": floats(3)}, {"y": floats(5)})


BEYOND: dict[str, tuple[str, type[FTunerError]]] = {
    "top k": ("made, at = TopK(x, k)", ShapeError),
    "fill": ("made = ConstantOfShape(k)", AllocationError),
    "tile": ("made = Tile(x, k)", AllocationError),
}


@pytest.mark.parametrize(("nodes", "error"), BEYOND.values(), ids=BEYOND)
def test_more_elements_than_fit_within_a_loop(
    widest: CpuBackend, nodes: str, error: type[FTunerError]
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
    model = parsed("""(float[n, m] x) => (int64[k] begins, int64[k] others)
            <int64 zero = {0}, int64 one = {1}> {
        shape = Shape(x)
        columns = Gather(shape, one)
        size = Size(x)
        begins = Range(zero, size, columns)
        others = Range(one, size, columns)
    }""")
    loaded = expect_agreement(model, *({"x": floats(n, m)} for n, m in ((2, 5), (1, 1), (7, 3))))
    assert type(loaded) is Model
    with pytest.raises(ShapeError, match=r"Range node .* steps of 0"):
        loaded.run({"x": floats(3, 0)})
