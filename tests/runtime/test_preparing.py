"""Shapes for which a model is prepared before its first run."""

import sys
from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed
from tests.runtime.test_kept_memory import WIDTH, feeds, in_parts, single

import ftuner
from ftuner.errors import InputError, ShapeError
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.program import ProgramWriter
from ftuner.runtime.preparing import Prepared


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The values of the symbols of each program that is bound."""
    found: list[tuple[int, ...]] = []
    bind = ProgramWriter.bind

    def watched(self: ProgramWriter, symbols: Any, *others: Any) -> Any:
        found.append(tuple(symbols))
        return bind(self, symbols, *others)

    monkeypatch.setattr(ProgramWriter, "bind", watched)
    return found


def looped() -> bytes:
    """Three iterations of h = tanh(h + x)."""
    return parsed("""(float[n] x, int64 trips) => (float[n] y) {
        y = Loop(trips, "", x) <body = body (int64 i, bool on, float[n] h)
                => (bool still, float[n] next) {
            still = Identity(on)
            sum = Add(h, x)
            next = Tanh(sum)
        }>
    }""").SerializeToString()


def test_prepared_shapes_bind_nothing_later(bound: list[tuple[int, ...]]) -> None:
    model = ftuner.load(single(), threads=1)
    assert model.prepare(n=(1, 20, 6)) == Prepared(5, ())
    assert bound == [(1,), (7,), (13,), (19,), (20,)]
    assert model.prepare({"n": 4}).shapes == 1
    bound.clear()
    for n in (7, 20, 4, 1):
        model.run(feeds(n))
    assert not bound


def test_load_takes_the_same(bound: list[tuple[int, ...]]) -> None:
    model = ftuner.load(single(), threads=1, warm={"n": (2, 4)})
    assert bound == [(2,), (3,), (4,)]
    model.run(feeds(3))
    assert len(bound) == 3


@pytest.mark.parametrize(
    "given", [{"x": (3, WIDTH)}, {"x": np.zeros((3, WIDTH))}, {"n": [3]}, {"n": np.int64(3)}]
)
def test_shapes_of_inputs(given: dict[str, Any], bound: list[tuple[int, ...]]) -> None:
    model = ftuner.load(single(), threads=1)
    assert model.prepare(given).shapes == 1
    assert bound == [(3,)]


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_pages_are_there_before_the_first_run() -> None:
    import resource

    def faults_of_first_run(**extents: Any) -> int:
        model = ftuner.load(single(), threads=1)
        model.run(feeds(2))
        if extents:
            model.prepare(extents)
        given = feeds(1 << 17)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        model.run(given)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    unprepared = faults_of_first_run()
    assert faults_of_first_run(n=(5, 1 << 17, 1 << 16)) < 4 <= unprepared


def test_parts_of_which_data_decides_the_extents(bound: list[tuple[int, ...]]) -> None:
    model = ftuner.load(in_parts(), threads=1)
    found = model.prepare(n=(8, 9))
    assert found.shapes == 2
    (skipped,) = found.skipped
    assert "depends on data" in skipped
    assert "depends on data" in repr(found)
    before = len(bound)
    model.run(feeds(8))
    assert len(bound) == before + 1


def test_bodies_of_loops(bound: list[tuple[int, ...]]) -> None:
    model = ftuner.load(looped(), threads=1)
    assert model.prepare(n=5) == Prepared(1, ())
    before = len(bound)
    (y,) = model.run({"x": np.ones(5, np.float32), "trips": np.array(3)})
    assert y.shape == (5,)
    assert len(bound) == before > 0


def test_variants(bound: list[tuple[int, ...]]) -> None:
    file = parsed("(float[n, 2] a, float[n, 2] b) => (y) { y = Concat<axis=0>(a, b) }")
    model = ftuner.load(file, threads=1)
    assert model.prepare(a=(3, 2), b=(5, 2)).shapes == 1
    before = len(bound)
    (y,) = model.run({"a": np.zeros((3, 2), np.float32), "b": np.zeros((5, 2), np.float32)})
    assert y.shape == (8, 2)
    assert len(bound) == before > 0
    with pytest.raises(ShapeError):
        model.prepare(a=(3, 2), b=(5, 3))


def test_inputs_without_a_rank() -> None:
    model = ftuner.load(parsed("(float[] x) => (y) { y = Relu(x) }"), threads=1)
    assert model.prepare().skipped
    assert model.prepare(x=(3, 4)).shapes == 1
    assert model.run({"x": np.ones((3, 4), np.float32)})[0].shape == (3, 4)


def test_models_that_depend_on_data() -> None:
    file = parsed("(float[n] x, int64[2] i) => (y) { y = Expand(x, i) }")
    found = ftuner.load(file, threads=1).prepare(n=4)
    assert found.skipped


def test_combinations_that_contradict_the_model_are_told() -> None:
    file = parsed("(float[n] a, float[m] b) => (y) { y = Add(a, b) }")
    found = ftuner.load(file, threads=1).prepare(n=(2, 3), m=(2, 3))
    assert found.shapes == 2
    assert len(found.skipped) == 2


@pytest.mark.parametrize(
    "given",
    [
        {}, {"m": 3}, {"n": -1}, {"n": (5, 3)}, {"n": (1, 5, 0)}, {"n": "3"}, {"n": None},
        {"n": (1, 2, 3, 4)}, {"n": ()}, {"n": (1, 1 << 20)}, {"n": 2.5}, {"x": 3}, {"x": "ab"},
    ],
)  # fmt: skip
def test_what_is_no_extent(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ftuner.load(single(), threads=1).prepare(given)


def test_a_shape_that_contradicts_the_input() -> None:
    with pytest.raises(ShapeError, match="x"):
        ftuner.load(single(), threads=1).prepare(x=(3, WIDTH + 1))


def test_outputs_and_workers_are_there() -> None:
    model = ftuner.load(single(), threads=2)
    model.prepare(n=1 << 14)
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    assert part._pool.kept_bytes >= 4 * WIDTH << 14
    assert part.session.kernels.runtime.pool.threads >= 2
