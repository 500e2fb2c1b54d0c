"""Launches that are recorded once and replayed: CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch

FixedLaunch = Callable[[], None]
"""Launches kernels on the current stream, with the same arguments each time."""


class Recorder(Protocol):
    """Makes something of work that repeats it in less time."""

    usable: bool
    """Whether recording has not failed yet."""

    def record(self, work: FixedLaunch) -> FixedLaunch:
        """What does the work again, on the stream that is then current. All that it does has
        been done before, so that nothing is compiled or loaded now. Raises what the work raises,
        or RuntimeError where something in it cannot be recorded."""


class Repeating:
    """Does the work again, where there is nothing to record: kernels that are interpreted."""

    usable = True

    def record(self, work: FixedLaunch) -> FixedLaunch:
        return work


class CudaRecorder:
    """Captures CUDA graphs, which never run at the same time: they share memory for what they need
    in between."""

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        # torch hands out streams of a few in turn; those of a high priority to hardly anybody else,
        # whose launches would be captured too.
        self._stream = stream(device, priority=-1)
        self._pool = torch.cuda.graph_pool_handle()
        self.usable = True

    def record(self, work: FixedLaunch) -> FixedLaunch:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            try:
                # Other threads may allocate and synchronise meanwhile. (`torch.cuda.graph` would
                # have the whole device wait, and empty the allocator's cache.)
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with contextlib.suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            except BaseException:
                # What is left of it is in torch's hands; there will be no second.
                self.usable = False
                raise
        replay: FixedLaunch = graph.replay
        return replay


def is_capturing(device: torch.device) -> bool:
    """Whether the caller records what is launched on a device now."""
    if device.type != "cuda":
        return False
    if torch.cuda.current_device() == device.index:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
