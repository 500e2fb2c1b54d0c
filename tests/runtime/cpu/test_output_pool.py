"""Large outputs take the memory of earlier ones, and no output that anyone has changes."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.at_once import at_once
from tests.graph.graphs import Maker, S
from tests.runtime.cpu.appending import address

from ftuner.errors import AllocationError
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu import memory
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.memory import HUGE_PAGE_BYTES, OutputPool, Pages
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.model import Model

FLOAT32 = np.dtype(np.float32)
LARGE = 1 << 18
"""Elements of a large output."""


@pytest.fixture
def pool() -> OutputPool:
    return OutputPool(KeptMemory())


@pytest.fixture
def model(widest: CpuBackend) -> Model:
    """x + x and x * 3, of any length."""
    maker = Maker()
    x = maker.given("x", S)
    graph = maker.made(maker.add("add", x, x), maker.add("multiply", x, maker.number(3)))
    return Model(graph, widest, Options(threads=1))


def run(model: Model, size: int, value: float = 1) -> list[Any]:
    return model.run({"x": np.full(size, value, np.float32)})


VIEWS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda x: x,
    "slice": lambda x: x[5:9],
    "slice of a slice": lambda x: x[::2][3:],
    "reshaped": lambda x: x.reshape(2, -1).T,
    "another dtype": lambda x: x.view(np.int32)[1:],
    "subclass": lambda x: x.view(np.matrix)[:, 1:],
    "asarray of a subclass": lambda x: np.asarray(x.view(np.matrix))[0],
    "strided": lambda x: np.lib.stride_tricks.as_strided(x, (3,), (8,)),
    "window": lambda x: np.lib.stride_tricks.sliding_window_view(x, 3)[2],
    "memoryview": lambda x: memoryview(x)[2:],
    "from a buffer": lambda x: np.frombuffer(x, np.float32)[2:],
    "from DLPack": lambda x: np.from_dlpack(x),
    "iterator": lambda x: x.flat,
    "its interface": lambda x: np.asarray(Interface(x)),
}


class Interface:
    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.__array_interface__ = x.__array_interface__


@pytest.mark.parametrize("name", VIEWS)
def test_what_refers_to_an_output_keeps_it(pool: OutputPool, name: str) -> None:
    first = pool.array((LARGE,), FLOAT32)
    first[:] = 7
    at = address(first)
    view = VIEWS[name](first)
    del first
    gc.collect()
    others = [pool.array((LARGE,), FLOAT32) for _ in range(3)]
    assert at not in map(address, others)
    for other in others:
        other[:] = 1
    assert set(np.asarray(view).view(np.float32).reshape(-1).tolist()) == {7.0}
    del view, other, others
    gc.collect()
    assert at in [address(x) for x in [pool.array((LARGE,), FLOAT32) for _ in range(4)]]


def test_tensors_keep_an_output(pool: OutputPool) -> None:
    torch = pytest.importorskip("torch")
    x = pool.array((LARGE,), FLOAT32)
    x[:] = 7
    tensor = torch.from_numpy(x)[3:]
    del x
    gc.collect()
    pool.array((LARGE,), FLOAT32)[:] = 1
    assert bool((tensor == 7).all())


@pytest.mark.parametrize("elements", [1, 1000, 65_537, (HUGE_PAGE_BYTES >> 2) + 1, 5 << 20])
def test_arrays_are_aligned_and_writeable(pool: OutputPool, elements: int) -> None:
    x = pool.array((1, elements), FLOAT32)
    assert x.shape == (1, elements)
    assert x.dtype == FLOAT32
    assert x.flags.carray
    assert x.flags.writeable
    assert not x.flags.owndata
    assert address(x) % 64 == 0
    assert 4 * elements < HUGE_PAGE_BYTES or address(x) % HUGE_PAGE_BYTES == 0
    x[:] = 3
    assert bool((x == 3).all())
    with pytest.raises(ValueError, match="own"):
        x.resize((3,))
    assert bool((pickle.loads(pickle.dumps(x)) == x).all())


def test_sizes_that_differ_little_share_memory(pool: OutputPool) -> None:
    at = address(pool.array((LARGE,), FLOAT32))
    assert address(pool.array((LARGE - 999,), FLOAT32)) == at
    assert address(pool.array((int(0.85 * LARGE),), FLOAT32)) == at
    # Neither what does not fit, nor what would waste much.
    assert address(pool.array((LARGE + 99_999,), FLOAT32)) != at
    assert address(pool.array((LARGE // 2,), FLOAT32)) != at


def test_small_outputs_have_the_pages_of_large_ones_that_do_not_miss_them(pool: OutputPool) -> None:
    at = address(pool.array((LARGE,), FLOAT32))
    small = pool.array((LARGE // 8,), FLOAT32)
    assert address(small) == at
    # The small output is kept: no other one has pages that would waste most of them.
    others = [pool.array((LARGE // 8,), FLOAT32) for _ in range(3)]
    assert all(x.base.capacity < LARGE for x in others)
    del small, others
    places = []
    for _ in range(4):
        both = [pool.array((n,), FLOAT32) for n in (LARGE // 8 + 9, LARGE)]
        places.append([*map(address, both)])
        assert both[0].base.capacity < LARGE or len(places) == 1
        del both
    assert places[2] == places[3]
    gc.collect()
    assert pool._least_bytes == pool._lent_bytes == 0


def test_outputs_that_are_freed_while_others_are_taken(pool: OutputPool) -> None:
    """As by collections of garbage, in any line."""

    freed = [n * LARGE for n in (3, 5, 7, 9) * 5]

    class Kept(dict[int, list[Pages]]):
        def get(self, size: int, default: Any = None) -> Any:
            if freed:
                pool._spare.add(Pages.new(freed.pop()))
            return super().get(size, default)

    pool._spare.limit = 64 * LARGE
    pool._spare._pages = Kept()
    for n in (4, 8, 6, 10, 2):
        assert pool.array((n * LARGE // 4,), FLOAT32).nbytes == n * LARGE
    assert pool.kept_bytes <= pool._spare.limit


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are reserved on Linux alone")
def test_a_larger_output_touches_only_what_is_new(pool: OutputPool) -> None:
    import resource

    elements = 4 * HUGE_PAGE_BYTES >> 2
    first = pool.array((elements,), FLOAT32)
    first[:] = 7
    at = address(first)
    del first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    second = pool.array((elements * 3 // 2,), FLOAT32)
    second[:elements] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50
    assert address(second) == at
    second[:] = 1
    del second
    assert pool.kept_bytes == 4 * (elements * 3 // 2)
    # Only so many addresses are reserved.
    assert pool.array((elements * 3,), FLOAT32).base.capacity == 4 * elements * 3


def test_as_much_is_kept_as_was_lent_at_once(
    pool: OutputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for elements in (LARGE, LARGE // 2, LARGE // 4, LARGE * 2, LARGE):
        pool.array((elements,), FLOAT32)
    assert 0 < pool.kept_bytes <= 8 * LARGE
    pool.trim()
    assert pool.kept_bytes == 0
    monkeypatch.setattr(memory, "MAX_SPARE_BYTES", 4 * LARGE)
    together = [pool.array((LARGE,), FLOAT32) for _ in range(3)]
    del together
    assert pool.kept_bytes == 4 * LARGE
    pool.array((2 * LARGE,), FLOAT32)
    assert pool.kept_bytes == 4 * LARGE


def test_a_limit_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = OutputPool(KeptMemory(4 * LARGE))
    together = [pool.array((LARGE,), FLOAT32) for _ in range(3)]
    del together
    assert pool.kept_bytes == 4 * LARGE


def test_more_than_there_is(pool: OutputPool) -> None:
    with pytest.raises(AllocationError, match="cannot allocate"):
        pool.array((1 << 60,), FLOAT32)


def test_threads(pool: OutputPool) -> None:
    def work(number: int) -> None:
        held: list[np.ndarray] = []
        rng = np.random.default_rng(number)
        for turn in range(300):
            x = pool.array((int(rng.integers(1000, 5000)),), FLOAT32)
            x[:] = number
            held.append(x)
            if turn % 3:
                del held[rng.integers(len(held))]
            assert all(bool((y == number).all()) for y in held[-3:])
        assert all(bool((y == number).all()) for y in held)

    at_once(*[lambda i=i: work(i) for i in range(4)])  # type: ignore[misc]
    gc.collect()
    assert pool._lent_bytes == 0
    assert not pool._lent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_writes_to_its_own(pool: OutputPool) -> None:
    kept, freed = pool.array((LARGE,), FLOAT32), pool.array((LARGE,), FLOAT32)
    kept[:], freed[:] = 7, 8
    del freed
    child = os.fork()
    if child == 0:
        del kept
        others = [pool.array((LARGE,), FLOAT32) for _ in range(3)]
        for x in others:
            x[:] = 1
        os._exit(0 if all(bool((x == 1).all()) for x in others) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bool((kept == 7).all())


# Models.


def test_outputs_that_a_caller_keeps_stay(model: Model) -> None:
    kept = [(n, run(model, LARGE + n % 3, n)) for n in range(12)]
    for n, (double, triple) in kept:
        assert bool((double == 2 * n).all())
        assert bool((triple == 3 * n).all())
    del kept[::2]
    for n in range(5):
        run(model, LARGE, 100 + n)
    for n, (double, triple) in kept:
        assert bool((double == 2 * n).all())
        assert bool((triple == 3 * n).all())


def test_freed_outputs_are_written_again(model: Model) -> None:
    first = {address(y) for y in run(model, LARGE)}
    assert {address(y) for y in run(model, LARGE)} == first


def test_small_outputs_are_numpys(model: Model) -> None:
    assert all(y.flags.owndata for y in run(model, 1000))
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    assert part._pool.kept_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_no_page_is_allocated_in_a_later_run(model: Model) -> None:
    import resource

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    x = np.ones(4 << 20, np.float32)
    for _ in range(3):
        y = model.run({"x": x})
    before = faults()
    for _ in range(10):
        y = model.run({"x": x})
    assert faults() - before < 100
    assert bool((y[0] == 2).all())


def test_outputs_of_a_thread_outlive_it(model: Model) -> None:
    found: list[list[Any]] = []
    worker = threading.Thread(target=lambda: found.append(run(model, LARGE, 5)))
    worker.start()
    worker.join()
    run(model, LARGE, 6)
    assert bool((found[0][0] == 10).all())


def test_outputs_outlive_the_pool() -> None:
    pool = OutputPool(KeptMemory())
    x = pool.array((LARGE,), FLOAT32)
    x[:] = 7
    del pool
    gc.collect()
    assert bool((x == 7).all())
