"""What a model keeps between runs, beside weights and code, and the limit on it.

Each graph of a model keeps memory for intermediate results and programs of shapes; outputs that
were freed are kept for later ones. All of them share one limit.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, fields

from ftuner.core.frozen import dataclass


class Keeper(ABC):
    """What keeps memory between runs."""

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """Bytes that are kept or in use, beside weights and code."""

    @abstractmethod
    def trim(self) -> None:
        """Free what no run uses."""

    def age(self) -> None:
        """Free the half that was used less recently of what is soon made again."""
        self.trim()

    @property
    def idle_since(self) -> int | None:
        """When what no run uses was used: the earliest turn. None if there is nothing."""
        return None

    def free_idle(self) -> None:
        """Free what has this turn."""
        self.trim()


class KeptMemory:
    """The keepers of one model. Safe to use from several threads."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: bytes that are kept at most between runs; None for no common limit."""
        self.limit = limit
        self.crowded = False
        """Whether runs at the same time have taken more together than the limit."""
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()

    def add(self, keeper: Keeper) -> None:
        self._keepers.add(keeper)

    @property
    def bytes(self) -> int:
        return sum(keeper.kept_bytes for keeper in list(self._keepers))

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may be kept."""
        return self.limit is None or self.bytes + size <= self.limit

    def trim(self) -> None:
        for keeper in list(self._keepers):
            keeper.trim()

    def fit(self, room: int) -> bool:
        """Free what no run uses, least recently used first, until at most `room` bytes are kept.
        Returns whether they are."""
        if self.bytes > room:
            for keeper in list(self._keepers):
                keeper.age()
        while self.bytes > room:
            idle = [(t, k) for k in list(self._keepers) if (t := k.idle_since) is not None]
            if not idle:
                return False
            min(idle, key=lambda found: found[0])[1].free_idle()
        return True

    def settle(self) -> None:
        """A run has ended: be within the limit again."""
        if self.limit is not None:
            self.crowded = not self.fit(self.limit)


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes at one shape of its inputs, beside compiled code."""

    weights_bytes: int
    """Constants: packed as products read them, others as they came."""
    arena_bytes: int
    """Intermediate results, those that do not live at the same time in one place."""
    workspace_bytes: int
    """What steps need while they run, of all workers: k, v and scores of attention, operands of
    products that are packed in each run, partial sums. On a GPU the most that one step allocates:
    copies of operands, partial sums."""
    attention_worker_bytes: int
    """The part of the workspace that each worker has in the largest attention; 0 on a GPU."""
    outputs_bytes: int
    """New arrays, one for each output."""
    records_bytes: int
    """The program of this shape, with the plans that it points to and the results that depend on
    extents alone; each shape has its own. On a GPU the inputs and outputs of a recorded program,
    else 0."""

    @property
    def total_bytes(self) -> int:
        parts = (self.weights_bytes, self.arena_bytes, self.workspace_bytes)
        return sum(parts) + self.outputs_bytes + self.records_bytes


def together(parts: Sequence[Memory]) -> Memory:
    """What is kept of programs that run one after the other, and keep what they have: nothing, if
    there are none."""
    nothing = (0,) * len(fields(Memory))
    return Memory(*map(sum, zip(nothing, *map(astuple, parts), strict=True)))
