"""Runs of several callers go side by side, each with memory of its own, which is used again."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from tests.at_once import at_once
from tests.graph.graphs import assert_close, inputs_of, layer, reference

from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.launching import Launcher
from ftuner.runtime.cpu.program import BoundProgram
from ftuner.runtime.cpu.run_states import MAX_PROGRAM_BYTES, RunStates
from ftuner.runtime.model import Model

LAYER = optimised(layer())


def test_one_caller_has_one_state() -> None:
    states = RunStates(4)
    first = states.take()
    states.give_back(first)
    second = states.take()
    third = states.take()
    assert second is first
    assert third is not first
    states.give_back(third)
    states.give_back(second)
    assert states.take() is first
    assert len(states.all) == 2


def test_programs_share_their_bytes() -> None:
    states = RunStates(4)
    taken = [states.take() for _ in range(4)]
    assert {state.programs.limit for state in taken} == {MAX_PROGRAM_BYTES // 4}


def test_no_more_states_than_they_may_be() -> None:
    states = RunStates(2)
    taken = [states.take(), states.take()]
    order: list[str] = []

    def wait() -> None:
        state = states.take()
        order.append("taken")
        states.give_back(state)

    def give() -> None:
        time.sleep(0.05)
        order.append("given back")
        states.give_back(taken.pop())

    at_once(wait, wait, give)
    assert order == ["given back", "taken", "taken"]
    assert len(states.all) == 2


def test_many_callers_of_few_states() -> None:
    states = RunStates(2)
    inside = [0]
    most = [0]
    lock = threading.Lock()

    def work() -> None:
        for _ in range(300):
            state = states.take()
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1
            states.give_back(state)

    at_once(*[work] * 8)
    assert 1 <= most[0] <= 2
    assert len(states.all) <= 2


def test_a_lost_state_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between two lines loses what was just taken."""
    monkeypatch.setattr("ftuner.runtime.cpu.run_states.LOOK_AGAIN_S", 0.01)
    states = RunStates(1)
    for _ in range(3):
        states.take()
    held = [states.take()]
    threading.Timer(0.05, held.clear).start()
    assert states.take() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_has_states_of_its_own() -> None:
    """While threads that it does not have are in runs, and wait for one."""
    states = RunStates(1)
    held = [states.take()]

    def wait() -> None:
        states.give_back(states.take())

    waits = threading.Thread(target=wait)
    waits.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        states.give_back(states.take())
        os._exit(0)
    states.give_back(held.pop())
    waits.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Models.


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_of_one_model_side_by_side(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Two callers are inside at once."""
    monkeypatch.setattr(widest, "cores", 2)
    model = Model(LAYER, widest, Options(threads=threads))
    both = threading.Barrier(2)
    launch = Launcher.all

    def together(self: Launcher, *arguments: Any) -> None:
        both.wait(timeout=10)
        launch(self, *arguments)

    monkeypatch.setattr(Launcher, "all", together)

    def work(seed: int) -> None:
        for s in (5, 33, 5):
            feeds = inputs_of(LAYER, {"B": 2, "S": s + seed}, seed)
            assert_close(model.run(feeds), reference(LAYER, feeds))

    at_once(lambda: work(0), lambda: work(1))
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    first, second = part.states.all
    assert first.arena.address != second.arena.address


def test_a_program_is_bound_to_one_state(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers change places; each run reads and writes the memory of its own state."""
    monkeypatch.setattr(widest, "cores", 3)
    model = Model(LAYER, widest, Options(threads=1))
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    cases = [inputs_of(LAYER, {"B": 1, "S": s}, s) for s in range(1, 9)]
    expected = [[y.tobytes() for y in model.run(feeds)] for feeds in cases]
    launch = Launcher.all
    running: set[int] = set()

    def watched(self: Launcher, program: BoundProgram, *arguments: Any) -> None:
        assert program.arena not in running
        running.add(program.arena)
        launch(self, program, *arguments)
        running.remove(program.arena)

    monkeypatch.setattr(Launcher, "all", watched)

    def work(first: int) -> None:
        for turn in range(100):
            number = (first + turn * 3) % len(cases)
            assert [y.tobytes() for y in model.run(cases[number])] == expected[number]

    at_once(*[lambda i=i: work(i) for i in range(6)])  # type: ignore[misc]
    assert len(part.states.all) <= 3


def test_times_and_footprints_beside_runs(widest: CpuBackend) -> None:
    model = Model(LAYER, widest, Options(threads=1))
    feeds = inputs_of(LAYER, {"B": 2, "S": 9})
    expected = model.run(feeds)
    memory = model.memory(feeds)

    def runs() -> None:
        for _ in range(30):
            for x, y in zip(model.run(feeds), expected, strict=True):
                assert np.array_equal(x, y)

    def looks() -> None:
        for _ in range(3):
            assert len(model.step_seconds(feeds)) == len(model.steps)
            assert model.memory(feeds) == memory

    at_once(runs, looks, runs)
