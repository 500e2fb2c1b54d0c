"""Run states: what one run of a graph owns, so that runs of several callers are concurrent.

A run takes a state and gives it back. The state given back last is taken first: a single caller
always gets the same one, whose memory is in the caches. A state is made when all others are taken,
and kept. There are at most as many as CPUs; further callers wait until one is given back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import count
from typing import Any

from ftuner.core.caching import RecentlyUsed
from ftuner.core.fork_safety import renew_after_fork
from ftuner.runtime.cpu.memory import Arena
from ftuner.runtime.kept_memory import Keeper

MAX_PROGRAM_BYTES = 40 << 20
"""Limit on all programs that a graph keeps, divided evenly among its states. Derived: a program of
a sentence encoder of six layers has some 39 KiB, so that each of two callers keeps 500 shapes; to
bind one of some hundred tokens again takes a hundredth of its run."""
LOOK_AGAIN_S = 1.0
"""Wait for a free state before checking whether one was lost."""
_TURNS = count()
"""Numbers runs by when they end."""
ProgramKey = tuple[Hashable, ...]
"""Shapes of the inputs and number of workers; of batches symbols, workers and which program."""


class RunState:
    """Memory for intermediate results, and the programs that were bound to it."""

    turn = 0
    """When it was given back."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.programs: RecentlyUsed[ProgramKey, Any] = RecentlyUsed(
            MAX_PROGRAM_BYTES, size=lambda program: program.kept_bytes
        )
        """A `BoundProgram` each, or a template of a batch, which has one."""

    def forget(self) -> None:
        """Free the memory and the programs."""
        self.arena = Arena()
        self.programs.clear()


class RunStates(Keeper):
    """The states of a graph. Safe to use from several threads."""

    def __init__(self, most: int, trimmed: Callable[[], None] = lambda: None) -> None:
        """`most`: largest number of states, at least 1; `trimmed`: called when states are freed."""
        self._most, self._trimmed = most, trimmed
        self.renew_in_child()
        renew_after_fork(self)

    def renew_in_child(self) -> None:
        """Forget all states after a fork: those in use belong to threads that the child does not
        have."""
        self._free: list[RunState] = []
        # Weak references: an interrupted run may lose its state, which is then freed.
        self._made: weakref.WeakSet[RunState] = weakref.WeakSet()
        self._waiting = 0
        # Its lock is reentrant: a finalizer that runs within may call ftuner.
        self._given_back = threading.Condition()

    @property
    def all(self) -> list[RunState]:
        """All states, in use or not."""
        return list(self._made)

    def take(self) -> RunState:
        """Take a state, which the caller alone has until it gives it back."""
        try:
            return self._free.pop()
        except IndexError:
            return self._made_or_waited_for()

    @property
    def kept_bytes(self) -> int:
        return sum(state.arena.size + state.programs.size for state in self.all)

    @property
    def idle_since(self) -> int | None:
        with suppress(IndexError):
            return self._free[0].turn
        return None

    def free_idle(self) -> None:
        with suppress(IndexError):
            del self._free[0]

    def trim(self) -> None:
        self._free.clear()
        self._trimmed()

    def age(self) -> None:
        for state in self.all:
            state.programs.age()

    def give_back(self, state: RunState) -> None:
        state.turn = next(_TURNS)
        # A waiting thread counts itself before it checks again: it finds the state or is notified.
        self._free.append(state)
        if self._waiting:
            with self._given_back:
                self._given_back.notify()

    def _made_or_waited_for(self) -> RunState:
        with self._given_back:
            self._waiting += 1
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        if len(self._made) < self._most:
                            return self._new()
                        self._given_back.wait(LOOK_AGAIN_S)
            finally:
                self._waiting -= 1

    def _new(self) -> RunState:
        made = RunState()
        self._made.add(made)
        for state in self.all:
            state.programs.limit = MAX_PROGRAM_BYTES // len(self._made)
        return made
