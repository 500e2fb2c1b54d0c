"""Memory that kernels with split-k or split keys share between launches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ftuner.core.caching import RecentlyUsed
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.launching import current_stream, is_capturing

LEAST = 1024
"""Fewest counters of an allocation."""
MAX_STREAMS = 64
"""Streams whose memory is kept. It was allocated on its stream, so that the allocator reuses it
only after the launches that use it."""


class Memory(NamedTuple):
    """The memory of one launch at a time."""

    workspace: Tensor
    """Undefined float32 values, for partial sums."""
    counters: Tensor
    """int32 zeros: each launch leaves them at zero."""

    def holds(self, floats: int, counters: int) -> bool:
        return self.workspace.numel() >= floats and self.counters.numel() >= counters


class Scratch:
    """Memory on a device, by stream: launches on one stream follow each other. Safe to use from
    several threads."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: RecentlyUsed[int, Memory] = RecentlyUsed(MAX_STREAMS)
        self._recording = threading.local()

    def take(self, floats: int, counters: int) -> Memory:
        """Returns at least `floats` values and `counters` zeros for a launch on the current
        stream."""
        held: Memory | None = getattr(self._recording, "memory", None)
        if held is not None and held.holds(floats, counters):
            return held
        if is_capturing(self._device):
            # The graph of a caller has its own, because it may be replayed on any stream.
            return self.made(floats, counters)
        stream = current_stream(self._device)
        found = self._kept.get(stream)
        if found is None or not found.holds(floats, counters):
            if found is not None:
                floats = max(floats, found.workspace.numel())
                counters = max(counters, found.counters.numel())
            found = self.made(floats, max(counters, LEAST))
            self._kept.add(stream, found)
        return found

    def made(self, floats: int, counters: int) -> Memory:
        """Returns new memory, of the current stream."""
        return Memory(
            torch.empty(floats, dtype=torch.float32, device=self._device),
            torch.zeros(counters, dtype=torch.int32, device=self._device),
        )

    @contextmanager
    def used(self, memory: Memory) -> Iterator[None]:
        """Launches of this thread take this memory meanwhile, as far as it holds enough."""
        self._recording.memory = memory
        try:
            yield
        finally:
            self._recording.memory = None
