"""Models from files and from graphs."""

import gc
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from tests.graph.graphs import assert_close

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT16, FLOAT32
from ftuner.errors import ConfigurationError
from ftuner.graph.builder import Builder
from ftuner.runtime.collections_off import WITHOUT_COLLECTIONS
from ftuner.runtime.cpu.backend import CpuBackend

needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")


def model_bytes() -> bytes:
    from onnx import helper
    from tests.frontends.onnx_models import parsed

    model = parsed("""(float[batch, 3] x, float[batch, 3] y)
            => (float[batch, 3] power, int64[2] shape) {
        sum = Add(x, y)
        power = Exp(sum)
        shape = Shape(x)
    }""")
    model.producer_name, model.domain, model.model_version = "tests", "org.example", 3
    model.doc_string, model.graph.doc_string = "a model", "a graph"
    helper.set_model_props(model, {"language": "en"})
    return model.SerializeToString()


def test_compile_takes_a_graph(as_default: CpuBackend) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("rows"), 3))
    model = ftuner.compile(builder.graph([x], [("y", builder.add("exp", x))]), threads=2)
    assert model.threads == 2
    for rows in (1, 5):
        given = np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)
        assert_close([model(x=given)["y"]], [np.exp(given)])


def test_compile_of_half_precision(as_default: CpuBackend) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT16, (3,))
    graph = builder.graph([x], [("y", builder.add("exp", x))])
    given = np.array([-1, 0, 2], np.float16)
    wanted = np.exp(given.astype(np.float32)).astype(np.float16)
    assert_close([ftuner.compile(graph)(x=given)["y"]], [wanted])
    with pytest.raises(ConfigurationError, match="dtype is 'float16'"):
        ftuner.compile(graph, dtype="float16")


def test_outputs_that_append_in_place(
    as_default: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder()
    x, new = (builder.input(name, FLOAT32, (symbol(name), 3)) for name in ("x", "new"))
    graph = builder.graph([x, new], [("y", builder.add("concat", x, new, axis=0))])
    copying = ftuner.compile(graph)
    assert copying.appended == {}
    assert copying.copied == {"x": "append_in_place=True was not given"}
    model = ftuner.compile(graph, append_in_place=True)
    assert model.appended == {"x": "y"}
    assert model.copied == {}
    for explained, said in (
        (model, "appended in place: y to x"),
        (copying, "copied: x (append_in_place=True was not given)"),
    ):
        assert said in str(explained)
        assert said in str(explained.explain())
        document = explained.explain().to_document()
        assert document["appended"] == explained.appended
        assert document["copied"] == explained.copied
    first = model(x=np.ones((2, 3), "f"), new=np.zeros((1, 3), "f"))["y"]
    second = model(x=first, new=np.ones((2, 3), "f"))["y"]
    assert np.shares_memory(first, second)
    assert second[:, 0].tolist() == [1, 1, 0, 1, 1]
    monkeypatch.setattr(as_default, "appends_in_place", False)
    assert ftuner.compile(graph).copied == {"x": "only a model on a CPU appends in place"}
    with pytest.raises(ConfigurationError, match="append_in_place is for models on a CPU"):
        ftuner.compile(graph, append_in_place=True)


@needs_onnx
def test_threads_of_a_model(as_default: CpuBackend) -> None:
    as_default.threads = 2
    data = model_bytes()
    assert ftuner.load(data).threads == 2
    assert ftuner.load(data, threads=3).threads == 3
    for wrong in (0, -1, 1 << 20):
        with pytest.raises(ConfigurationError):
            ftuner.load(data, threads=wrong)


def test_collections_go_on_after_loads_at_once() -> None:
    assert gc.isenabled()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [within_and_out() for _ in range(500)], range(4)))
    assert gc.isenabled()
    with WITHOUT_COLLECTIONS, WITHOUT_COLLECTIONS:
        assert not gc.isenabled()
    assert gc.isenabled()


def within_and_out() -> None:
    with WITHOUT_COLLECTIONS:
        assert not gc.isenabled()
