"""Graphs and models on a GPU, in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.graph.graphs import B, Maker, S, T, assert_close, reference
from tests.runtime.gpu.sessions import interpreted

from ftuner.core.dtype import FLOAT64, INT64
from ftuner.errors import (
    IndexRangeError,
    InputError,
    ShapeError,
    UnsupportedKernelError,
    UnsupportedOperatorError,
)
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.model import GpuModel
from ftuner.runtime.gpu.session import GpuSession

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


def test_any_extents(session: GpuSession) -> None:
    graph = perceptron()
    model = GpuModel(optimised(graph), session)
    rng = np.random.default_rng(0)
    for batch, steps in ((1, 3), (2, 7), (1, 1), (3, 65), (2, 0), (0, 4), (2, 7)):
        x = rng.standard_normal((batch, steps, WIDTH)).astype(np.float32)
        assert_close(model.run({"x": x}), reference(graph, {"x": x}), f"{batch} x {steps}")


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
    session = interpreted("h200")
    graph = scores()
    model = GpuModel(graph, session)
    kernels = len(session.kernels)
    rng = np.random.default_rng(0)
    for batch, rows, columns in (
        (1, 1, 1),
        (2, 3, 1),
        (3, 1, 8),
        (2, 16, 24),
        (2, 7, 16),
        (1, 40, 9),
    ):
        x = rng.standard_normal((batch, rows, WIDTH)).astype(np.float32)
        y = rng.standard_normal((batch, columns, WIDTH)).astype(np.float32)
        mask = rng.standard_normal((rows, columns)).astype(np.float32)
        feeds = {"x": x, "y": y, "mask": mask}
        assert_close(model.run(feeds), reference(graph, feeds), f"{batch} {rows} {columns}")
    assert len(session.kernels) == kernels


def test_tensors_give_tensors(h200: GpuSession) -> None:
    graph = perceptron()
    model = GpuModel(optimised(graph), h200)
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float32)
    found = model(x=torch.from_numpy(x))
    assert all(isinstance(y, torch.Tensor) for y in found.values())
    assert_close([y.numpy() for y in found.values()], reference(graph, {"x": x}))
    # Of any strides, and at any address.
    shifted = torch.empty(x.size + 1)[1:].view(x.shape).copy_(torch.from_numpy(x))
    assert_close([y.numpy() for y in model.run({"x": shifted})], reference(graph, {"x": x}))
    turned = torch.from_numpy(x).transpose(0, 1).contiguous().transpose(0, 1)
    assert_close([y.numpy() for y in model.run({"x": turned})], reference(graph, {"x": x}))


def test_an_index_out_of_range(h200: GpuSession) -> None:
    graph = lookup()
    model = GpuModel(graph, h200)
    inside = {"index": np.array([0, 6, -7, 3])}
    assert_close(model.run(inside), reference(graph, inside))
    with pytest.raises(IndexRangeError, match="out of range"):
        model.run({"index": np.array([0, 7])})
    assert_close(model.run(inside), reference(graph, inside))


def test_an_extent_that_data_tells(h200: GpuSession) -> None:
    graph = positive()
    model = GpuModel(graph, h200)
    assert len(model.parts) == 2
    for x in (np.eye(3, 4, dtype=np.float32), np.zeros((2, 2), np.float32)):
        assert_close(model.run({"x": x}), reference(graph, {"x": x}))


def test_bad_inputs(h200: GpuSession) -> None:
    model = GpuModel(optimised(perceptron()), h200)
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


def test_what_waits_is_not_captured(h200: GpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, found = GpuModel(perceptron(), h200), GpuModel(positive(), h200)
    monkeypatch.setattr("ftuner.runtime.gpu.model.is_capturing", lambda device: True)
    with pytest.raises(UnsupportedKernelError, match="x lie in the CPU's memory"):
        layers.run({"x": np.zeros((1, 2, WIDTH), np.float32)})
    with pytest.raises(UnsupportedKernelError, match="extents are in data"):
        found.run({"x": torch.zeros(2, 2)})


def test_what_has_no_kernel_is_named(h200: GpuSession) -> None:
    maker = Maker()
    x = maker.given("x", B, 4, dtype=FLOAT64)
    y = maker.given("y", 4, 4, dtype=FLOAT64)
    with pytest.raises(UnsupportedOperatorError, match=r"matmul of float64 \(1\)"):
        GpuModel(maker.made(maker.add("matmul", x, y)), h200)
