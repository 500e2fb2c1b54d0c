"""Programs that come again: recorded, and run on tensors of their own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.graph.graphs import Maker, S, assert_close, reference
from tests.recorded_gpus import gpu

from ftuner.core.dtype import INT64
from ftuner.errors import IndexRangeError
from ftuner.graph.ir import Graph
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.runtime.backend import Options
from ftuner.runtime.gpu import executable as graphs
from ftuner.runtime.gpu.arrays import allows_tf32, tf32_set
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.executable import CompiledGraph
from ftuner.runtime.gpu.launching import FixedLaunch
from ftuner.runtime.gpu.program import Launch, Program
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.model import Model

WIDTH, LAYERS, ROWS = 16, 8, 5
RECORDED_RUN = GpuTuning().recorded_run


def stack() -> Graph:
    """Rows of a table through more layers than their launches are worth."""
    maker = Maker()
    y = maker.add("gather", maker.weight(ROWS, WIDTH), maker.given("index", S, dtype=INT64), axis=0)
    for _ in range(LAYERS):
        y = maker.add("softmax", maker.linear(y, WIDTH), axis=1, log=False)
    return maker.made(y)


class Recordings:
    """Repeats work, and counts."""

    usable = True

    def __init__(self) -> None:
        self.made = self.replayed = 0

    def record(self, work: FixedLaunch) -> FixedLaunch:
        self.made += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


class Failing:
    usable = True

    def record(self, work: FixedLaunch) -> FixedLaunch:
        self.usable = False
        raise RuntimeError("an operation is not permitted while capturing")


class Stack:
    """A model whose runs have other data each time, and are compared with the reference."""

    def __init__(self, backend: GpuBackend, **options: Any) -> None:
        self._graph = stack()
        self.model = CompiledGraph(self._graph, backend, Options(**options))
        self._rng = np.random.default_rng(0)

    def run(self, rows: int, times: int = 1) -> torch.Tensor:
        """Returns the result of the last run."""
        for _ in range(times):
            index = self._rng.integers(0, ROWS, rows)
            (y,) = self.model.run([torch.from_numpy(index)])
            assert_close([y.numpy()], reference(self._graph, {"index": index}), f"{rows} rows")
        return y


@pytest.fixture
def recorded(h200: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> Recordings:
    found = Recordings()
    monkeypatch.setattr(h200, "recorder", lambda: found)
    return found


def test_what_comes_again_is_recorded(h200: GpuBackend, recorded: Recordings) -> None:
    run = Stack(h200).run
    run(3, RECORDED_RUN - 1)
    assert (recorded.made, recorded.replayed) == (0, 0)
    first = run(3)
    kept = first.clone()
    assert (recorded.made, recorded.replayed) == (1, 1)
    run(3)
    run(2)
    assert (recorded.made, recorded.replayed) == (1, 2)
    # What a run gave is the caller's.
    assert torch.equal(first, kept)


def test_a_larger_arena_forgets_recordings(h200: GpuBackend, recorded: Recordings) -> None:
    run = Stack(h200).run
    run(2, RECORDED_RUN)
    # Buffers begin at multiples of 256 bytes, which are four rows.
    run(9)
    run(2)
    assert (recorded.made, recorded.replayed) == (1, 1)
    run(2, RECORDED_RUN)
    assert (recorded.made, recorded.replayed) == (2, 3)


def test_nothing_is_recorded_for_who_does_not_want_it(
    h200: GpuBackend, recorded: Recordings
) -> None:
    graph = stack()
    model = Model(graph, h200)
    model.record(False)
    feeds = {"index": np.array([0, 2, 1])}
    for _ in range(RECORDED_RUN + 1):
        assert_close(model.run(feeds), reference(graph, feeds))
    assert recorded.made == 0


def test_recordings_are_bounded(
    h200: GpuBackend, recorded: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index of 8 bytes and 16 numbers of 4 a row: room for four rows.
    room = 4 * (8 + 4 * WIDTH)
    share = (room + 1) / h200.hardware.dram_bytes
    tuning = GpuTuning(recorded_share_of_dram=share)
    monkeypatch.setattr(h200, "_hardware", replace(h200.hardware, tuning=tuning))
    made = Stack(h200)
    model, run = made.model, made.run
    for rows, count, replayed in ((6, 0, 0), (3, 1, 1), (1, 2, 2), (2, 3, 3), (1, 3, 6)):
        run(rows, RECORDED_RUN)
        # The oldest goes where there is no room for two, and what is too large has none.
        assert (recorded.made, recorded.replayed) == (count, replayed)
    assert sum(program.kept_bytes for program in model._programs.values()) <= room


def test_what_cannot_be_recorded_is_launched(
    h200: GpuBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(h200, "recorder", Failing)
    run = Stack(h200).run
    for rows in (3, 2):
        run(rows, RECORDED_RUN + 2)
    assert caplog.text.count("is not recorded") == 1


def test_recording_may_be_wanted_later(h200: GpuBackend, recorded: Recordings) -> None:
    made = Stack(h200)
    model, run = made.model, made.run
    model.recording = False
    run(3, RECORDED_RUN + 1)
    model.recording = True
    run(3)
    assert recorded.made == 1


def test_precision_is_that_of_load(h200: GpuBackend, recorded: Recordings) -> None:
    """Whether launched or recorded, whatever torch is told afterwards."""
    maker = Maker()
    y = maker.given("x", S, WIDTH)
    for _ in range(LAYERS):
        y = maker.linear(y, WIDTH, bias=False)
    graph = maker.made(y)
    model = CompiledGraph(graph, h200, Options())
    kernels = len(h200.kernels)
    with tf32_set(True):
        for _ in range(RECORDED_RUN + 1):
            model.run([torch.randn(3, WIDTH)])
    assert recorded.replayed == 2
    assert len(h200.kernels) == kernels


def test_a_replay_tells_what_is_out_of_range(h200: GpuBackend, recorded: Recordings) -> None:
    made = Stack(h200)
    model, run = made.model, made.run
    run(3, RECORDED_RUN)
    with pytest.raises(IndexRangeError, match="out of range"):
        model.run([torch.tensor([0, ROWS, 1])])
    assert recorded.replayed == 2
    run(3)


def test_what_a_caller_captures_has_its_own_memory(
    h200: GpuBackend, recorded: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Stack(h200)
    model, run = made.model, made.run
    run(2)
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "is_capturing", lambda device: True)
        run(9, RECORDED_RUN + 1)
        # Nothing is read while a graph is captured.
        model.run([torch.tensor([0, ROWS, 1])])
    assert recorded.made == 0
    with pytest.raises(IndexRangeError):
        run(2)
    run(2, RECORDED_RUN - 2)
    # Programs that were bound before still have theirs.
    assert recorded.made == 1


def test_what_torch_was_told_of_tf32() -> None:
    assert not allows_tf32()
    for allowed in (True, False):
        with tf32_set(allowed):
            assert allows_tf32() == allowed
    assert not allows_tf32()
    torch.set_float32_matmul_precision("high")
    try:
        assert allows_tf32()
        with tf32_set(False):
            assert not allows_tf32()
        assert allows_tf32()
    finally:
        torch.set_float32_matmul_precision("highest")


class Idle(Launch):
    """A launch of nothing."""

    def __call__(self, arrays: Sequence[torch.Tensor]) -> None: ...


class Idles(Idle):
    """A step of many launches."""

    count = 20


@pytest.mark.parametrize(
    ("launches", "elements", "expected"), [(2, 1, False), (20, 1, True), (20, 1 << 28, False)]
)
def test_recording_must_pay(launches: int, elements: int, expected: bool) -> None:
    """Few launches cost less than copies do; and so do many, where there is much to copy."""
    made = Recordings()
    device = torch.device("meta")
    x = torch.empty(elements, device=device)
    outputs = [((1,), torch.float32)]
    program = Program([Idle()] * launches, outputs, device, gpu("h200"), Scratch(device))
    for _ in range(RECORDED_RUN):
        if program.is_due([x]):
            program.record([x], made)
        program.run([x])
    assert bool(program.memory) == expected


def test_a_step_of_many_launches_is_worth_recording() -> None:
    device = torch.device("meta")
    x = torch.empty(1, device=device)
    program = Program([Idles()], [((1,), torch.float32)], device, gpu("h200"), Scratch(device))
    for _ in range(RECORDED_RUN):
        program.run([x])
    assert program.is_due([x])


def test_prepared_shapes_are_recorded_and_trim_forgets_them(
    h200: GpuBackend, recorded: Recordings
) -> None:
    kept = KeptMemory()
    made = Stack(h200, kept=kept)
    model = made.model
    assert model.prepare([[(2,)], [(3,)]]) == []
    assert (recorded.made, recorded.replayed) == (2, 2)
    made.run(3)
    assert (recorded.made, recorded.replayed) == (2, 3)
    assert kept.bytes > 0
    kept.trim()
    assert kept.bytes == 0
    model.recording = False
    assert model.prepare([[(4,)]]) == []
    assert recorded.made == 2
    made.run(4)
