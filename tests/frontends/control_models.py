"""Models with control flow, and their agreement with ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

from ftuner.frontends.onnx.importer import import_model
from ftuner.inference import Model, load
from ftuner.runtime.reference import run_reference

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)


def expect_agreement(model: Any, *feeds: dict[str, Any]) -> Model:
    """That ftuner, compiled and by references, gives what ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    loaded = load(model)
    for given in feeds:
        wanted = peer.run(None, given)
        for found, x in zip(loaded.run(given), wanted, strict=True):
            # Of no iteration, ONNX Runtime has extents of 0 for all that it has no numbers for.
            assert found.shape == x.shape or (found.ndim == x.ndim and len(found) == len(x) == 0)
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found.reshape(x.shape), x, 1e-4, 1e-5)
    if type(loaded) is Model:
        graph = import_model(model).graph
        for found, x in zip(run_reference(graph, [*feeds[-1].values()]), wanted, strict=True):
            np.testing.assert_allclose(found.reshape(x.shape), x, 1e-4, 1e-5)
    return loaded


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def growing() -> Any:
    """A loop that carries a tensor that grows, and stacks the sums of what it has so far."""
    return parsed("""(int64 n, float[a, 3] first, float[b, 3] w)
            => (float[q, 3] last, float[k] sums) {
        last, sums = Loop(n, "", first) <body = body (int64 i, bool go, float[p, 3] c)
                => (bool go, float[p, 3] c_next, float sum) {
            c_next = Concat<axis=0>(c, w)
            sum = ReduceSum<keepdims=0>(c_next)
        }>
    }""")
