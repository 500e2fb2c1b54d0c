"""What the machine lets through: all workers take part, and shares are of the longest limit."""

import time
from itertools import pairwise

import numpy as np
import pytest
from benchmarks.limits import FILL, READ_BYTES, SINK_BYTES, Limits, _Table

from ftuner_tools.timing import Timing, share


def timing(*samples: float) -> Timing:
    return Timing(min(samples), float(np.median(samples)), len(samples), 1, samples)


def test_shares_are_of_the_longest_limit() -> None:
    engine = timing(4.0, 2.0, 10.0)
    compute, read = timing(1.0, 1.5, 5.0), timing(2.0, 1.0, 2.0)
    assert share(engine, compute) == (0.5, 0.5)
    assert share(engine, compute, read) == (0.5, 0.5)
    assert share(timing(4.0, 2.0, 8.0), compute, read) == (0.5, pytest.approx(0.625))
    assert share(engine, compute, timing(3.0, 3.0, 3.0)) == (1.5, 0.75)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_worker_does_its_part(threads: int) -> None:
    limits = Limits(threads)
    flops, size, copies = 10_000_000, 100_001, 3
    (compute,) = limits.multiply_adds(flops)
    _, sinks, table = compute()
    first = table[_Table.SINKS] - sinks.ctypes.data
    of_workers = sinks[first : first + threads * SINK_BYTES].reshape(threads, SINK_BYTES)
    # A worker that comes too late is not waited for.
    deadline = time.monotonic() + 60.0
    while not np.all((of_workers != FILL).any(axis=1)):
        assert time.monotonic() < deadline
        compute()
    assert table[_Table.TAKEN] >= table[_Table.CHUNKS] >= threads
    assert table[_Table.CHUNKS] * table[_Table.REPEATS] * limits._flops_of_repeat >= flops
    reads = limits.reads(size, copies)
    assert len(reads) == copies
    places = []
    for read in reads:
        memory, _, table = read()
        step, chunks = table[_Table.STEP], table[_Table.CHUNKS]
        assert step == table[_Table.SIZE]
        assert size <= chunks * step < size + chunks * READ_BYTES
        places.append((table[_Table.FIRST], table[_Table.FIRST] + chunks * step))
    assert memory.ctypes.data <= places[0][0]
    assert places[-1][1] <= memory.ctypes.data + memory.size
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def test_little_work_is_cut_into_few_chunks() -> None:
    limits = Limits(2)
    (compute,) = limits.multiply_adds(2 * limits._flops_of_repeat + 1)
    *_, table = compute()
    assert (table[_Table.CHUNKS], table[_Table.REPEATS]) == (3, 1)
    (read,) = limits.reads(1, 1)
    *_, table = read()
    assert (table[_Table.CHUNKS], table[_Table.SIZE]) == (1, READ_BYTES)
