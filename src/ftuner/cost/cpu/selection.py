"""The cost of selecting the best elements of rows."""

from __future__ import annotations

import math

from ftuner.cost.step import Machine, StepCost, Stream, estimate_of

SORTED_BYTES = 4
PASSES = 2
"""Looks at all elements, in one of which vectors are passed over."""
MOVES = 8
"""Of each element found: it is stored, counted, moved by three digits, and read again."""
HISTOGRAMS = 2 * 2048 + 1024


def top_k_cost(machine: Machine, rows: int, extent: int, wanted: int, itemsize: int) -> StepCost:
    """The cost of the `wanted` best of each of `rows` rows of `extent` elements.

    Rows are in random order: the i-th element is among the best so far with probability
    `wanted / i`. It then sinks in their heap, and all sink once more when that is sorted. Many
    elements of 32 bits or less are found by histograms and sorted by three digits instead."""
    inserted = wanted * (1.0 + math.log(extent / wanted)) if wanted else 0.0
    # No elements are wanted, so that the row is not read.
    looked = extent if wanted else 0
    tuning = machine.hardware.tuning
    sink_cycles = tuning.loop_cycles + tuning.top_k_move_cycles * math.log2(wanted + 1)
    row_cycles = looked * tuning.top_k_element_cycles + (inserted + wanted) * sink_cycles
    if itemsize <= SORTED_BYTES:
        moves = PASSES * looked + MOVES * wanted + HISTOGRAMS
        row_cycles = min(row_cycles, moves * tuning.top_k_element_cycles)
    reads, writes = rows * looked * itemsize, rows * wanted * (itemsize + 8)
    mine = -(-rows // machine.workers)
    part = (reads + writes) * mine / max(rows, 1)
    estimate = estimate_of(
        machine, max(min(rows, machine.workers), 1), mine * row_cycles, 0.0, 0.0,
        [Stream(part, reads + writes)],
    )  # fmt: skip
    return StepCost(0, reads, writes, estimate)
