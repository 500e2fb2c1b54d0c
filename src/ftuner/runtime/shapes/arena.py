"""Places of buffers in one arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_REPEATED = 256
"""Buffers of a layer that may repeat. Derived: layers of models known to us have up to 30; looking
for repetition takes some 10 us for each number of buffers, when a model is loaded."""


class Lifetime(NamedTuple):
    """The first and the last stage that touches a buffer."""

    first: int
    last: int


class Repetition(NamedTuple):
    """Buffers from the number `begin` up to `end`, whose lifetimes are those of the ones `length`
    before, as layers that are alike have them."""

    begin: int
    length: int
    end: int


class ArenaPlaces:
    """Places buffers of known lifetimes in an arena, as soon as their sizes are known."""

    def __init__(self, lifetimes: Sequence[Lifetime]) -> None:
        """`lifetimes`: in the order of their first stages."""
        self._lifetimes = list(lifetimes)
        self._repetitions = repetitions(self._lifetimes)

    def __call__(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """An offset for each buffer, such that those that live together are apart, and the bytes of
        all. `sizes` are rounded up to what buffers begin at multiples of.

        Buffers are placed one after the other, each as low as those that live leave it. So a layer
        that finds the same places taken as the layer before gets the same offsets, and the layers
        after it do, too."""
        placing = _Placing(self._lifetimes, sizes)
        for begin, length, end in self._repetitions:
            seen: dict[object, int] = {}
            for at in range(begin - length, end - length + 1, length):
                placing.place(at)
                taken = placing.taken(end)
                before = seen.get(taken, at)
                seen[taken] = at
                times = _times(sizes, before, at, end)
                if times:
                    placing.repeat(at - before, times)
                    break
        placing.place(len(sizes))
        return placing.offsets, placing.total


def _times(sizes: Sequence[int], before: int, at: int, end: int) -> int:
    """How often the sizes from `before` to `at` come again from there, up to `end`."""
    length = at - before
    if not length:
        return 0
    known, times = sizes[before:at], 0
    while at + length <= end and sizes[at : at + length] == known:
        at += length
        times += 1
    return times


class _Placing:
    """Buffers that are placed so far."""

    def __init__(self, lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> None:
        self.offsets: list[int] = []
        self.total = 0
        self._lifetimes, self._sizes = lifetimes, sizes
        self._living: list[tuple[int, int, int]] = []
        """Begin, end and last stage of each buffer that lives, by its begin."""
        self._stage = 0

    def place(self, end: int) -> None:
        """Place buffers up to the number `end`."""
        # Local names, and no `max`: this is on the path of a call whose shape is new.
        offsets, living, total, stage = self.offsets, self._living, self.total, self._stage
        at = len(offsets)
        for size, (first, last) in zip(self._sizes[at:end], self._lifetimes[at:end], strict=True):
            if first > stage:
                stage = first
                living = [x for x in living if x[2] >= first]
            offset = 0
            for begin, after, _ in living:
                if offset + size <= begin:
                    break
                if offset < after:
                    offset = after
            after = offset + size
            insort(living, (offset, after, last))
            offsets.append(offset)
            if total < after:
                total = after
        self._living, self.total, self._stage = living, total, stage

    def taken(self, end: int) -> tuple[tuple[int, int, int], ...]:
        """What decides where the next buffers go, up to the number `end`: begin and end of each
        place that is taken, and for how many stages it still is; -1 if it is for all of them."""
        stage, final = self._lifetimes[len(self.offsets)].first, self._lifetimes[end - 1].first
        return tuple(
            [
                (begin, after, -1 if last >= final else last - stage)
                for begin, after, last in self._living
                if last >= stage
            ]
        )

    def repeat(self, length: int, times: int) -> None:
        """Place the next buffers where the last `length` ones are, and those after them. The same
        places were taken before those, and are now, up to the last buffer that is placed here."""
        at = len(self.offsets)
        self.offsets += self.offsets[at - length :] * times
        last_placed = self._lifetimes[len(self.offsets) - 1].first
        passed = last_placed - self._lifetimes[at - 1].first
        self._living = [
            (begin, after, last if last >= last_placed else last + passed)
            for begin, after, last in self._living
        ]
        self._stage += passed


def repetitions(lifetimes: Sequence[Lifetime]) -> list[Repetition]:
    """The repetitions, the longest first found and then those before and after it, in order."""
    if not lifetimes:
        return []
    first, last = np.array(lifetimes, np.int64).T
    steps = np.stack([np.diff(first, prepend=0), last - first], axis=1)
    _, kinds = np.unique(steps, axis=0, return_inverse=True)
    return _repetitions(kinds.reshape(-1), 0)


def _repetitions(kinds: npt.NDArray[np.int64], number: int) -> list[Repetition]:
    """Those of buffers of some kinds, the first of which has a number."""
    found = _longest(kinds)
    if found is None:
        return []
    begin, length, end = found
    before, after = kinds[: begin - length], kinds[end:]
    here = Repetition(number + begin, length, number + end)
    return [*_repetitions(before, number), here, *_repetitions(after, number + end)]


def _longest(kinds: npt.NDArray[np.int64]) -> Repetition | None:
    """The longest repetition, without its last layer, in which what all layers read is read last;
    None if no more than two layers are left."""
    best: Repetition | None = None
    for length in range(1, min(len(kinds) // 4, MAX_REPEATED) + 1):
        (differs,) = np.nonzero(kinds[length:] != kinds[:-length])
        edges = np.concatenate([[-1], differs, [len(kinds) - length]])
        runs = np.diff(edges) - 1
        longest = int(runs.argmax())
        begin, repeated = int(edges[longest]) + 1 + length, int(runs[longest]) - length
        if repeated >= 2 * length and (best is None or repeated > best.end - best.begin):
            best = Repetition(begin, length, begin + repeated)
    return best
