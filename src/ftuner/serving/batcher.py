"""Batches of the requests of many callers.

One worker thread takes the requests that have arrived while the last batch ran, and runs them
together by `Model.run_batch`. Callers have a future each.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.errors import ConfigurationError, QueueFullError
from ftuner.runtime.model import Model
from ftuner.serving.worker import Closing, Feeds, Worker, answers

LATEST = 4096
"""Answers whose latency is kept for quantiles. Derived: the 99th percentile then has 40 above."""


@dataclass(frozen=True)
class BatcherStatistics:
    """What a batcher has done since it was made."""

    requests: int = 0
    """Requests that have an answer or an error."""
    failed: int = 0
    cancelled: int = 0
    waiting: int = 0
    """Requests that have not begun."""
    batches: int = 0
    rows: int = 0
    """Rows of all requests of the batches: tokens, for an encoder; 0 of a model that runs no
    requests together."""
    waiting_s: float = 0.0
    """The sum of the times from the arrival of a request to the start of its batch."""
    running_s: float = 0.0
    """The sum of the times of the batches."""
    p50_s: float = 0.0
    """The median time from arrival to answer of the latest requests; 0 before any."""
    p99_s: float = 0.0


class _Request:
    """One request, and what its caller waits for."""

    def __init__(self, feeds: Feeds, rows: int, most: int) -> None:
        self.feeds, self.rows = feeds, rows
        # A request that runs alone fills a batch.
        self.counted = rows or most
        self.arrived = time.monotonic()
        self.admitted: Future[None] = Future()
        """Done once the queue has had a place for it."""
        self.answer: Future[list[Any]] = Future()


class Batcher(Closing):
    """Runs the requests of many threads and coroutines in batches. Safe to use from all of them."""

    def __init__(
        self, model: Model, *, max_tokens: int | None = None, max_wait_s: float = 0.0,
        max_queue: int = 1024,
    ) -> None:  # fmt: skip
        """Make a batcher; its thread starts with the first request.

        Args:
            model: what runs the requests. One thread runs it: give it all threads of the machine.
            max_tokens: the rows of a batch at most, unless one request has more. By default
                `model.rows_together`: a batch of more rows is no faster, and its answers are later.
                A model that runs no requests together has batches of one.
            max_wait_s: how long a request waits for others before a batch that is not full. With 0
                a batch has what arrived while the last one ran, and nothing waits for more.
            max_queue: requests that wait at most; beyond, `submit` blocks.

        Raises:
            ConfigurationError: a limit that is not positive, or a negative time.
        """
        if max_tokens is None:
            max_tokens = max(model.rows_together, 1)
        if max_tokens < 1 or max_queue < 1 or not 0 <= max_wait_s <= threading.TIMEOUT_MAX:
            raise ConfigurationError(
                f"max_tokens is {max_tokens}, max_queue {max_queue} and max_wait_s {max_wait_s}; "
                "expected limits of 1 or more, and a time of 0 s or more"
            )
        self._queue = _Queue(self, model, max_tokens, max_wait_s, max_queue)

    def submit(self, feeds: Feeds, timeout: float | None = None) -> Future[list[Any]]:
        """The future of what `Model.run` returns for a request. Arrays must not change before it is
        done. Its callbacks run in the batcher's thread: they should return soon.

        A future can be cancelled until its batch begins. If a batch fails, its requests run again
        one by one, so that only a request that fails by itself has the error of `Model.run`.

        Args:
            timeout: seconds to wait for a place in the queue; None for any time.

        Raises:
            InputError, ShapeError: as `Model.run`, if the model runs requests together; else the
                future has the error. No other request is affected.
            QueueFullError: the queue has had no place in this time.
            ClosedError: the batcher has been closed.
        """
        request = self._queue.added(feeds)
        try:
            request.admitted.result(timeout)
        except FutureTimeoutError:
            if self._queue.withdrawn(request):
                raise QueueFullError(
                    f"the queue of {self._queue.max_queue} requests has had no place for "
                    f"{timeout} s"
                ) from None
        return request.answer

    def run(self, feeds: Feeds) -> list[Any]:
        """Like `Model.run`, in a batch with the requests of other callers."""
        return self.submit(feeds).result()

    async def run_async(self, feeds: Feeds) -> list[Any]:
        """The same, without blocking the event loop: where the queue is full, the coroutine waits.
        If it is cancelled, so is the request, unless its batch has begun."""
        return await asyncio.wrap_future(self._queue.added(feeds).answer)

    @property
    def statistics(self) -> BatcherStatistics:
        """What the batcher has done."""
        return self._queue.statistics()

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and wait for the thread to end. `drain`: whether requests that
        wait are run; else they are cancelled. A batch that runs is always finished."""
        self._queue.close(drain)


class _Queue(Worker):
    """The requests of a batcher, and the thread that runs them."""

    def __init__(
        self, owner: Batcher, model: Model, max_rows: int, max_wait_s: float, max_queue: int
    ) -> None:
        self._model, self._max_rows, self._max_wait_s = model, max_rows, max_wait_s
        self.max_queue = max_queue
        super().__init__(owner)

    def forget(self) -> None:
        self._queue: deque[_Request] = deque()
        self._outside: deque[_Request] = deque()
        """Requests for which there is no place."""
        self._done = BatcherStatistics()
        self._latencies: deque[float] = deque(maxlen=LATEST)

    def added(self, feeds: Feeds) -> _Request:
        """A new request, in the queue or before it."""
        # Also checks the feeds.
        request = _Request(feeds, self._model.rows(feeds), self._max_rows)
        with self.changed:
            self.begin()
            self._outside.append(request)
            admitted = self._admitted()
            self.changed.notify_all()
        _announce(admitted)
        return request

    def withdrawn(self, request: _Request) -> bool:
        """Whether a request still had no place; it has none from now on."""
        with self.changed:
            if request.admitted.done() or request not in self._outside:
                return False
            self._outside.remove(request)
            return True

    def _admitted(self) -> list[_Request]:
        """The requests that now have a place."""
        found = []
        while self._outside and (len(self._queue) < self.max_queue or self.closed):
            found.append(self._outside.popleft())
            self._queue.append(found[-1])
        return found

    def close(self, drain: bool, patience_s: float | None = None) -> None:
        with self.changed:
            self.closed = True
            admitted = self._admitted()
            cancelled = [] if drain else [*self._queue]
            self.changed.notify_all()
        _announce(admitted)
        for request in cancelled:
            request.answer.cancel()
        self.join(patience_s)

    def statistics(self) -> BatcherStatistics:
        with self.changed:
            done = replace(self._done, waiting=len(self._queue) + len(self._outside))
            latencies = [*self._latencies] or [0.0]
        p50, p99 = np.quantile(latencies, (0.5, 0.99)).tolist()
        return replace(done, p50_s=p50, p99_s=p99)

    def ran_one(self) -> bool:
        batch = self._next()
        if batch:
            self._run(batch)
        return batch is not None

    def _next(self) -> list[_Request] | None:
        """The requests of the next batch, which cannot be cancelled any more: none if all have
        been. None once the queue is closed and empty."""
        with self.changed:
            self.changed.wait_for(lambda: self._queue or self.closed)
            if not self._queue:
                return None
            self._wait_for_more()
            taken = self._taken()
            admitted = self._admitted()
        _announce(admitted)
        batch = [r for r in taken if r.answer.set_running_or_notify_cancel()]
        with self.changed:
            cancelled = self._done.cancelled + len(taken) - len(batch)
            self._done = replace(self._done, cancelled=cancelled)
        return batch

    def _wait_for_more(self) -> None:
        """Wait until there are enough rows, or the oldest request has waited long enough."""
        until = self._queue[0].arrived + self._max_wait_s
        while not self.closed and sum([r.counted for r in self._queue]) < self._max_rows:
            left = until - time.monotonic()
            if left <= 0 or not self.changed.wait(left):
                return

    def _taken(self) -> list[_Request]:
        """The oldest requests, as many as there are rows for, but one at least."""
        found = [self._queue.popleft()]
        rows = found[0].counted
        while self._queue and rows + self._queue[0].counted <= self._max_rows:
            found.append(self._queue.popleft())
            rows += found[-1].counted
        return found

    def _run(self, batch: list[_Request]) -> None:
        began = time.monotonic()
        found = answers(self._model, [request.feeds for request in batch])
        ended = time.monotonic()
        with self.changed:
            done = self._done
            self._done = replace(
                done,
                requests=done.requests + len(batch),
                failed=done.failed + sum([isinstance(x, BaseException) for x in found]),
                batches=done.batches + 1,
                rows=done.rows + sum([request.rows for request in batch]),
                waiting_s=done.waiting_s + sum([began - request.arrived for request in batch]),
                running_s=done.running_s + ended - began,
            )
            self._latencies.extend([ended - request.arrived for request in batch])
        for request, answer in zip(batch, found, strict=True):
            if isinstance(answer, BaseException):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)


def _announce(admitted: list[_Request]) -> None:
    """Tell callers that their requests have a place; with no lock held."""
    for request in admitted:
        request.admitted.set_result(None)
