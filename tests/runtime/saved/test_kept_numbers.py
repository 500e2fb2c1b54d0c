"""Models in the cache that depend on numbers in their inputs, and those of sessions."""

from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from tests.frontends.onnx_models import parsed
from tests.runtime.saved.files import weight
from tests.runtime.saved.keeping import Loads, written

from ftuner import ort
from ftuner.errors import CacheWarning, GraphError
from ftuner.runtime.saved import container, models

RUN_TIME = """(float[n, 8] x, int64[1] axes) => (float[] y) {
    a = MatMul(x, w)
    y = Unsqueeze(a, axes)
}"""


def test_models_for_numbers_that_a_run_brings(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of earlier processes are loaded; others are compiled, and kept as well."""
    written(file, parsed(RUN_TIME, 17, w=weight(8, 8)))
    x, made = weight(2, 8), list[object]()
    compiler = import_module("ftuner.compiler")
    compiled = compiler.compiled

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return compiled(*arguments)

    monkeypatch.setattr(compiler, "compiled", counted)
    wanted = {axis: np.expand_dims(loads(file)(x=x, axes=np.array([1]))["y"][:, 0], axis)
              for axis in (0, 1, 2)}  # fmt: skip
    assert loads.compiled == 1
    for axis, new in ((1, 0), (0, 1), (0, 0), (2, 1), (1, 0), (2, 0)):
        model = loads(file)
        made.clear()
        for _ in range(2):
            np.testing.assert_array_equal(model(x=x, axes=np.array([axis]))["y"], wanted[axis])
        assert len(made) == new, axis
    assert loads.compiled == 1
    model = loads(file)
    written(file, parsed(RUN_TIME, 17, w=weight(8, 8)))
    with pytest.raises(GraphError, match="file has changed"):
        model(x=x, axes=np.array([-1]))


def test_a_run_does_not_fail_where_nothing_can_be_kept(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(file, parsed(RUN_TIME, 17, w=weight(8, 8)))
    loads(file)
    for number, error in enumerate((RecursionError(), CacheWarning("full"), MemoryError())):
        model = loads(file)
        with monkeypatch.context() as patch:
            patch.setattr(container, "fill", Mock(side_effect=error))
            found = model(x=weight(2, 8), axes=np.array([0]))["y"]
        assert found.shape == (1, 2, 8)
        assert caplog.text.count("is not kept in the cache") == number + 1


def test_a_load_does_not_fail_where_nothing_can_be_kept(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (RecursionError(), MemoryError(), OSError()):
        with monkeypatch.context() as patch:
            patch.setattr(models, "steps_section", Mock(side_effect=error))
            assert loads.is_compiled(file)
    assert not (loads.cache.folder / "models").exists()


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_models_of_several_numbers_share_weights(
    share: float, loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry has them once, and so has the memory where they are made of the file again. `share`:
    what one model may take, in weights."""
    text = RUN_TIME.replace("n, 8", "n, 640")
    made = parsed(text, 17, w=weight(640, 640))
    weight_bytes, x = 4 * 640 * 640, weight(2, 640)
    written(file, made)
    monkeypatch.setattr(loads.cache, "max_bytes", int(2 * share * weight_bytes))
    model = loads(file)
    for axis in (0, 1, 2, -1):
        model(x=x, axes=np.array([axis]))
    is_written = share > 1
    assert (loads.entry.stat().st_size > weight_bytes) == is_written
    again = loads(file)
    again(x=x, axes=np.array([-2]))
    graphs: list[Any] = list(again.all_executables())
    packed = [step.panels.packed for graph in graphs for step in graph._compiled if step.panels]
    assert len(packed) >= 4
    if not is_written:
        assert len({id(panels) for panels in packed}) == 1


CONDITION = """(float[n] x, bool on, float[m] z) => (float[] y) {
    y = If(on) <
        then_branch = left () => (float[] u) { u = Add(x, z) },
        else_branch = right () => (float[] v) { v = Neg(x) }
    >
}"""


def test_models_of_both_branches(loads: Loads, file: Path) -> None:
    """Whichever the condition is, nothing is compiled by a later process."""
    written(file, parsed(CONDITION, 17))
    x = np.arange(3, dtype=np.float32)
    for on, wanted in ((True, 2 * x), (False, -x), (True, 2 * x)):
        found = loads(file)(x=x, on=np.array(on), z=x)["y"]
        np.testing.assert_array_equal(found, wanted)
    assert loads.compiled == 1


def test_sessions(loads: Loads, file: Path) -> None:
    """A second session of a file compiles nothing, and says the same of it."""
    text = """(float[n, 4] x, float[n, 4] z) => (float[n, 4] y) <float[1] scale = {2}> {
        a = MatMul(x, w)
        b = Mul(a, scale)
        y = Add(b, z)
    }"""
    made = parsed(text, 17, w=weight(4, 4))
    made.graph.input.append(onnx.helper.make_tensor_value_info("scale", 1, [1]))
    made.producer_name = "tests"
    made.metadata_props.add(key="alphabet", value="abc")
    written(file, made)
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    feeds = {"x": weight(2, 4), "z": weight(2, 4)}
    loads(file)
    own, again = (ort.InferenceSession(file) for _ in range(2))
    assert loads.compiled == 1
    assert own.get_modelmeta().producer_name == "tests"
    for said in (
        lambda s: s.get_inputs(), lambda s: s.get_outputs(), lambda s: s.get_modelmeta(),
        lambda s: s.get_overridable_initializers(),
    ):  # fmt: skip
        assert said(own) == said(again)
    assert again.get_modelmeta().custom_metadata_map == {"alphabet": "abc"}
    np.testing.assert_array_equal(own.run(None, feeds)[0], again.run(None, feeds)[0])
    # Whatever else decides the model is part of its key.
    scale = {**feeds, "scale": np.array([3], np.float32)}
    np.testing.assert_array_equal(own.run(None, scale)[0], again.run(None, scale)[0])
    assert loads.compiled == 2
    for _ in range(2):
        assert ort.InferenceSession(file, options).get_inputs()[0].shape == [2, 4]
    assert loads.compiled == 3
    given = ort.SessionOptions()
    given.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.eye(4, dtype=np.float32)))
    for _ in range(2):
        (found,) = ort.InferenceSession(file, given).run(None, feeds)
        np.testing.assert_array_equal(found, feeds["x"] * 2 + feeds["z"])
    assert loads.compiled == 5
    # An input whose extents contradict the names of the file.
    (found,) = again.run(None, {**feeds, "z": weight(1, 4)})
    assert found.shape == (2, 4)
