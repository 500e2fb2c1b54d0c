"""What a model keeps between runs: given back by `trim`, bounded by `memory_limit`."""

import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.at_once import at_once
from tests.frontends.onnx_models import parsed

import ftuner
from ftuner.errors import AllocationError, ConfigurationError, MemoryLimitError
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.cpu.executable import CompiledGraph

KIB = 1 << 10
WIDTH = 16


WEIGHT = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)


def single() -> bytes:
    """Two products: the first result is in the arena, 64 bytes a row."""
    text = """(float[n, 16] x) => (float[n, 16] y) {
        h = MatMul(x, w)
        p = Softmax(h)
        y = MatMul(p, w)
    }"""
    return parsed(text, 17, w=WEIGHT).SerializeToString()


def in_parts() -> bytes:
    """Rows that are positive, between two products: in several parts."""
    text = """(float[n, 16] x) => (float[m, 16] y) <int64[1] axes = {1}, int64[1] first = {0}> {
        h = MatMul(x, w)
        p = Softmax(h)
        sums = ReduceSum<keepdims=0>(x, axes)
        places = NonZero(sums)
        rows = Squeeze(places, first)
        q = Gather(p, rows)
        r = MatMul(q, w)
        s = Softmax(r)
        y = MatMul(s, w)
    }"""
    return parsed(text, 17, w=WEIGHT).SerializeToString()


MODELS: dict[str, Callable[[], bytes]] = {"single": single, "in parts": in_parts}


def feeds(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH), np.float32)}


def expected(x: np.ndarray) -> np.ndarray:
    h = np.exp(x @ WEIGHT - (x @ WEIGHT).max(axis=1, keepdims=True))
    result: np.ndarray = h / h.sum(axis=1, keepdims=True) @ WEIGHT
    return result


def assert_right(model: ftuner.Model, rows: int) -> None:
    given = feeds(rows)
    np.testing.assert_allclose(model.run(given)[0], expected(given["x"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_trim_frees_all(name: str) -> None:
    model = ftuner.load(MODELS[name](), threads=1)
    kept = [model.run(feeds(n)) for n in (5, 50_000, 7)]
    before = [y.copy() for (y,) in kept]
    assert model.kept_bytes > 50_000 * WIDTH * 4
    model.trim()
    assert model.kept_bytes == 0
    for (y,), z in zip(kept, before, strict=True):
        assert np.array_equal(y, z)
    for n, z in zip((5, 50_000, 7), before, strict=True):
        assert np.array_equal(model.run(feeds(n))[0], z)
    del kept
    gc.collect()
    model.trim()
    assert model.kept_bytes == 0


def test_trim_beside_runs() -> None:
    model = ftuner.load(single(), threads=1)
    given = {n: feeds(n) for n in (1, 33, 9000)}
    known = {n: model.run(x)[0] for n, x in given.items()}
    ended = threading.Event()

    def runs() -> None:
        for turn in range(60):
            n = (1, 33, 9000)[turn % 3]
            assert np.array_equal(model.run(given[n])[0], known[n])
        ended.set()

    def trims() -> None:
        while not ended.is_set():
            model.trim()

    at_once(runs, runs, trims)
    model.trim()
    assert model.kept_bytes == 0


def test_a_run_keeps_what_its_memory_says() -> None:
    model = ftuner.load(single(), threads=1)
    memory = model.memory(feeds(100))
    model.run(feeds(100))
    parts = memory.arena_bytes, memory.workspace_bytes, memory.records_bytes
    assert model.kept_bytes == sum(parts)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", [24 * KIB, 64 * KIB, 4096 * KIB])
def test_what_is_kept_is_limited(name: str, limit: int) -> None:
    model = ftuner.load(MODELS[name](), threads=1, memory_limit=limit)
    free = ftuner.load(MODELS[name](), threads=1)
    ran = 0
    for n in [*range(1, 60), 3000, *range(1, 60, 7), 100_000, 5, 30_000]:
        if n < 100:
            assert np.array_equal(model.run(feeds(n))[0], free.run(feeds(n))[0])
            ran += 1
        else:
            with suppress(MemoryLimitError):
                model.run(feeds(n))
                ran += 1
        assert model.kept_bytes <= limit
    assert 65 < ran < 73
    with pytest.raises(MemoryLimitError, match=f"needs .* bytes .* memory_limit is {limit}"):
        model.run(feeds(100_000))


@pytest.mark.parametrize("rows", [300, 1111])
def test_a_refusal_depends_on_the_shape_alone(rows: int) -> None:
    free = ftuner.load(single(), threads=1)
    memory = free.memory(feeds(rows))
    needed = memory.arena_bytes + memory.workspace_bytes + memory.records_bytes
    for before in ((), (7, 1200), (1200, 7, 20), (rows - 1,), (rows + 1, rows - 1)):
        model = ftuner.load(single(), threads=1, memory_limit=needed)
        short = ftuner.load(single(), threads=1, memory_limit=needed - 1)
        for n in before:
            for each in (model, short):
                with suppress(MemoryLimitError):
                    each.run(feeds(n))
        assert_right(model, rows)
        with pytest.raises(MemoryLimitError, match=f"needs {needed} bytes.* is {needed - 1}"):
            short.run(feeds(rows))
        with pytest.raises(AllocationError):
            short.memory(feeds(rows))


def test_the_least_recently_used_goes_first() -> None:
    model = ftuner.load(single(), threads=1, memory_limit=48 * KIB)
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    for n in range(1, 200):
        model.run(feeds(n % 2 + 1))
        model.run(feeds(n))
        (state,) = part.states.all
        known = [program.outputs[0][0][0] for program in state.programs.values()]
        assert n in known


def test_states_of_threads_share_the_limit() -> None:
    limit = 256 * KIB
    model = ftuner.load(single(), threads=1, memory_limit=limit)
    barrier = threading.Barrier(3)

    def work(number: int) -> None:
        for n in (1000, 1500, 2000, 40):
            barrier.wait()
            assert_right(model, n + number)

    at_once(*[lambda i=i: work(i) for i in range(3)])  # type: ignore[misc]
    gc.collect()
    assert model.kept_bytes <= limit
    model.trim()
    assert model.kept_bytes == 0


def test_no_limit_by_default_and_none_that_is_no_number() -> None:
    for limit in (-1, "1 GB", 1.5):
        with pytest.raises(ConfigurationError, match="memory_limit"):
            ftuner.load(single(), memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(MemoryLimitError):
        ftuner.load(single(), memory_limit=0).run(feeds(1))


def test_a_pickled_model_keeps_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(single())
    model = ftuner.load(path, threads=1, memory_limit=64 * KIB, warm={"n": 5})
    again = pickle.loads(pickle.dumps(model))
    assert again.kept_bytes > 0
    with pytest.raises(MemoryLimitError):
        again.run(feeds(10_000))


@pytest.mark.parametrize("name", MODELS)
def test_memory_stays_over_many_shapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ftuner.load(MODELS[name](), threads=1, memory_limit=256 * KIB)
    for products in default_backend()._products.values():
        # Plans of products are the process's; as many as this limit says.
        monkeypatch.setattr(products._ready, "limit", 64)
        monkeypatch.setattr(products._writers, "limit", 64)
    given = np.ones((2000, WIDTH), np.float32)

    def run(first: int, last: int) -> int:
        for n in range(first, last):
            model.run({"x": given[:n]})
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(1, 600)
        assert run(600, 1200) < before + 300 * KIB
    finally:
        tracemalloc.stop()
