"""Weights that several models share: what is packed once, what is not, and when memory is freed."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed
from tests.graph.graphs import Array, Maker, S, T

from ftuner.core.dtype import FLOAT64, INT64
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.inference import load
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu import step_kind as contract
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.specialization import SpecializedModel

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Array]]:
    """The weights that are packed from now on."""
    found: list[weakref.ref[Array]] = []
    real = contract.pack_several

    def packing(*given: Any) -> Any:
        panels = real(*given)
        found.append(weakref.ref(panels.packed))
        return panels

    monkeypatch.setattr(contract, "pack_several", packing)
    return found


def network() -> bytes:
    """Convolutions of each kind, a recurrent layer and products, one of them by a weight that a
    pass makes, and a sum along an axis that is an input."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = {
        "first": weight(16, 3, 7, 7), "second": weight(16, 16, 3, 3), "third": weight(16, 16, 1, 1),
        "wide": weight(64, 64), "scale": weight(64), "w": weight(1, 32, 16), "r": weight(1, 32, 8),
    }  # fmt: skip
    text = """(float[1, 3, rows, columns] x, int64[1] axes) => (float[?] y)
            <int64[3] tokens = {0, -1, 16}, int64[2] shape = {-1, 64}> {
        a = Conv<kernel_shape=[7, 7], strides=[2, 2], pads=[3, 3, 3, 3]>(x, first)
        b = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(a, second)
        c = Conv(b, third)
        d = Reshape(c, tokens)
        e = LSTM<hidden_size=8>(d, w, r)
        f = Reshape(e, shape)
        g = MatMul(f, wide)
        h = Mul(g, scale)  # A pass scales the weight.
        y = ReduceSum<keepdims=0>(h, axes)
    }"""
    return parsed(text, 17, **constants).SerializeToString()


def test_models_for_other_numbers_pack_nothing_again(packed: list[weakref.ref[Array]]) -> None:
    data = network()
    model = load(data, threads=1)
    assert isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
    counts, used = [], []
    for axis in (0, 1, -1):
        feeds = {"x": x, "axes": np.array([axis], np.int64)}
        np.testing.assert_allclose(
            model.run(feeds)[0], peer.run(["y"], feeds)[0], rtol=1e-3, atol=1e-4
        )
        counts.append(len(packed))
        used.append(model._current.weights_bytes)
    kinds = [step.kind for step in model.steps]
    assert {"line_winograd", "winograd", "recurrence", "product"} <= set(kinds)
    # The first model packs one weight for each step; the others pack none.
    assert counts[0] >= 6
    assert counts == counts[:1] * 3
    assert used == used[:1] * 3
    assert all(x() is not None for x in packed)
    del model
    gc.collect()
    assert not any(x() is not None for x in packed)


def product(weight: Array, wider: bool = False) -> Graph:
    g = Maker()
    dtype = {"dtype": FLOAT64} if weight.dtype == np.float64 else {}
    x = g.given("x", S, len(weight), **dtype)
    y = g.add("matmul", x, g.constant(weight))
    return optimised(g.made(g.add("exp", y) if wider else y))


def experts(weight: Array, transposed: bool) -> Graph:
    g = Maker()
    x = g.given("x", S, weight.shape[2 if transposed else 1])
    index = g.given("index", S, T, dtype=INT64)
    return optimised(g.made(g.add("expert_matmul", x, g.constant(weight), index,
                                  transposed=transposed, node="experts")))  # fmt: skip


W = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
E = np.random.default_rng(3).standard_normal((4, 32, 32)).astype(np.float32)
SAME: dict[str, tuple[Callable[[], Graph], Callable[[], Graph]]] = {
    "one product": (lambda: product(W), lambda: product(W.copy())),
    "another epilogue": (lambda: product(W), lambda: product(W, wider=True)),
    "experts": (lambda: experts(E, False), lambda: experts(E.copy(), False)),
}
OTHER: dict[str, tuple[Callable[[], Graph], Callable[[], Graph]]] = {
    "other elements": (lambda: product(W), lambda: product(W + 1)),
    "another order": (lambda: product(W), lambda: product(W.T.copy())),
    "another shape": (lambda: product(W), lambda: product(W.reshape(32, 128))),
    "another dtype": (lambda: product(W.view(np.float64)), lambda: product(W[:, :32])),
    "another order of experts": (lambda: experts(E, False), lambda: experts(E, True)),
}


@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_what_is_packed_once(
    widest: CpuBackend, packed: list[weakref.ref[Array]], name: str
) -> None:
    shared = SharedWeights()
    first, second = {**SAME, **OTHER}[name]
    models = [Model(make(), widest, Options(1, shared=shared)) for make in (first, second)]
    assert len(packed) == (1 if name in SAME else 2)
    for model, make in zip(models, (first, second), strict=True):
        inputs = {
            v.name: np.ones([3 if d in (S, T) else d for d in v.shape], v.dtype.name)
            for v in make().inputs
        }
        alone = Model(make(), widest, Options(1))
        for one, other in zip(model.run(inputs), alone.run(inputs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_weight_lives_as_long_as_a_model(
    widest: CpuBackend, packed: list[weakref.ref[Array]]
) -> None:
    shared = SharedWeights()
    models = [Model(product(W), widest, Options(1, shared=shared)) for _ in range(2)]
    x = np.ones((5, 64), np.float32)
    wanted = models[0].run({"x": x})[0]
    del models[0]
    gc.collect()
    assert packed[0]() is not None
    np.testing.assert_array_equal(models[0].run({"x": x})[0], wanted)
    models.clear()
    gc.collect()
    assert packed[0]() is None
    # What was freed is made again.
    again = Model(product(W), widest, Options(1, shared=shared))
    np.testing.assert_array_equal(again.run({"x": x})[0], wanted)
    assert len(packed) == 2


def test_arrays_that_are_gone_leave_no_digest() -> None:
    shared = SharedWeights()
    made: list[Array] = []

    def make() -> Array:
        made.append(np.zeros(3))
        return made[-1]

    for number in range(20):
        # A new array may have the identity of one that is gone.
        assert shared.get(np.full(8, number), "form", make) is made[-1]
    assert len(made) == 20
    gc.collect()
    assert not shared._digests
