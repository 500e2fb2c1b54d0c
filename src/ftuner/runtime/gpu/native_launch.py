"""Launches that call the C function of Triton's launcher directly.

Triton's Python around that function encodes tensor descriptors, builds metadata for hooks and looks
up scratch memory for each launch. With the same arguments the result is the same, so it runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from types import CellType, FunctionType
from typing import Any

import torch
import triton
from triton.runtime import driver

from ftuner.runtime.gpu.cuda_graphs import FixedLaunch

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
