"""The steps of a batch in one table."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import layer
from tests.runtime.batch_graphs import encoder_of, requests
from tests.runtime.cpu.small_models import compiled as part_of

from ftuner.codegen.llvm.native.records import Step
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.joint_program import Joined, JointProgram
from ftuner.runtime.model import Model

LENGTHS = [30, 17, 25, 30, 22]
MOST_CALLS = 350
"""Of functions, of Python and of C, in a batch of two. Measured: 230, and 471 where NumPy wrote the
records of all requests."""
MOST_CALLS_OF_A_REQUEST = 50
"""The same for each further request. Measured: 42, and 56 where what requests of one shape share
was found for each of them, and all arrays had their addresses read."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("graph", [encoder_of(2, 64), layer(64, 2, 96)], ids=["encoder", "layer"])
def test_steps_follow_each_other(
    graph: Graph, threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[JointProgram, Any]] = []
    join = JointProgram.__call__

    def joined(self: JointProgram, *rest: Any) -> Joined:
        found = join(self, *rest)
        made.append((self, found.table.copy()))
        return found

    monkeypatch.setattr(JointProgram, "__call__", joined)
    model = Model(optimised(graph, halves=False), widest, Options(threads=threads))
    assert model._together(requests(graph, LENGTHS)) is not None
    ((joint, table),) = made
    batches = part_of(model)._batches
    assert batches is not None
    writers = [batches._programs[0].writer, *[batches._own_writer] * len(LENGTHS)]
    order = [*joint._order(len(writers))]
    every = [(i, n) for i, writer in enumerate(writers) for n in range(len(writer.stages))]
    assert sorted(order) == every
    assert len(table) == len(every)
    ended = np.cumsum(table[:, Step.CHUNKS]) - table[:, Step.CHUNKS]
    for place, (which, step) in enumerate(order):
        # All requests of a step wait for what is before the first one of its stage.
        stage = min(which, 1), writers[which].stages[step]
        begin = place if table[place, Step.TOGETHER] else order.index(stage)
        assert table[place, Step.BEFORE] == ended[begin]


def test_python_does_little_for_a_batch(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most batches have few requests, for each of which what is done for all of them counts."""
    # Inputs are asked whether they are tensors where a program has imported torch.
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    graph = encoder_of(2, 64)
    model = Model(optimised(graph, halves=False), widest, Options(threads=1))
    calls = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def calls_of(lengths: list[int]) -> int:
        nonlocal calls
        batch = requests(graph, lengths)
        model.run_batch(batch)
        calls = 0
        sys.setprofile(counted)
        try:
            model.run_batch(batch)
        finally:
            sys.setprofile(None)
        return calls

    few, many = calls_of([17, 30]), calls_of([17, 30, 9, 12, 14, 17, 22, 25, 8, 11])
    assert few < MOST_CALLS
    assert (many - few) / 8 < MOST_CALLS_OF_A_REQUEST
