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
        self, words: array[int], first: int, shares: array[int], workers: int, most_chunks: int,
        once: Collection[int], elsewhere: Collection[int], offsets: array[int],
    ) -> tuple[int, Words | None]:  # fmt: skip
        """The bytes of the arena, and how steps are shared in runs that find the results of the
        steps `once` computed; how in others is written to `words` from `first` on. `words` begin
        with the values of all dims. Buffers `elsewhere` have no bytes. Writes the offset of each
        buffer to `offsets`."""
        memory = array("q", bytes(SLOT_BYTES * (1 + Living.SIZE) * self._buffers))
        idle = later = None
        if once:
            idle, later = np.zeros((2, 4 * self._steps), np.int64)
            idle[[*once]] = 1
        places = array("q", elsewhere)
        values, sizes = words.buffer_info()[0], memory.buffer_info()[0]
        # In the order of `records.Extents`.
        extents = array("q", (
            values, workers, most_chunks, shares.buffer_info()[0],
            0 if idle is None else address_of(idle), values + first * SLOT_BYTES,
            0 if later is None else address_of(later), *places.buffer_info(), sizes,
            offsets.buffer_info()[0], sizes + self._buffers * SLOT_BYTES,
        ))  # fmt: skip
        return self._runtime.decide(address_of(self._record), extents.buffer_info()[0]), later
