"""Graphs and models on a GPU, in the interpreter."""

import numpy as np
import pytest
import torch
from tests.graph.graphs import B, Maker, S, T, assert_close, grown, reference, selected, selection
from tests.graph.view_graphs import view_graph
from tests.runtime.gpu.backends import assert_runs, interpreted

from ftuner.core.dtype import FLOAT64, INT64
from ftuner.errors import (
    AllocationError,
    IndexRangeError,
    InputError,
    ShapeError,
    UnsupportedKernelError,
    UnsupportedOperatorError,
)
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
WIDTH = 24


def perceptron() -> Graph:
    maker = Maker()
    x = maker.given("x", B, S, WIDTH)
    y = maker.linear(maker.add("gelu", maker.linear(x, 40)), WIDTH)
    y = maker.add("norm", maker.add("add", y, x), maker.weight(WIDTH), maker.weight(WIDTH), axis=2,
                  epsilon=1e-5, rms=False)  # fmt: skip
    return maker.made(y, maker.add("softmax", y, axis=2, log=False))


def lookup() -> Graph:
    maker = Maker()
    index = maker.given("index", S, dtype=INT64)
    return maker.made(maker.add("gather", maker.weight(7, WIDTH), index, axis=0))


def positive() -> Graph:
    """Where a tensor is not zero, doubled: its extent is in the data."""
    maker = Maker()
    found = maker.add("non_zero", maker.given("x", S, T), count="N")
    return maker.made(maker.add("add", found, found))


def test_any_extents(backend: GpuBackend) -> None:
    graph = perceptron()
    extents = (1, 3), (2, 7), (1, 1), (3, 65), (2, 0), (0, 4), (2, 7)
    assert_runs(Model(optimised(graph), backend), graph, "BS", *extents)


def scores() -> Graph:
    """Products whose operands lie at strides that only extents tell, and attention."""
    maker = Maker()
    x, y = maker.given("x", B, S, WIDTH), maker.given("y", B, T, WIDTH)
    turned = maker.add("transpose", y, perm=(0, 2, 1))
    scores = maker.add("matmul", x, turned)
    seen = maker.add("attention", x, turned, y, maker.given("mask", S, T), scale=0.2)
    return maker.made(scores, maker.add("matmul", scores, y), seen)


def test_no_extents_need_another_kernel() -> None:
    """What products and attention may launch is there when the graph is."""
    backend = interpreted("h200")
    graph = scores()
    model = Model(graph, backend)
    kernels = len(backend.kernels)
    extents = (1, 1, 1), (2, 3, 1), (3, 1, 8), (2, 16, 24), (2, 7, 16), (1, 40, 9)
    assert_runs(model, graph, "BST", *extents)
    assert len(backend.kernels) == kernels


def test_sums_of_no_elements(backend: GpuBackend) -> None:
    """They are zeros, to which epilogues are applied; all keys weigh as much where scores are
    sums of nothing."""
    maker = Maker()
    x, y, z = maker.given("x", B, S, T), maker.given("y", B, T, S), maker.given("z", T, B)
    products = [maker.add("matmul", x, y), maker.add("matmul", x, z)]
    products.append(maker.add("matmul", x, maker.add("transpose", x, perm=(0, 2, 1))))
    products.append(maker.add("sigmoid", maker.add("matmul", x, z)))
    deep = maker.add("attention", x, y, maker.given("v", B, S, 8), scale=0.5)
    q = maker.given("q", B, S, 8)
    wide = maker.add("attention", q, maker.given("k", B, 8, T), maker.given("w", B, T, 8),
                     maker.given("mask", S, T), scale=0.5)  # fmt: skip
    graph = maker.made(*products, deep, wide)
    extents = (2, 5, 3), (2, 5, 0), (3, 16, 0), (2, 5, 3), (1, 1, 0)
    assert_runs(Model(graph, backend), graph, "BST", *extents)


def test_views_that_some_extents_have_no_room_for(backend: GpuBackend) -> None:
    """Kernels are looked for at extents that may contradict the graph."""
    maker = Maker()
    x = maker.given("x", T, WIDTH)
    last = maker.add("slice", x, starts=(T - 7, 0), steps=(1, 1), shape=(7, WIDTH))
    rest = maker.add("slice", x, starts=(T - 9, 0), steps=(1, 1), shape=(T - 9, WIDTH))
    graph = maker.made(maker.linear(last, 8), maker.linear(rest, 8))
    assert_runs(Model(graph, backend), graph, "T", (10,), (18,))


@pytest.mark.parametrize("seed", [4])
def test_operators_behind_views(h200: GpuBackend, seed: int) -> None:
    """As on a CPU, with few seeds: the interpreter is slow."""
    graph, extents = view_graph(seed, shapes=3, largest=5)
    values = [tuple(known.values()) for known in extents]
    assert_runs(Model(optimised(graph), h200), graph, [*extents[0]], *values)


def test_views_that_run_backwards(backend: GpuBackend) -> None:
    """Tensors have no negative strides: what runs backwards is copied, each time anew."""
    maker = Maker()
    x = maker.given("x", B, 1, S, WIDTH)

    def backwards(value: Value, axis: int) -> Value:
        shape = value.shape
        starts = tuple(n - 1 if i == axis else 0 for i, n in enumerate(shape))
        steps = tuple(-1 if i == axis else 1 for i in range(len(shape)))
        return maker.add("slice", value, starts=starts, steps=steps, shape=shape)

    kept = maker.add("exp", x)
    graph = maker.made(
        maker.linear(backwards(x, 2), 8), maker.linear(backwards(kept, 3), 8), kept,
        maker.add("matmul", x, maker.add("transpose", backwards(x, 2), perm=(0, 1, 3, 2))),
        maker.add("attention", backwards(x, 0), maker.add("transpose", x, perm=(0, 1, 3, 2)),
                  backwards(kept, 2), scale=0.1),
    )  # fmt: skip
    extents = (2, 5), (1, 1), (2, 5), (0, 3), (2, 0), (2, 5)
    assert_runs(Model(graph, backend), graph, "BS", *extents)


def test_tensors_give_tensors(h200: GpuBackend) -> None:
    graph = perceptron()
    model = Model(optimised(graph), h200)
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float32)
    found = model(x=torch.from_numpy(x))
    assert all(isinstance(y, torch.Tensor) for y in found.values())
    assert_close([y.numpy() for y in found.values()], reference(graph, {"x": x}))
    # Of any strides, and at any address.
    shifted = torch.empty(x.size + 1)[1:].view(x.shape).copy_(torch.from_numpy(x))
    assert_close([y.numpy() for y in model.run({"x": shifted})], reference(graph, {"x": x}))
    turned = torch.from_numpy(x).transpose(0, 1).contiguous().transpose(0, 1)
    assert_close([y.numpy() for y in model.run({"x": turned})], reference(graph, {"x": x}))


def test_an_index_out_of_range(h200: GpuBackend) -> None:
    graph = lookup()
    model = Model(graph, h200)
    inside = {"index": np.array([0, 6, -7, 3])}
    assert_close(model.run(inside), reference(graph, inside))
    with pytest.raises(IndexRangeError, match="out of range"):
        model.run({"index": np.array([0, 7])})
    assert_close(model.run(inside), reference(graph, inside))


def test_indices_with_extents_that_the_data_lacks(h200: GpuBackend) -> None:
    model = Model(selection(), h200)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    at, updates = np.zeros((2, 3), np.int64), np.ones((2, 3), np.float32)
    with pytest.raises(ShapeError, match="more indices than elements along axis 1"):
        model.run({"x": x, "at": at, "updates": updates})
    at, updates = np.array([[4], [-4]]), np.full((2, 1), 7, np.float32)
    assert_close(model.run({"x": x, "at": at, "updates": updates}), selected(x, at, updates))


@pytest.mark.parametrize("n", [1 << 10, 1 << 13, 1 << 16])
def test_results_that_no_memory_holds(h200: GpuBackend, n: int) -> None:
    graph = grown()
    model = Model(graph, h200)
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    with pytest.raises(AllocationError, match="no memory"):
        model.run({"x": x, "n": np.zeros(n, np.int64)})
    few = {"x": x, "n": np.zeros(2, np.int64)}
    assert_close(model.run(few), reference(graph, few))


def test_an_extent_that_data_tells(h200: GpuBackend) -> None:
    graph = positive()
    model = Model(graph, h200)
    # The node reads the input: no program comes before it.
    assert len(model.parts) == 1
    for x in (np.eye(3, 4, dtype=np.float32), np.zeros((2, 2), np.float32)):
        assert_close(model.run({"x": x}), reference(graph, {"x": x}))


def test_bad_inputs(h200: GpuBackend) -> None:
    model = Model(optimised(perceptron()), h200)
    x = np.zeros((1, 2, WIDTH), np.float32)
    with pytest.raises(InputError, match="missing: x"):
        model.run({})
    with pytest.raises(InputError, match="float64"):
        model.run({"x": x.astype(np.float64)})
    with pytest.raises(InputError, match="the model takes"):
        model.run({"x": x[0]})
    with pytest.raises(ShapeError):
        model.run({"x": x[:, :, 1:]})
    with pytest.raises(InputError, match="a str"):
        model.run({"x": "text"})


def test_what_waits_is_not_captured(h200: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, found = Model(perceptron(), h200), Model(positive(), h200)
    monkeypatch.setattr("ftuner.runtime.gpu.boundary.is_capturing", lambda device: True)
    with pytest.raises(UnsupportedKernelError, match="x lie in the CPU's memory"):
        layers.run({"x": np.zeros((1, 2, WIDTH), np.float32)})
    with pytest.raises(UnsupportedKernelError, match="the host reads data"):
        found.run({"x": torch.zeros(2, 2)})


def test_what_has_no_kernel_is_named(h200: GpuBackend) -> None:
    maker = Maker()
    x = maker.given("x", B, 4, dtype=FLOAT64)
    y = maker.given("y", 4, 4, dtype=FLOAT64)
    with pytest.raises(UnsupportedOperatorError, match=r"matmul of float64 \(1\)"):
        Model(maker.made(maker.add("matmul", x, y)), h200)


def test_attention_with_a_soft_cap(h200: GpuBackend) -> None:
    maker = Maker()
    x, k, v = (maker.given(name, B, n, 8) for name, n in (("x", S), ("k", T), ("v", T)))
    turned = maker.add("transpose", k, perm=(0, 2, 1))
    graph = maker.made(maker.add("attention", x, turned, v, scale=6.0, softcap=1.5))
    assert_runs(Model(graph, h200), graph, "BST", (2, 5, 7), (1, 1, 40), (3, 33, 2))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_sinks(h200: GpuBackend, masked: bool) -> None:
    """Of heads that share keys and values, as in GPT-OSS."""
    maker = Maker()
    q = maker.given("q", B, 2, 3, S, 8)
    k, v = (maker.given(name, B, 2, 1, T, 8) for name in "kv")
    turned = maker.add("transpose", k, perm=(0, 1, 2, 4, 3))
    masks = [maker.given("mask", S, T)] if masked else []
    sinks = maker.given("sinks", 2, 3, 1, 1)
    found = maker.add("attention", q, turned, v, *masks, sinks, scale=2.0, sinks=True)
    graph = maker.made(found)
    extents = [x for x in ((2, 5, 7), (1, 1, 40), (3, 33, 2)) for _ in range(2)]
    assert_runs(Model(graph, h200), graph, "BST", *extents)
