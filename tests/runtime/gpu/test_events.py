"""The time of launches: by the host's clock in the interpreter, by events on a CUDA device."""

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftuner.runtime.gpu.launching import device_seconds


def test_the_clock_of_the_host() -> None:
    seconds = device_seconds(torch.device("cpu"), [lambda: time.sleep(0.01), lambda: None], 1)
    assert seconds[0] >= 0.01
    assert 0 <= seconds[1] < seconds[0]


class Stream:
    """A device that executes what is queued when an event is waited for."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.now_ms = 0.0
        self.held_cycles: list[int] = []

    def launch(self, milliseconds: float) -> None:
        self.queue.append(milliseconds)

    def event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        made = SimpleNamespace(at_ms=None)
        made.record = lambda: self.queue.append(made)
        made.synchronize = self.run
        made.elapsed_time = lambda end: end.at_ms - made.at_ms
        return made

    def run(self) -> None:
        for queued in self.queue:
            if isinstance(queued, float):
                self.now_ms += queued
            else:
                queued.at_ms = self.now_ms
        self.queue.clear()


def test_events_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "_sleep", lambda cycles: (stream.held_cycles.append(cycles), stream.launch(7.0))
    )
    launches = [lambda: stream.launch(2.0), lambda: None, lambda: stream.launch(0.5)]
    seconds = device_seconds(torch.device("cuda", 0), launches, 1000)
    assert seconds == pytest.approx([2e-3, 0.0, 5e-4])
    assert stream.held_cycles == [1000]
