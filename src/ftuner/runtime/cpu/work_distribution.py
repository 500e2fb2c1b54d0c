"""How the workers of a run share the steps of a graph, and where its buffers are in the arena."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ftuner.codegen.llvm.native.binding_records import Later, Living, Sharing
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER
from ftuner.runtime.shapes.layout import Areas, Words


class WorkDistribution:
    """Shares the steps of a graph among workers and places its buffers in the arena, by native
    code. Safe to use from several threads."""

    def __init__(
        self, runtime: NativeRuntime, rows: Sequence[int], counts: Sequence[int],
        stages: Sequence[int], sizes: Sequence[tuple[int, int]], lifetimes: Sequence[int],
        writers: Mapping[int, Sequence[int]], image: Words, areas: Areas, workers: int, shares: int,
    ) -> None:  # fmt: skip
        """`rows`, `counts`, `stages`, `lifetimes`: as of `Sharing`; `sizes`: of each buffer the
        number of the dim that counts elements, and the bytes of one; `writers`: by the number of a
        buffer that no step may write, the numbers of the steps that may; `image`: of the records;
        `areas`: of the words of a shape; `workers`, `shares`: areas as of `Sharing`."""
        self._runtime, self._steps, self._buffers = runtime, len(stages), len(sizes)
        self.shared_words = 4 * self._steps
        self.shared = areas.add(self.shared_words)
        """The area that says how workers share each step."""
        arrays: dict[int, Sequence[int]] = {
            Sharing.ROWS: rows,
            Sharing.COUNTS: counts,
            Sharing.STAGES: stages,
            Sharing.ELEMENTS: [number for number, _ in sizes],
            Sharing.ITEM_BYTES: [size for _, size in sizes],
            Sharing.LIFETIMES: lifetimes,
            Sharing.ALWAYS: [int(buffer not in writers) for buffer in range(len(sizes))],
            Sharing.WRITTEN: [buffer for buffer, steps in writers.items() for _ in steps],
            Sharing.WRITERS: [step for steps in writers.values() for step in steps],
        }
        numbers = {
            Sharing.STEPS: self._steps,
            Sharing.BUFFERS: self._buffers,
            Sharing.PAIRS: len(arrays[Sharing.WRITERS]),
            Sharing.WORKERS: workers,
            Sharing.SHARES: shares,
            Sharing.SHARED: self.shared,
            Sharing.SIZES: areas.add(self._buffers),
            Sharing.LIVING: areas.add(Living.SIZE * self._buffers),
            Sharing.FIRST_SOURCE: FIRST_BUFFER,
            Sharing.IMAGE_WORDS: len(image),
        }
        held = {Sharing.IMAGE: image} | {n: np.array(x, np.int64) for n, x in arrays.items()}
        self._record = np.zeros(Sharing.SIZE, np.int64)
        for number, value in (numbers | {n: address_of(x) for n, x in held.items()}).items():
            self._record[number] = value
        self._held = held
        self._address = address_of(self._record)

    def __call__(
        self, words: int, sources: int, most_chunks: int, once: Collection[int],
        elsewhere: Collection[int],
    ) -> tuple[int, Words | None]:  # fmt: skip
        """The bytes of the arena, and how steps are shared in runs that find the results of the
        steps `once` computed. `words`, `sources`: the addresses of the words of a shape and of its
        sources, to which the offset of each buffer is written. Buffers `elsewhere` have no
        bytes."""
        if not once:
            decided = self._runtime.decide(self._address, words, sources, most_chunks, None)
            return decided, None
        idle, away = np.zeros(self._steps, np.int64), np.zeros(self._buffers, np.int64)
        shared = np.zeros(self.shared_words, np.int64)
        idle[[*once]] = away[[*elsewhere]] = 1
        later = array("q", bytes(Later.SIZE * SLOT_BYTES))
        for number, x in ((Later.IDLE, idle), (Later.ELSEWHERE, away), (Later.SHARED, shared)):
            later[number] = address_of(x)
        at = later.buffer_info()[0]
        return self._runtime.decide(self._address, words, sources, most_chunks, at), shared

    def fill(
        self, base: int, records: int, fills: int, count: int, words: int, sources: int
    ) -> None:
        """Write records with an arena at the address `base`: the image and `count` fills."""
        self._runtime.fill(self._address, base, records, fills, count, sources, words)
