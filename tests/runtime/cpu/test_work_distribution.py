"""How workers share the steps of a program and where its buffers are: by native code as in Python,
on any graph."""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.shapes.test_arena import layers, network

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER
from ftuner.runtime.cpu.work_distribution import WorkDistribution
from ftuner.runtime.shapes.layout import Areas, first_fit

DIMS = [0, 1, 3, 1000]
MOST = 16
WORKERS = 3


def dealt(
    rows: Sequence[int], counts: Sequence[int], stages: Sequence[int], shares: Any,
    idle: Sequence[int] = (),
) -> list[list[int]]:  # fmt: skip
    """What the slots of all steps hold."""
    found = []
    before: list[int] = []
    done = 0
    for step, (row, count, stage) in enumerate(zip(rows, counts, stages, strict=True)):
        workers, chunks, together = shares[row]
        if row == 0:
            workers, chunks, together = WORKERS, min(DIMS[count], MOST), 0
        if step in idle:
            chunks = together = 0
        before.append(done)
        found.append([workers, chunks, together, before[stage]])
        done += chunks
    return np.array(found, np.int64).reshape(-1, 4).T.tolist()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers, layers, st.integers(1, 6), layers, st.randoms(use_true_random=False))
def test_native_code_decides_as_python_does(
    widest: CpuBackend, before: Any, layer: Any, times: int, after: Any, random: Any
) -> None:
    lifetimes, numbers = network(before, layer, times, after)
    buffers, steps = len(numbers), random.randint(0, 20)
    sizes = [(random.randrange(len(DIMS)), random.choice((1, 2, 4, 8))) for _ in range(buffers)]
    stages = [0] * steps
    for step in range(1, steps):
        stages[step] = random.choice((step, stages[step - 1]))
    rows = [random.randint(0, 3) for _ in range(steps)]
    counts = [random.randrange(len(DIMS)) for _ in range(steps)]
    shares = [[0, 0, 0], *([random.randint(1, 9), random.choice((0, 5)), 1] for _ in range(3))]
    writers = {
        buffer: random.sample(range(steps), random.randint(1, min(steps, 3)))
        for buffer in range(buffers) if steps and random.random() < 0.4
    }  # fmt: skip
    once = [step for step in range(steps) if random.random() < 0.2]
    elsewhere = [buffer for buffer in range(buffers) if once and random.random() < 0.2]

    areas = Areas(len(DIMS))
    at = areas.add(1), areas.add(3 * len(shares))
    image = np.zeros(0, np.int64)
    distribute = WorkDistribution(
        widest.kernels.runtime, rows, counts, stages, sizes, lifetimes, writers, image, areas, *at
    )
    given = [*DIMS, WORKERS, *chain.from_iterable(shares)]
    words, sources = (
        array("q", given + [7] * areas.size),
        array("q", [7] * (FIRST_BUFFER + buffers)),
    )
    arena_bytes, later = distribute(
        words.buffer_info()[0], sources.buffer_info()[0], MOST, once, elsewhere
    )

    first = dealt(rows, counts, stages, shares)
    assert words[: len(given)].tolist() == given
    dealt_words = words[distribute.shared : distribute.shared + 4 * steps]
    assert np.array(dealt_words).reshape(4, -1).tolist() == first
    if once:
        assert later is not None
        assert later.reshape(4, -1).tolist() == dealt(rows, counts, stages, shares, once)
    taken = [aligned(DIMS[number] * size + SLACK_BYTES) for number, size in sizes]
    for buffer in range(buffers):
        written = writers.get(buffer)
        if buffer in elsewhere or (written and not any(first[1][step] for step in written)):
            taken[buffer] = 0
    assert (sources[FIRST_BUFFER:].tolist(), arena_bytes) == first_fit(lifetimes, taken)
