"""Sequences of matrices at the boundary: what grouped products take, wherever they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple

from ftuner.errors import OperandError, ShapeError

Range = tuple[int, int]
"""Addresses of a matrix: of its first byte, and of the byte after its last one."""


class Groups(NamedTuple):
    """Operands of grouped products, as many of each; whether they are matrices is not known yet."""

    a: list[object]
    b: list[object]
    out: list[object] | None

    @property
    def members(self) -> list[object]:
        """All of them."""
        return [*self.a, *self.b, *(self.out or ())]


def matched(a: object, b: object, out: object | None) -> Groups:
    """The members of sequences of one length.

    Raises:
        OperandError: what is no sequence.
        ShapeError: sequences of several lengths.
    """
    found = Groups(
        _members(a, "a"), _members(b, "b"), None if out is None else _members(out, "out")
    )
    if len(found.a) != len(found.b):
        raise ShapeError(f"a has {len(found.a)} matrices, b {len(found.b)}: give one of each")
    if found.out is not None and len(found.out) != len(found.a):
        raise ShapeError(f"out has {len(found.out)} matrices, a and b {len(found.a)}")
    return found


def _members(value: object, name: str) -> list[object]:
    if isinstance(value, Iterable):
        try:
            return list(value)
        except (TypeError, NotImplementedError):
            # An array of no axes and a view of several in memory say that they can be walked,
            # until they are.
            pass
    raise OperandError(f"{name} is a {type(value).__name__}; expected a sequence of matrices")


def product_extents(
    number: int, a: Sequence[int], b: Sequence[int], out: Sequence[int] | None = None
) -> tuple[int, int]:
    """(m, n) of the group so numbered, from the shapes of its operands.

    Raises:
        ShapeError: ranks or extents that do not fit.
    """
    for name, shape in (("a", a), ("b", b)):
        if len(shape) != 2:
            raise ShapeError(f"{name}[{number}] is {tuple(shape)}; expected a matrix (two axes)")
    if a[1] != b[0]:
        raise ShapeError(
            f"group {number}: a is {tuple(a)} and b is {tuple(b)}: a has {a[1]} columns, b "
            f"{b[0]} rows"
        )
    if out is not None and tuple(out) != (a[0], b[1]):
        raise ShapeError(
            f"out[{number}] is {tuple(out)}; the product of {tuple(a)} and {tuple(b)} is "
            f"{(a[0], b[1])}"
        )
    return a[0], b[1]


def crossing(written: Sequence[Range], read: Sequence[Range]) -> list[bool]:
    """For each range that is written, whether it shares addresses with one that is read, or with
    another one that is written."""
    firsts, ends = _ascending(read)
    found = [_reaches(firsts, ends, w) for w in written]
    filled = (i for i, (first, end) in enumerate(written) if first < end)
    order = sorted(filled, key=lambda i: written[i])
    reached = -1
    for i, following in zip_longest(order, order[1:]):
        first, end = written[i]
        # Those before it reach no further than one of them, and those after it begin no sooner
        # than the next one.
        if reached > first or (following is not None and written[following][0] < end):
            found[i] = True
        reached = max(reached, end)
    return found


def _ascending(ranges: Sequence[Range]) -> tuple[list[int], list[int]]:
    """First addresses of ranges that are not empty, ascending, and how far those up to each
    reach."""
    ordered = sorted(r for r in ranges if r[0] < r[1])
    return [r[0] for r in ordered], list(accumulate((r[1] for r in ordered), max))


def _reaches(firsts: Sequence[int], ends: Sequence[int], other: Range) -> bool:
    """Whether one of the ranges that `_ascending` describes shares addresses with another one."""
    first, end = other
    before = bisect_left(firsts, end)
    return first < end and before > 0 and ends[before - 1] > first
