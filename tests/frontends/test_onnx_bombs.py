"""Small models that stand for much are compiled, or refused by name, within bounds."""

import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from tests.frontends.bombs import BOMBS, linear_chains, of_shape, slices
from tests.frontends.onnx_models import parsed
from tests.isolation import Done, Limits, Workers

import ftuner
from ftuner.errors import MAX_MESSAGE, AllocationError, FTunerError, ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.splitting import split

SECONDS = 1.0
"""Of a core, for a bomb: without imports, and without compiling, which is linear in kernels."""
GROWN_BYTES = 200 << 20


def imported(model: ModelProto | bytes) -> tuple[float, str | None, str]:
    """The seconds that a model takes, and the name and text of the error that refuses it."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    began = time.process_time()
    error: FTunerError | None = None
    try:
        for part in split(optimised(import_model(data).graph)):
            lower(part.graph)
    except FTunerError as found:
        error = found
    seconds = time.process_time() - began
    return seconds, error and type(error).__name__, str(error)


def explode(name: str) -> tuple[float, str | None, str]:
    return imported(BOMBS[name].make())


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    limits = Limits(seconds=30 * SECONDS, grown_bytes=GROWN_BYTES)
    with Workers("tests.frontends.test_onnx_bombs:explode", limits=limits) as found:
        # What is imported when it is first needed is no bomb's.
        list(found.run(["slices of slices"]))
        yield found


@pytest.mark.alone
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_compiled_or_refused(workers: Workers, name: str) -> None:
    ((_, result),) = workers.run([name])
    assert isinstance(result, Done), result
    seconds, error, text = result.value
    assert error == BOMBS[name].error, text
    assert seconds < SECONDS
    assert len(text) < 1.1 * MAX_MESSAGE
    assert text.isprintable()


@pytest.fixture(scope="module")
def counters() -> Iterator[Workers]:
    """A process of its own, in which nothing is kept of models that other tests made."""
    limits = Limits(seconds=60 * SECONDS)
    with Workers("tests.frontends.test_onnx_bombs:lines_run", limits=limits) as found:
        yield found


def lines_run(name: str) -> list[int]:
    """The numbers of lines of Python that a short and a long model of a kind take. What is imported
    and kept for models of any length is counted of neither."""
    make = dict(linear_chains())[name]
    imported(make(10))
    found = []
    for length in (150, 600):
        model = make(length).SerializeToString()
        count = 0

        def step(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal count
            count += event == "line"
            return step

        sys.settrace(step)
        _, error, text = imported(model)
        sys.settrace(None)
        assert error is None, text
        found.append(count)
    return found


@pytest.mark.parametrize("name", dict(linear_chains()))
def test_work_is_linear_in_the_length_of_a_model(counters: Workers, name: str) -> None:
    """A model four times as long runs 3.6 to 4.1 times the lines. 4.5 is a quadratic term of a
    twentieth of the short model's lines."""
    ((_, result),) = counters.run([name])
    assert isinstance(result, Done), result
    short, long = result.value
    assert long < 4.5 * short


def test_results_of_long_chains_are_right() -> None:
    x = np.arange(400, dtype=np.float32)
    (y,) = ftuner.load(slices(140)).run({"x": x})
    assert y.tolist() == x[140:-140].tolist()
    assert ftuner.load(slices(140)).run({"x": x[:100]})[0].shape == (0,)


def test_a_shape_that_no_number_holds_is_refused_when_it_is_bound() -> None:
    model = ftuner.load(BOMBS["many squares of shapes"].make())
    assert model.run({"x": np.zeros(0, np.float32)})[0].shape == (0,)
    with pytest.raises(ShapeError, match="bits"):
        model.run({"x": np.zeros(3, np.float32)})


def test_a_tensor_that_no_memory_holds_is_refused_when_it_is_bound() -> None:
    model = ftuner.load(BOMBS["a tensor that doubles"].make())
    assert model.run({"x": np.zeros(0, np.float32)})[0].shape == (1,)
    with pytest.raises(AllocationError):
        model.run({"x": np.zeros(3, np.float32)})


def test_loops_that_would_not_end_are_refused_when_they_are_bound() -> None:
    """Nothing of what they run over is in memory."""
    text = """(float[N] x) => (y) <int64[1] big = {68719476736}, float one = {1}> {
        s = Shape(x)
        extent = Mul(s, big)
        wide = Expand(one, extent)
        y = ReduceSum<keepdims=0>(wide)
    }"""
    model = ftuner.load(parsed(text))
    assert model.run({"x": np.zeros(0, np.float32)})[0] == 0
    with pytest.raises(ShapeError, match="at most"):
        model.run({"x": np.zeros(17, np.float32)})


def test_numbers_beyond_64_bits_are_no_extents() -> None:
    model = of_shape(lambda a, b: [helper.make_node("Mul", [a, "big"], [b])], 2,
                     big=np.array([1 << 62], np.int64))  # fmt: skip
    loaded = ftuner.load(model)
    assert loaded.run({"x": np.zeros(0, np.float32)})[0].shape == (0,)
    with pytest.raises(FTunerError):
        loaded.run({"x": np.zeros(1, np.float32)})
