"""Places of buffers in one arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """A buffer: its bytes, rounded up to what buffers begin at multiples of, and the first and the
    last stage that touches it."""

    size: int
    first: int
    last: int


def places(spans: Iterable[Span]) -> tuple[list[int], int]:
    """An offset for each buffer, such that those that live together are apart, and the bytes of
    all. Buffers come in the order of their first stage."""
    offsets: list[int] = []
    living: list[tuple[int, int, int]] = []
    stage = total = 0
    for size, first, last in spans:
        if first > stage:
            stage = first
            living = [x for x in living if x[2] >= first]
        offset = 0
        for begin, end, _ in living:
            if offset + size <= begin:
                break
            # Not `max`, which takes longer: this is on the path of a call whose shape is new.
            if offset < end:
                offset = end
        after = offset + size
        insort(living, (offset, after, last))
        offsets.append(offset)
        if total < after:
            total = after
    return offsets, total
