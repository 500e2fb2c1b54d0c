"""Outputs that append to an input in place, in graphs of any kind: the same bits as without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.onnx_models import parsed
from tests.graph.graphs import B, Maker, S, T, builds, graph_of
from tests.runtime.cpu.appending import address, assert_same

from ftuner.core.dim import minimum, symbol
from ftuner.core.dtype import FLOAT64, INT64
from ftuner.graph.appending import ROOM_ROWS
from ftuner.graph.ir import Graph, Value
from ftuner.inference import load
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


@builds
def _sums(g: Maker, axis: int) -> list[Value]:
    """Rows appended along an axis, with values that are read from all of them."""
    shape = [B, 3, symbol("N")]
    x = g.given("x", *shape[:axis], S, *shape[axis:], dtype=FLOAT64)
    new = g.given("new", *shape[:axis], T, *shape[axis:], dtype=FLOAT64)
    y = g.add("concat", x, g.add("negative", new), axis=axis)
    total = g.add("reduce", y, kind="sum", axes=(1, 3))
    flat = g.add("reshape", y, shape=(B * y.shape[1], y.shape[2] * y.shape[3]))
    return [y, total, g.add("exp", flat), g.add("transpose", y, perm=(3, 1, 0, 2))]


@pytest.fixture(scope="module")
def summing(widest: CpuBackend) -> list[tuple[Model, Model]]:
    graphs = [_sums(axis) for axis in range(1, 4)]
    return [
        (Model(g, widest, Options(append_in_place=True)), Model(g, widest)) for g in graphs
    ]  # fmt: skip


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from([0, 1, 1, 2, 7, 130])), max_size=14),
)
def test_any_tree_of_continuations(
    summing: list[tuple[Model, Model]],
    axis: int,
    batch: int,
    columns: int,
    tree: list[tuple[int, int]],
) -> None:
    appending, copying = summing[axis - 1]
    shape = (batch, 3, columns)
    rng = np.random.default_rng(len(tree))
    first = rng.standard_normal((*shape[:axis], 2, *shape[axis:]))
    nodes, copies = [first], [first.copy()]
    for parent, rows in tree:
        at = parent % len(nodes)
        new = rng.standard_normal((*shape[:axis], rows, *shape[axis:]))
        found = appending(x=nodes[at], new=new)
        assert_same(found, copying(x=copies[at], new=new))
        nodes.append(found["y0"])
        copies.append(np.concatenate([copies[at], -new], axis))
    for node, copy in zip(nodes, copies, strict=True):
        assert node.tobytes() == copy.tobytes()


WINDOW = 7
"""Rows that the sliding window of `_windowed` keeps."""


def _windowed(axis: int) -> Graph:
    """Rows of a sliding window along an axis, and a value that is read from these and new ones."""

    def last(g: Maker, x: Value) -> Value:
        extent = minimum(x.shape[axis], WINDOW)
        starts = tuple(n - extent if i == axis else 0 for i, n in enumerate(x.shape))
        shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
        return g.add("slice", x, starts=starts, steps=(1,) * x.rank, shape=shape)

    def body(g: Maker) -> list[Value]:
        shape = [B, 3, symbol("N")]
        x = g.given("x", *shape[:axis], S, *shape[axis:], dtype=FLOAT64)
        new = g.given("new", *shape[:axis], T, *shape[axis:], dtype=FLOAT64)
        whole = g.add("concat", last(g, x), g.add("negative", new), axis=axis)
        return [last(g, whole), g.add("reduce", whole, kind="sum", axes=(axis,))]

    return graph_of(body)


@pytest.mark.parametrize("rows", [0, 3, WINDOW, 40])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_window_slides_in_place(axis: int, rows: int, widest: CpuBackend) -> None:
    """Through the memory from its begin to its end; then the window alone moves to another."""
    model = Model(_windowed(axis), widest, Options(append_in_place=True))
    assert model.appended == {"x": "y0"}
    assert not [step for step in model.steps if "copy" in step.title]
    rng = np.random.default_rng(rows)
    shape = (2, 3, 5)
    at = rng.standard_normal((*shape[:axis], rows, *shape[axis:]))
    wanted, moved, earlier = at.copy(), 0, []
    for token in range(3 * ROOM_ROWS):
        count = 3 if token in (5, 50) else 1
        new = rng.standard_normal((*shape[:axis], count, *shape[axis:]))
        found = model(x=at, new=new)
        ends = [slice(None)] * axis
        whole = np.concatenate([wanted[(*ends, slice(-WINDOW, None))], -new], axis)
        wanted = whole[(*ends, slice(-WINDOW, None))]
        assert np.array_equal(found["y0"], wanted)
        np.testing.assert_allclose(found["y1"], whole.sum(axis), 1e-12, 1e-12)
        moved += found["y0"].base is not at.base
        at = found["y0"]
        if token % 60 == 0:
            earlier.append((at, wanted))
    for view, copy in earlier:
        assert np.array_equal(view, copy)
    assert 2 <= moved <= 5
    # A second continuation is apart.
    new = np.zeros((*shape[:axis], 1, *shape[axis:]))
    one, two = (model(x=at, new=new - n)["y0"] for n in range(2))
    assert two.base is not at.base
    assert two.base is not one.base
    assert np.array_equal(two - one, np.where(two == 1, 1.0, 0.0))
    assert np.array_equal(at, wanted)


def test_branches_of_a_file(as_default: CpuBackend) -> None:
    """Each branch of a condition on an input is a model of its own, which goes on with what the
    other one has appended."""
    text = """(bool first, float[batch, past] past, float[batch, rows] new)
            => (float[batch, total] present) {
        present = If(first) <then_branch = then () => (float[batch, total] then_y) {
            then_new = Exp(new)
            then_y = Concat<axis=1>(past, then_new)
        }, else_branch = else () => (float[batch, total] else_y) {
            else_new = Neg(new)
            else_y = Concat<axis=1>(past, else_new)
        }>
    }"""
    model = load(parsed(text, 17), append_in_place=True)
    past: Array = np.ones((2, 3), np.float32)
    wanted = past
    places = []
    for number in range(6):
        new = np.full((2, 1), number / 8, np.float32)
        first = number % 2 == 0
        past = model(first=np.array(first), past=past, new=new)["present"]
        wanted = np.concatenate([wanted, np.exp(new) if first else -new], 1)
        np.testing.assert_allclose(past, wanted, 1e-6)
        places.append(address(past))
    assert len(set(places)) == 1
    assert model.appended == {"past": "present"}


def test_ids_are_appended_too(widest: CpuBackend) -> None:
    """Integers along the last axis."""

    def body(g: Maker) -> Value:
        ids, new = g.given("ids", B, S, dtype=INT64), g.given("new", B, T, dtype=INT64)
        return g.add("concat", ids, g.add("multiply", new, new), axis=1)

    model = Model(graph_of(body), widest, Options(append_in_place=True))
    ids = np.empty((2, 0), np.int64)
    wanted = ids
    for number in range(200):
        new = np.full((2, 1), number)
        ids = model(ids=ids, new=new)["y0"]
        wanted = np.concatenate([wanted, new**2], 1)
        assert np.array_equal(ids, wanted)
