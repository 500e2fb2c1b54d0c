"""Counters that kernels with split-k or split keys share between launches."""

from __future__ import annotations

import torch

from ftuner.core.recently_used import RecentlyUsed
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.cuda_graphs import is_capturing

LEAST = 1024
"""Fewest counters of an allocation."""
MAX_STREAMS = 64
"""Streams whose counters are kept. They were allocated on their stream, so that the allocator
reuses their memory only after the launches that count in them."""


class Counters:
    """Zeros on a device, by stream. Launches on one stream follow each other, and each leaves the
    counters at zero."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counters: RecentlyUsed[int, Tensor] = RecentlyUsed(MAX_STREAMS)

    def zeros(self, count: int) -> Tensor:
        """Returns at least `count` int32 zeros of the current stream."""
        if is_capturing(self._device):
            # A captured launch has its own, because its graph may be replayed on any stream.
            return torch.zeros(count, dtype=torch.int32, device=self._device)
        stream = 0
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
        found = self._counters.get(stream)
        if found is None or found.numel() < count:
            found = torch.zeros(max(count, LEAST), dtype=torch.int32, device=self._device)
            self._counters.add(stream, found)
        return found
