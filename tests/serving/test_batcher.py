"""A batcher answers every request with the bits that it has alone, whatever the others do."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, S, builds, inputs_of

import ftuner
from ftuner.core.dtype import INT64
from ftuner.errors import (
    ClosedError,
    ConfigurationError,
    IndexRangeError,
    InputError,
    QueueFullError,
)
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

SECONDS = 30
"""What any answer may take."""
WORDS = 7


@builds
def encoder(g: Any) -> Any:
    x = g.add("gather", g.weight(WORDS, 32), g.given("at", B, S, dtype=INT64), axis=0)
    return g.linear(g.gelu(g.linear(x, 64)), 32).mean([1], keep=False)


class Gated(Model):
    """A model whose batches wait until they may go on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.open, self.begun = threading.Event(), threading.Event()
        self.open.set()
        self.sizes: list[int] = []

    def run(self, feeds: Any) -> list[Any]:
        self._wait(1)
        return super().run(feeds)

    def run_batch(self, batch: Any, **given: Any) -> list[list[Any]]:
        self._wait(len(batch))
        return super().run_batch(batch, **given)

    def _wait(self, size: int) -> None:
        self.sizes.append(size)
        self.begun.set()
        assert self.open.wait(SECONDS)

    def hold(self, batcher: ftuner.Batcher) -> Future[list[Any]]:
        """Have a request run that goes on when `open` is set."""
        self.open.clear()
        self.begun.clear()
        found = batcher.submit(request(5))
        assert self.begun.wait(SECONDS)
        return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    return optimised(encoder(), halves=False)


@pytest.fixture
def model(graph: Graph, widest: CpuBackend) -> Iterator[Gated]:
    made = Gated(graph, widest)
    yield made
    made.open.set()


def request(length: int, seed: int = 0) -> dict[str, Any]:
    return inputs_of(encoder(), {"B": 1, "S": length}, seed)


def same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def test_clients_get_their_own_answers(model: Gated) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, (64, 5))
    wanted = {n: model.run(request(n)) for n in range(1, 60)}
    with ftuner.Batcher(model, max_queue=16) as batcher:

        def client(own: Sequence[int]) -> bool:
            return all(same(batcher.run(request(n)), wanted[n]) for n in own)

        with ThreadPoolExecutor(64) as clients:
            assert all(clients.map(client, lengths.tolist()))
        done = batcher.statistics
    assert (done.requests, done.failed, done.cancelled, done.waiting) == (320, 0, 0, 0)
    assert done.rows == lengths.sum()
    assert done.batches < 320
    assert 0 < done.p50_s <= done.p99_s
    assert done.running_s > 0
    assert done.waiting_s > 0


def test_a_batch_has_what_arrived_during_the_last_one(model: Gated) -> None:
    with ftuner.Batcher(model, max_tokens=40) as batcher:
        first = model.hold(batcher)
        others = [batcher.submit(request(n)) for n in (20, 20, 30, 9, 50, 1)]
        assert batcher.statistics.waiting == 6
        model.open.set()
        answers = [found.result(SECONDS) for found in (first, *others)]
    # The request of 50 is longer than any batch, and others are not taken before it.
    assert model.sizes == [1, 2, 2, 1, 1]
    for n, answer in zip((5, 20, 20, 30, 9, 50, 1), answers, strict=True):
        assert same(answer, model.run(request(n)))


def test_the_budget_is_that_of_the_model(model: Gated) -> None:
    assert model.rows_together == model._backend.hardware.tuning.rows_together  # type: ignore[attr-defined]
    assert model.rows(request(9)) == 9
    with ftuner.Batcher(model) as batcher:
        model.hold(batcher)
        half = model.rows_together // 2
        others = [batcher.submit(request(half)) for _ in range(3)]
        model.open.set()
        [found.result(SECONDS) for found in others]
    assert model.sizes == [1, 2, 1]


def test_a_request_waits_for_others(model: Gated) -> None:
    with ftuner.Batcher(model, max_tokens=20, max_wait_s=SECONDS) as batcher:
        began = time.monotonic()
        found = [batcher.submit(request(10)) for _ in range(2)]
        [x.result(SECONDS) for x in found]
        # Enough rows: nothing more is waited for.
        assert time.monotonic() - began < SECONDS / 2
    assert model.sizes == [2]


def test_a_wait_ends(model: Gated) -> None:
    with ftuner.Batcher(model, max_wait_s=0.05) as batcher:
        began = time.monotonic()
        batcher.run(request(10))
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    ("feeds", "error"),
    [
        ({}, InputError),
        ({"at": np.zeros((1, 4))}, InputError),
        ({"at": np.zeros(4, np.int64)}, InputError),
        (3, InputError),
    ],
)
def test_a_bad_request_is_refused_at_once(feeds: Any, error: type[Exception], model: Gated) -> None:
    with ftuner.Batcher(model) as batcher, pytest.raises(error):
        batcher.submit(feeds)
    assert model.sizes == []


def test_only_the_request_that_fails_has_an_error(model: Gated) -> None:
    bad = {"at": np.full((1, 6), WORDS)}
    with ftuner.Batcher(model) as batcher:
        model.hold(batcher)
        found = [batcher.submit(x) for x in (request(8), bad, request(9), bad)]
        model.open.set()
        for x in (found[1], found[3]):
            with pytest.raises(IndexRangeError, match=r"^(?!request)"):
                x.result(SECONDS)
        for n, x in ((8, found[0]), (9, found[2])):
            assert same(x.result(SECONDS), model.run(request(n)))
        assert (batcher.statistics.failed, batcher.statistics.requests) == (2, 5)


def test_a_request_is_cancelled_before_it_begins(model: Gated) -> None:
    with ftuner.Batcher(model) as batcher:
        first = model.hold(batcher)
        second, third = batcher.submit(request(8)), batcher.submit(request(9))
        assert not first.cancel()
        assert second.cancel()
        model.open.set()
        assert same(third.result(SECONDS), model.run(request(9)))
        assert first.result(SECONDS)
        with pytest.raises(CancelledError):
            second.result(SECONDS)
        assert (batcher.statistics.cancelled, batcher.statistics.requests) == (1, 2)


def test_a_full_queue_holds_callers_back(model: Gated) -> None:
    with ftuner.Batcher(model, max_queue=2) as batcher, ThreadPoolExecutor(1) as pool:
        model.hold(batcher)
        waiting = [batcher.submit(request(n)) for n in (6, 7)]
        with pytest.raises(QueueFullError, match="queue of 2 requests"):
            batcher.submit(request(8), timeout=0)
        blocked = pool.submit(batcher.submit, request(9))
        time.sleep(0.02)
        assert not blocked.done()
        model.open.set()
        assert same(blocked.result(SECONDS).result(SECONDS), model.run(request(9)))
        assert all(x.result(SECONDS) for x in waiting)
        assert batcher.statistics.requests == 4


def test_a_slow_callback_loses_nothing(model: Gated) -> None:
    with ftuner.Batcher(model) as batcher:
        slow = batcher.submit(request(5))
        slow.add_done_callback(lambda _: time.sleep(0.05))
        failing = batcher.submit(request(6))
        failing.add_done_callback(lambda _: 1 // 0)
        assert all(batcher.run(request(n)) for n in (7, 8))


@pytest.mark.parametrize("drain", [True, False])
def test_close(drain: bool, model: Gated) -> None:
    batcher = ftuner.Batcher(model, max_queue=1)
    first, others = model.hold(batcher), []
    with ThreadPoolExecutor(2) as pool:
        blocked = [pool.submit(batcher.submit, request(n)) for n in (6, 7)]
        while batcher.statistics.waiting < 2:
            time.sleep(0.001)
        threading.Timer(0.02, model.open.set).start()
        batcher.close(drain=drain)
        others = [x.result(SECONDS) for x in blocked]
    assert first.done()
    assert [x.cancelled() for x in others] == [not drain] * 2
    with pytest.raises(ClosedError):
        batcher.submit(request(5))
    batcher.close()


def test_an_error_within_the_context_cancels(model: Gated) -> None:
    found: list[Future[list[Any]]] = []

    def failing() -> None:
        with ftuner.Batcher(model) as batcher:
            model.hold(batcher)
            found.append(batcher.submit(request(5)))
            threading.Timer(0.02, model.open.set).start()
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        failing()
    assert found[0].cancelled()


def test_a_batcher_that_is_forgotten_ends_its_thread(model: Gated) -> None:
    batcher = ftuner.Batcher(model)
    batcher.run(request(5))
    thread, gone = batcher._queue._thread, weakref.ref(batcher)
    del batcher
    gc.collect()
    assert thread is not None
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert gone() is None


def test_the_thread_keeps_no_answer(model: Gated) -> None:
    with ftuner.Batcher(model) as batcher:
        feeds = request(9)
        (found,) = batcher.run(feeds)
        refs = [weakref.ref(found), weakref.ref(feeds["at"])]
        del found, feeds
        until = time.monotonic() + SECONDS
        while any(ref() is not None for ref in refs) and time.monotonic() < until:
            time.sleep(0.001)
        assert [ref() for ref in refs] == [None, None]


def test_coroutines(model: Gated) -> None:
    async def main(batcher: ftuner.Batcher) -> None:
        found = await asyncio.gather(*(batcher.run_async(request(n)) for n in range(1, 40)))
        for n, x in enumerate(found, 1):
            assert same(x, model.run(request(n)))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, model.hold, batcher)
        late = asyncio.ensure_future(batcher.run_async(request(5)))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.run_async(request(6)), 0.01)
        model.open.set()
        assert same(await late, model.run(request(5)))
        with pytest.raises(InputError):
            await batcher.run_async({})

    with ftuner.Batcher(model, max_queue=3) as batcher:
        asyncio.run(main(batcher))
        assert batcher.statistics.cancelled == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_has_a_thread_of_its_own(model: Gated) -> None:
    with ftuner.Batcher(model) as batcher:
        wanted = batcher.run(request(9))
        model.hold(batcher)
        found = batcher.submit(request(8))
        model.open.set()
        child = os.fork()
        if child == 0:
            try:
                good = same(batcher.run(request(9)), wanted) and batcher.statistics.requests == 1
                batcher.close()
            finally:
                os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert found.result(SECONDS)


SCRIPT = """
import sys, threading, time
sys.path[:0] = sys.argv[1:]
import ftuner

class Slow:
    rows_together = 8
    def rows(self, feeds): return 8
    def run(self, feeds):
        time.sleep(0.2)
        print("ran", flush=True)
        return []

batcher = ftuner.Batcher(Slow())
found = [batcher.submit({}) for _ in range(50)]
found[0].result()
print("end", flush=True)
"""


def test_the_interpreter_ends() -> None:
    """While a batch runs and others wait."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *sys.path], capture_output=True, text=True, timeout=SECONDS,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split()[:2] == ["ran", "end"]
    assert 1 <= done.stdout.count("ran") <= 3


@pytest.mark.parametrize(
    "limits",
    [{"max_tokens": 0}, {"max_queue": 0}, {"max_wait_s": -1}, {"max_wait_s": float("nan")}],
)
def test_limits(limits: dict[str, Any], model: Gated) -> None:
    with pytest.raises(ConfigurationError, match="expected limits"):
        ftuner.Batcher(model, **limits)
