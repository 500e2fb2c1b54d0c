"""Which requests of a batch run together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count

from ftuner.core.caching import RecentlyUsed

KNOWN_ORDERS = 4096
"""Numbers of rows of which the order of sums is kept. Derived: an entry is some 100 bytes."""
NO_ORDER = -1
"""Where rows differ in the order of their sums."""


class Orders:
    """Numbers the orders of sums: a number is compared faster than what decides it. Safe to use
    from several threads."""

    def __init__(self) -> None:
        self._known: RecentlyUsed[Hashable, int] = RecentlyUsed(KNOWN_ORDERS)
        self._numbers: dict[Hashable, int] = {}
        self._next = count()

    def __call__(self, rows: Hashable, found: Callable[[], tuple[Hashable, ...]]) -> int:
        """The number of the order for rows; `found` returns what decides it, for each step, with a
        None where rows differ."""
        number = self._known.get(rows)
        if number is None:
            order, number = found(), NO_ORDER
            if None not in order:
                number = self._numbers.setdefault(order, next(self._next))
            self._known.add(rows, number)
        return number


def groups(
    sizes: Sequence[int], most: float, room: int, order: Callable[[int], int]
) -> Iterator[list[int]]:
    """The numbers of the requests that run together: all sums are taken in one order, whether they
    run alone or together. `sizes`: of the requests, such as their rows; one of `most` or more, and
    one of nothing, runs alone. Those that run together have at most `room`. `order`: that of the
    sums for a size, as `Orders` numbers it."""
    begun: dict[int, list[int]] = {}
    taken: dict[int, int] = {}

    def agreeing(key: int) -> Iterator[list[int]]:
        """A group without the requests that change the order of sums of all rows together."""
        left, size = begun[key], taken[key]
        while len(left) > 1 and order(size) != key:
            size -= sizes[left[-1]]
            yield [left.pop()]
        yield left

    for number, size in enumerate(sizes):
        key = order(size) if 0 < size < most else NO_ORDER
        if key == NO_ORDER:
            yield [number]
            continue
        if key in begun and taken[key] + size > room:
            yield from agreeing(key)
            del begun[key]
        if key not in begun:
            begun[key], taken[key] = [], 0
        begun[key].append(number)
        taken[key] += size
    for key in begun:
        yield from agreeing(key)
