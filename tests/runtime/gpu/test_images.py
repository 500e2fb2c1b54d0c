"""Convolution, pooling and resizing on a GPU, in the interpreter, as one model."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.frontends.onnx_models import parsed
from tests.runtime.gpu.backends import interpreted

from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.executable import CompiledGraph
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.nest.gpu_binding import CompiledNest

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
H200 = interpreted("h200")
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_small_network(pool: str, mode: str) -> None:
    text = f"""(float[n, 3, h, w_] x) => (y) <float[4] s = {{1, 1, 2, 1.5}}> {{
        a = Conv<pads=[1, 1, 1, 1], strides=[2, 1]>(x, w)
        b = {pool}<kernel_shape=[2, 3], pads=[0, 1, 0, 1]>(a)
        c = Conv<pads=[1, 1, 1, 1], group=4>(b, d)
        e = Resize<mode="{mode}">(c, "", s)
        y = Relu(e)
    }}"""
    w, d = (RANDOM.standard_normal((4, n, 3, 3), np.float32) for n in (3, 1))
    graph = import_model(parsed(text, w=w, d=d)).graph
    model = Model(optimised(graph), H200)
    for extents in ((1, 3, 5, 6), (2, 3, 4, 3)):
        x = RANDOM.standard_normal(extents, np.float32)
        (found,) = model.run({"x": x})
        (expected,) = run_reference(graph, [x])
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_few_results_of_many_elements_are_reduced_by_several_programs() -> None:
    """A multiprocessor for each image and block of channels would leave the others idle."""
    text = """(float[n, 5, h, w] x) => (y) {
        a = InstanceNormalization(x, g, b)
        c = GlobalMaxPool(a)
        y = Add(a, c)
    }"""
    constants = {name: RANDOM.standard_normal(5, np.float32) for name in ("g", "b")}
    graph = import_model(parsed(text, **constants)).graph
    backend = interpreted("rtx3090")
    model = Model(optimised(graph), backend)
    kernels = len(backend.kernels)
    for extents in ((1, 5, 40, 61), (2, 5, 3, 4), (1, 5, 64, 64)):
        x = RANDOM.standard_normal(extents, np.float32) + 1
        x[0, 1, 2, 3] = 30.0
        (found,) = model.run({"x": x})
        (expected,) = run_reference(graph, [x])
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
        again = model.run({"x": x})[0]
        assert again.tobytes() == found.tobytes()
    assert len(backend.kernels) == kernels
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    assert any(made.split for step in part.steps if isinstance(step, CompiledNest)
               for made in step._made)  # fmt: skip
