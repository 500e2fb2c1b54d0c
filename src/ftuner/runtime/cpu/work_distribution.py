"""How the workers of a run share the steps of a graph, and where its buffers are in the arena."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ftuner.codegen.llvm.native.binding_records import Living, Sharing
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.shapes.layout import Lifetime, Words

NO_SHARES = bytes(3 * SLOT_BYTES)
"""The first row of shares."""


class WorkDistribution:
    """Shares the steps of a graph among workers and places its buffers in the arena, by native
    code. Safe to use from several threads."""

    def __init__(
        self, runtime: NativeRuntime, rows: Sequence[int], counts: Sequence[int],
        stages: Sequence[int], sizes: Sequence[tuple[int, int]], lifetimes: Sequence[Lifetime],
        writers: Mapping[int, Sequence[int]],
    ) -> None:  # fmt: skip
        """`rows`, `counts`, `stages`: as of `records.Sharing`; `sizes`: of each buffer the number
        of the dim that counts elements, and the bytes of one; `writers`: by the number of a buffer
        that no step may write, the numbers of the steps that may."""
        self._runtime, self._steps, self._buffers = runtime, len(stages), len(sizes)
        arrays: dict[int, Sequence[int]] = {
            Sharing.ROWS: rows,
            Sharing.COUNTS: counts,
            Sharing.STAGES: stages,
            Sharing.ELEMENTS: [number for number, _ in sizes],
            Sharing.ITEM_BYTES: [size for _, size in sizes],
            Sharing.LIFETIMES: [stage for life in lifetimes for stage in life],
            Sharing.ALWAYS: [int(buffer not in writers) for buffer in range(len(sizes))],
            Sharing.WRITTEN: [buffer for buffer, steps in writers.items() for _ in steps],
            Sharing.WRITERS: [step for steps in writers.values() for step in steps],
        }
        self._arrays = [np.array(words, np.int64) for words in arrays.values()]
        self._record = np.zeros(Sharing.SIZE, np.int64)
        self._record[[*arrays]] = [*map(address_of, self._arrays)]
        self._record[Sharing.STEPS], self._record[Sharing.BUFFERS] = self._steps, self._buffers
        self._record[Sharing.PAIRS] = len(arrays[Sharing.WRITERS])

    def __call__(
        self, words: Words, first: int, shares: Words, workers: int, most_chunks: int,
        once: Collection[int], elsewhere: Sequence[int],
    ) -> tuple[Words, int, Words]:  # fmt: skip
        """The offsets of all buffers in the arena, its bytes, and how steps are shared in runs that
        find the results of the steps `once` computed; how in others is written to `words` from
        `first` on. `words` begin with the values of all dims. Buffers `elsewhere` have no bytes."""
        count = self._buffers
        offsets, memory = np.empty(count, np.int64), np.empty((1 + Living.SIZE) * count, np.int64)
        idle, later = np.zeros((2, 4 * self._steps if once else 0), np.int64)
        idle[[*once]] = 1
        places = np.array(elsewhere, np.int64)
        values, sizes = address_of(words), address_of(memory)
        # In the order of `records.Extents`.
        extents = array("q", (
            values, workers, most_chunks, address_of(shares), address_of(idle) if once else 0,
            values + first * SLOT_BYTES, address_of(later), address_of(places), len(places),
            sizes, address_of(offsets), sizes + count * SLOT_BYTES,
        ))  # fmt: skip
        arena_bytes = self._runtime.decide(address_of(self._record), extents.buffer_info()[0])
        return offsets, arena_bytes, later
