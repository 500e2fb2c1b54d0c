"""Locks that another thread has."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread has the lock meanwhile: this one may take it again if it has it."""
    taken, end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()
