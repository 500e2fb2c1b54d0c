"""The device's time for launches, by CUDA events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from ftuner.runtime.gpu.cuda_graphs import FixedLaunch


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
