"""The largest elements of rows: most elements cost a comparison, the best ones a place."""

import math

import pytest
from tests.conftest import recorded_cpus

from ftuner.cost.cpu.selection import top_k_cost
from ftuner.cost.step import Machine
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning


def milan(workers: int = 1) -> Machine:
    machine = next(m for m in recorded_cpus() if m.name == "epyc-milan-2")
    return Machine(machine, machine.isa("avx2"), workers)


def test_known_rows() -> None:
    cost = top_k_cost(milan(), 3, 1000, 10, 4)
    tuning = CpuTuning()
    sink = tuning.loop_cycles + math.log2(11) * tuning.top_k_move_cycles
    row = 1000 * tuning.top_k_element_cycles + 10 * (2 + math.log(100)) * sink
    assert cost.estimate.seconds == pytest.approx(3 * row / 3.22e9)
    assert (cost.reads_bytes, cost.writes_bytes) == (12_000, 3 * 10 * (4 + 8))
    assert top_k_cost(milan(), 3, 1000, 0, 4).estimate.seconds == 0
    assert top_k_cost(milan(2), 0, 1000, 10, 4).estimate.issue_s == 0


def test_more_is_never_cheaper(recorded: CpuHardware) -> None:
    for workers in {1, min(3, recorded.cores)}:
        machine = Machine(recorded, recorded.widest, workers)
        for grow in (
            lambda n: (n, 50, 5, 4),
            lambda n: (7, 50 + n, 5, 4),
            lambda n: (7, 1000, n, 4),
        ):
            seconds = [top_k_cost(machine, *grow(n)).estimate.seconds for n in range(1, 1000)]
            assert seconds == sorted(seconds)
