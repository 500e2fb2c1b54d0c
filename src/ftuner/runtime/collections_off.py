"""Loads without collections of garbage.

Loading makes objects that are all kept: a search for cycles among them, and among those of the
program, takes a quarter of its time.
"""

from __future__ import annotations

import gc

from ftuner.core.fork_safety import fork_safe_lock, renew_after_fork


class WithoutCollections:
    """Keeps collections off while any thread is within it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._within = 0
        self._were_on = False
        renew_after_fork(self)

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._were_on = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            # A child that was forked within it begins with none.
            self._within = max(self._within - 1, 0)
            if self._within == 0 and self._were_on:
                gc.enable()

    def renew_in_child(self) -> None:
        """The threads that were within it are gone, but for the one that forked."""
        if self._within:
            self._within = 0
            if self._were_on:
                gc.enable()


WITHOUT_COLLECTIONS = WithoutCollections()
