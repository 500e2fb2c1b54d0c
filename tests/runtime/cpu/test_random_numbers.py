"""Models that draw random numbers: each run others, on any number of threads the same."""

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import HOST_ISAS
from tests.distributions import assert_independent, assert_normal, assert_other, assert_uniform
from tests.graph.graphs import B, S, T
from tests.runtime.cpu.small_models import compiled

import ftuner
from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.errors import ConfigurationError
from ftuner.graph.builder import Builder
from ftuner.graph.invariants import invariants
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

SHAPES = ((3, 37), (1, 1), (0, 5), (2, 64), (5, 0), (7, 13), (2, 9000))
SEED = 2**64 - 1


def drawn(builder: Builder, x: Value, op: str, dtype: DType = FLOAT32) -> Value:
    more = {"digits": dtype.significand_bits} if op == "random_uniform" else {}
    return builder.add(op, builder.random_stream(), dtype=dtype, shape=x.shape, **more)


def noise(op: str = "random_normal", dtype: DType = FLOAT32) -> Graph:
    """Noise alone, noise of another node, and a sum and a product that the first is taken into."""
    builder = Builder()
    x = builder.input("x", dtype, (B, S))
    first, second = drawn(builder, x, op, dtype), drawn(builder, x, op, dtype)
    outputs = {
        "first": first, "second": second,
        "sum": builder.add("add", x, first), "product": builder.add("multiply", x, second),
    }  # fmt: skip
    return optimised(builder.graph([x], list(outputs.items())))


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["random_uniform", "random_normal"])
def test_right_at_any_extents(
    op: str, dtype: DType, isa: str, backend_of: Callable[[str], CpuBackend]
) -> None:
    graph = noise(op, dtype)
    for threads in (1, 2):
        model = Model(graph, backend_of(isa), Options(threads, random_seed=SEED))
        assert [spec.name for spec in model.inputs] == ["x"]
        for run, shape in enumerate(SHAPES):
            x = np.full(shape, 2, dtype.name)
            wanted = run_reference(graph, [x, np.array([SEED, run], np.uint64)])
            for found, other in zip(model.run({"x": x}), wanted, strict=True):
                # Relative to the terms of the sum.
                bound = 16 * dtype.unit_roundoff * (4 + np.abs(other))
                assert np.all(np.abs(found - other) <= bound), shape


def test_all_readers_see_the_same_numbers(widest: CpuBackend) -> None:
    found = Model(noise(), widest, Options(random_seed=0))(x=zeros(5, 700))
    np.testing.assert_array_equal(found["sum"], found["first"])
    assert_independent(found["first"], found["second"])


def test_the_same_bits_with_any_threads_and_isa(backend_of: Callable[[str], CpuBackend]) -> None:
    x, wanted = zeros(3, 5000), None
    for isa in HOST_ISAS:
        for threads in (1, 2, 3):
            model = Model(noise(), backend_of(isa), Options(threads, random_seed=4))
            found = [np.stack(model.run({"x": x})) for _ in range(3)]
            wanted = found if wanted is None else wanted
            np.testing.assert_array_equal(found, wanted)


def test_runs_and_models_differ(widest: CpuBackend) -> None:
    x = zeros(3, 4000)
    models = [Model(noise(), widest), Model(noise(), widest)]
    found = [model(x=x)["first"] for model in (*models, *models)]
    for i, y in enumerate(found):
        for z in found[:i]:
            assert_other(y, z)


def test_distributions_over_runs(widest: CpuBackend) -> None:
    normal = Model(noise(), widest, Options(random_seed=1))
    uniform = Model(noise("random_uniform"), widest, Options(random_seed=2))
    x = zeros(40, 100)
    assert_normal(np.stack([normal(x=x)["first"] for _ in range(50)]))
    assert_uniform(np.stack([uniform(x=x)["first"] for _ in range(50)]))
    # The first number of each of many runs.
    assert_normal(np.stack([normal(x=zeros(1, 1))["first"] for _ in range(4000)]))


def test_concurrent_runs_differ(widest: CpuBackend) -> None:
    """With a seed they are, in some order, those that one thread makes."""
    x, count = zeros(2, 300), 64
    model = Model(noise(), widest, Options(random_seed=3))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: model(x=x)["first"].tobytes(), range(count)))
    again = Model(noise(), widest, Options(random_seed=3))
    assert sorted(found) == sorted(again(x=x)["first"].tobytes() for _ in range(count))
    assert len(set(found)) == count


def test_nothing_is_computed_once_for_a_shape(widest: CpuBackend) -> None:
    """Of a model without inputs, too, in which all else depends on extents alone."""
    builder = Builder()
    at = builder.add("iota", shape=(50,), axis=0)
    table = builder.add("sin", builder.add("cast", at, to=FLOAT32))
    stream = builder.random_stream()
    x = builder.add("random_normal", stream, dtype=FLOAT32, shape=(50,))
    total = builder.add("reduce", builder.add("add", table, x), kind="sum", axes=(0,))
    model = Model(optimised(builder.graph([], [("y", total)])), widest)
    assert not model.inputs
    for step in invariants(compiled(model).lowered.steps):
        assert not step.steps
    assert len({float(model()["y"]) for _ in range(20)}) == 20


def test_a_column_is_drawn_once(widest: CpuBackend) -> None:
    """Numbers that several elements read are the same for all."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (B, S))
    column = builder.add("random_normal", builder.random_stream(), dtype=FLOAT32, shape=(B, 1))
    model = Model(optimised(builder.graph([x], [("y", builder.add("add", x, column))])), widest)
    found = model(x=zeros(30, 80))["y"]
    np.testing.assert_array_equal(found, np.broadcast_to(found[:, :1], found.shape))
    assert len(set(found[:, 0])) == 30


def test_numbers_in_a_product(widest: CpuBackend) -> None:
    """What a product reads is in memory, and what it gives takes noise into its stores."""
    builder = Builder()
    x, like = builder.input("x", FLOAT32, (B, S)), builder.input("like", FLOAT32, (S, T))
    y = builder.add("matmul", x, drawn(builder, like, "random_normal"))
    y = builder.add("add", y, drawn(builder, y, "random_normal"))
    graph = optimised(builder.graph([x, like], [("y", y)]))
    model = Model(graph, widest, Options(random_seed=9))
    feeds = {"x": np.ones((17, 33), np.float32), "like": zeros(33, 21)}
    wanted = run_reference(graph, [*feeds.values(), np.array([9, 0], np.uint64)])
    np.testing.assert_allclose(model.run(feeds), wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "3", True])
def test_seeds_that_are_none(seed: Any, widest: CpuBackend) -> None:
    with pytest.raises(ConfigurationError, match=r"random_seed is .* from 0 below 2"):
        Model(noise(), widest, Options(random_seed=seed))


def test_measured_and_explained(widest: CpuBackend) -> None:
    """Which leaves the numbers of later runs as they were."""
    model, again = (Model(noise(), widest, Options(random_seed=4)) for _ in range(2))
    x = zeros(3, 5)
    for _ in range(3):
        assert len(model.step_seconds({"x": x})) == len(model.steps)
        assert model.memory({"x": x}).total_bytes > 0
        np.testing.assert_array_equal(model(x=x)["first"], again(x=x)["first"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("seed", [None, 8])
def test_after_a_fork(seed: int | None, widest: CpuBackend) -> None:
    """A child goes on with the numbers of a seed, as its parent does; without one it has others."""
    model, x = Model(noise(), widest, Options(1, random_seed=seed)), zeros(2, 50)
    model(x=x)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, model(x=x)["first"].tobytes())
        os._exit(0)
    here = model(x=x)["first"].tobytes()
    there = os.read(reading, len(here))
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert len(there) == len(here)
    assert (there == here) == (seed is not None)


def test_a_pickled_model_begins_anew(tmp_path: Path) -> None:
    parsed = pytest.importorskip("tests.frontends.onnx_models").parsed
    path = tmp_path / "noise.onnx"
    made = parsed("() => (float[40] y) { y = RandomNormal<shape = [40]>() }")
    path.write_bytes(made.SerializeToString())
    model = ftuner.load(path, random_seed=6)
    first = model()["y"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again()["y"], first)
    assert not np.any(model()["y"] == first)
