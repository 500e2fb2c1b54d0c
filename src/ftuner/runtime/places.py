"""Places of buffers in one arena."""

from __future__ import annotations

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
    total = 0
    for size, first, last in spans:
        living = [x for x in living if x[2] >= first]
        offset = 0
        for begin, end, _ in living:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        living.append((offset, offset + size, last))
        living.sort()
        offsets.append(offset)
        total = max(total, offset + size)
    return offsets, total
