"""Launches: recorded in CUDA graphs and replayed, timed, or by the C function of Triton's launcher.

Triton's Python around that function encodes tensor descriptors, builds metadata for hooks and looks
up scratch memory for each launch. With the same arguments the result is the same, so it runs once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from types import CellType, FunctionType
from typing import Any, Protocol

import torch
import triton
from triton.runtime import driver

FixedLaunch = Callable[[], None]
"""Launches kernels on the current stream, with the same arguments each time."""


class Recorder(Protocol):
    """Records launches, to repeat them in less time of the host."""

    usable: bool
    """Whether recording has not failed yet."""

    def record(self, work: FixedLaunch) -> FixedLaunch:
        """Returns a replay of `work` on the stream that is current then. `work` has run before, so
        that it compiles and loads nothing now. Raises what `work` raises, and RuntimeError if it
        cannot be recorded."""


class Repeating:
    """A recorder for interpreted kernels, which repeats the work itself."""

    usable = True

    def record(self, work: FixedLaunch) -> FixedLaunch:
        return work


class CudaRecorder:
    """Captures CUDA graphs that never run at the same time and share a memory pool."""

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        # torch reuses a few streams, and launches of other users of the stream would be captured
        # too. High-priority streams are rarely used.
        self._stream = stream(device, priority=-1)
        self._pool = torch.cuda.graph_pool_handle()
        self.usable = True

    def record(self, work: FixedLaunch) -> FixedLaunch:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            try:
                # Other threads may allocate and synchronise meanwhile. `torch.cuda.graph` would
                # synchronise the device and empty the allocator's cache.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with contextlib.suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            except BaseException:
                # The state of torch's capture is unknown now: no further capture is tried.
                self.usable = False
                raise
        replay: FixedLaunch = graph.replay
        return replay


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of a device is being captured in a CUDA graph."""
    if device.type != "cuda":
        return False
    if torch.cuda.current_device() == device.index:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    """Returns the handle of the current stream of a device; 0 where kernels are interpreted."""
    return driver.active.get_current_stream(device.index) if device.type == "cuda" else 0


def device_seconds(
    device: torch.device, launches: Sequence[FixedLaunch], held_cycles: int
) -> list[float]:
    """Runs launches in order on the current stream and waits for them; returns the seconds of each.

    The time is the device's, between CUDA events. Where kernels are interpreted, on a CPU, it is
    the host's.

    Args:
        held_cycles: clock cycles for which the device is held before the first launch, so that the
            host queues the launches ahead of it and its own time is not in theirs.
    """
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for launch in launches:
            launch()
            marks.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(marks)]
    cuda: Any = torch.cuda
    with torch.cuda.device(device):
        events = [cuda.Event(enable_timing=True) for _ in range(len(launches) + 1)]
        cuda._sleep(held_cycles)
        events[0].record()
        for launch, after in zip(launches, events[1:], strict=True):
            launch()
            after.record()
        events[-1].synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]


_STREAM_AT = 3
"""Index of the stream among the arguments of the C function, after the grid. Checked for each
kernel."""
_CELL = "launcher"
"""The variable of Triton's wrapper for descriptors that refers to the C function."""


def native_launch(
    compiled: Any, device: torch.device, programs: int, arguments: Sequence[Any]
) -> FixedLaunch | None:
    """Returns a launch of one of Triton's compiled kernels on the current stream.

    Args:
        arguments: addresses, numbers and descriptors: nothing that the launch would keep alive.

    Returns:
        None where a kernel needs memory for each launch, or this Triton has another launcher.
    """
    found = _recorded(compiled, programs, arguments)
    if found is None:
        return None
    native, call = found
    grid, rest = call[:_STREAM_AT], call[_STREAM_AT + 1 :]
    index, runtime = device.index, triton.knobs.runtime
    stream_of, device_of = driver.active.get_current_stream, driver.active.get_current_device

    def launch() -> None:
        begin, end = runtime.launch_enter_hook, runtime.launch_exit_hook
        # A hook is a function or None in older versions of Triton, a chain of functions in newer.
        if getattr(begin, "calls", begin) or getattr(end, "calls", end):
            with torch.cuda.device(device):
                compiled[(programs, 1, 1)](*arguments)
        elif device_of() == index:
            native(*grid, stream_of(index), *rest)
        else:
            with torch.cuda.device(device):
                native(*grid, stream_of(index), *rest)

    return launch


def _recorded(
    compiled: Any, programs: int, arguments: Sequence[Any]
) -> tuple[Callable[..., None], tuple[Any, ...]] | None:
    """Returns the C function and what Triton's launcher passes to it, without calling it."""
    launcher = copy(compiled.run)
    native = getattr(launcher, "launch", None)
    needs = ("global_scratch_size", "profile_scratch_size", "gsan_enabled")
    if native is None or any(getattr(launcher, need, 0) for need in needs):
        return None
    calls: list[tuple[Any, ...]] = []

    def record(*given: Any) -> None:
        calls.append(given)

    launcher.launch = record
    if isinstance(native, FunctionType):
        # The wrapper that encodes descriptors runs with `record` in the place of the C function.
        names, wrapper = native.__code__.co_freevars, native
        if _CELL not in names:
            return None
        cells = list(wrapper.__closure__ or ())
        at = names.index(_CELL)
        native, cells[at] = cells[at].cell_contents, CellType(record)
        launcher.launch = FunctionType(
            wrapper.__code__, wrapper.__globals__, wrapper.__name__, None, tuple(cells)
        )
    stream = object()
    no_hooks = None, None, None
    launcher(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, *no_hooks, *arguments
    )
    if len(calls) != 1 or calls[0][_STREAM_AT] is not stream:
        return None
    return native, calls[0]
