"""Threads that serve the requests of others: how they start, and how they end."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ftuner.core.fork_safety import renew_after_fork
from ftuner.errors import ClosedError
from ftuner.runtime.model import Model

Itself = TypeVar("Itself")
Feeds = Mapping[str, Any]
_LOG = logging.getLogger(__name__)
SECONDS_AT_EXIT = 10.0
"""Longest wait of the interpreter's exit for what a thread runs."""
_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()
"""Those whose threads the interpreter's exit ends."""


class Closing(ABC):
    """What users have of a worker: a `with` block closes it."""

    @abstractmethod
    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and wait for the thread. `drain`: whether those that wait run."""

    def __enter__(self: Itself) -> Itself:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; after an error, what waits is cancelled."""
        self.close(drain=kind is None)


class Worker(ABC):
    """A thread, which starts with the first request, and what it has to do. It is kept apart from
    what users have, so that an object that nothing refers to is closed."""

    def __init__(self, owner: object) -> None:
        """`owner`: what is closed when nothing refers to it."""
        self.closed = False
        self._name = f"ftuner-{type(owner).__name__.lower()}"
        self.renew_in_child()
        renew_after_fork(self)
        _WORKERS.add(self)
        weakref.finalize(owner, self.close, False, 0.0).atexit = False

    def renew_in_child(self) -> None:
        """A forked child has nothing to do, and a thread of its own with the first request; the
        requests of the parent are answered in the parent alone."""
        self.changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """Have nothing to do."""

    @abstractmethod
    def ran_one(self) -> bool:
        """Wait for something to do, and do a part of it; False once it is closed, and all is done.
        The thread refers to no request between two calls."""

    @abstractmethod
    def close(self, drain: bool, patience_s: float | None = None) -> None:
        """Take no more requests. `drain`: whether those that wait are run; else they are cancelled.
        Waits for the thread no longer than `patience_s`."""

    def begin(self) -> None:
        """Have a thread; `changed` is held.

        Raises:
            ClosedError: it has been closed.
        """
        if self.closed:
            raise ClosedError(f"the {self._name.removeprefix('ftuner-')} has been closed")
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        while self.ran_one():
            pass

    def join(self, patience_s: float | None) -> None:
        """Wait for the thread to end, no longer than `patience_s`."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience_s)


def answers(
    model: Model, batch: Sequence[Feeds], exact: bool = True
) -> list[list[Any] | BaseException]:
    """The outputs of each request, or its error. `exact`: as of `Model.run_batch`."""
    try:
        if len(batch) > 1 and model.rows_together:
            return [*model.run_batch(batch, exact=exact)]
    except BaseException as error:
        # Which requests fail shows when each runs alone.
        _LOG.debug("a batch of %d requests runs one by one: %s", len(batch), error)
    return [_answer(model, feeds) for feeds in batch]


def _answer(model: Model, feeds: Feeds) -> list[Any] | BaseException:
    try:
        return model.run(feeds)
    except BaseException as error:
        # As all executors do: the caller gets it, and the thread goes on.
        return error


@atexit.register
def _close_at_exit() -> None:
    """The interpreter ends while nothing runs; requests that wait are cancelled."""
    for worker in [*_WORKERS]:
        worker.close(False, SECONDS_AT_EXIT)
