"""Ranges of extents within which decisions stay the same, and ranges of tasks, one a worker.

What is decided for a new extent is decided for the range that it is in, so that most new extents
find a decision. A range has one extent for which its decision is made, whichever extent comes
first: what is run does not depend on what ran before.
"""

from __future__ import annotations

from ftuner.errors import ShapeError

EXACT = 32
"""Extents below are fine ranges of their own: each number of rows within a row tile has its own
plan."""
FEW = 8
"""Extents below are coarse ranges of their own."""
FINE_BITS, COARSE_BITS = 3, 1
"""Binary logarithms of the ranges in an octave. Assumed: estimates differ less within a range of an
eighth of an octave than they err. Coarse ranges are for decisions by several extents at once, which
halves of an octave keep few."""
MANY = 1024
"""From here on fine ranges are as long as coarse ones. Derived: a plan decides tiles, blocks and
chunks, and this many rows are several of each."""


def fine_start(extent: int) -> int:
    """The first extent of a fine range."""
    if extent < EXACT:
        return extent
    shift = _fine_shift(extent)
    return extent >> shift << shift


def after_fine(start: int) -> int:
    """The first extent of the next fine range."""
    return start + 1 if start < EXACT else start + (1 << _fine_shift(start))


def _fine_shift(extent: int) -> int:
    return extent.bit_length() - 1 - (FINE_BITS if extent < MANY else COARSE_BITS)


def middle(extent: int) -> int:
    """An extent in the middle of a coarse range; of few ones the extent itself."""
    return extent if extent < FEW else coarse_middle(extent)


def coarse_start(extent: int) -> int:
    """The first extent of those that have the `middle` of an extent."""
    shift = _coarse_shift(extent)
    return extent >> shift << shift


def after_coarse(extent: int) -> int:
    """The first extent after those that have the `middle` of an extent."""
    shift = _coarse_shift(extent)
    return (extent >> shift) + 1 << shift


def _coarse_shift(extent: int) -> int:
    return 0 if extent < FEW else extent.bit_length() - 1 - COARSE_BITS


def coarse_middle(extent: int) -> int:
    """An extent in the middle of a coarse range, such as 224, 320 and 640."""
    shift = max(extent.bit_length() - 1 - COARSE_BITS, 0)
    return (extent >> shift << shift) + (1 << shift >> 1)


def bounds(extent: int, parts: int, worker: int) -> tuple[int, int]:
    """The half-open range (begin, end) of `extent` tasks that is `worker`'s among `parts`.

    The ranges of all workers are contiguous, in order, and differ in length by at most one; with
    more parts than tasks some are empty. Raises ShapeError for a negative extent, less than one
    part, or a worker that is not one of `0 .. parts - 1`.
    """
    if extent < 0 or not 0 <= worker < parts:
        raise ShapeError(
            f"worker {worker} of {parts} parts of {extent} tasks; expected 0 <= worker < {parts}, "
            "and a number of tasks of 0 or more"
        )
    return worker * extent // parts, (worker + 1) * extent // parts
