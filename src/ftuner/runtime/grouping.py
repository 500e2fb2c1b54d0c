"""Which requests of a batch run together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

Order = tuple[Hashable, ...]
"""The order of the sums of each step for a number of rows; with a None if rows differ in it."""


def groups(
    sizes: Sequence[int], most: float, room: int, order: Callable[[int], Order]
) -> Iterator[list[int]]:
    """The numbers of the requests that run together: all sums are taken in one order, whether they
    run alone or together. `sizes`: of the requests, such as their rows; one of `most` or more, and
    one of nothing, runs alone. Those that run together have at most `room`."""
    begun: dict[Order, list[int]] = {}

    def taken(group: Sequence[int]) -> int:
        return sum([sizes[number] for number in group])

    def agreeing(group: Sequence[int], key: Order) -> Iterator[list[int]]:
        """A group without the requests that change the order of sums of all rows together."""
        left = list(group)
        while len(left) > 1 and order(taken(left)) != key:
            yield [left.pop()]
        yield left

    for number, size in enumerate(sizes):
        key = order(size) if 0 < size < most else (None,)
        if None in key:
            yield [number]
            continue
        group = begun.setdefault(key, [])
        if group and taken(group) + size > room:
            yield from agreeing(group, key)
            group = begun[key] = []
        group.append(number)
    for key, group in begun.items():
        yield from agreeing(group, key)
