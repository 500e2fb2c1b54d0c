"""Ranges of extents within which decisions stay the same.

What is decided for a new extent is decided for the range that it is in, so that most new extents
find a decision. A range has one extent for which its decision is made, whichever extent comes
first: what is run does not depend on what ran before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EXACT = 32
"""Extents below are ranges of their own: each number of rows within a row tile has its own plan."""
FINE_BITS, COARSE_BITS = 3, 2
"""Binary logarithm of the ranges in an octave. Assumed: estimates differ less within a range of
an eighth of an octave than they err. Coarse ranges are for decisions by several extents at once,
which a quarter keeps few."""
_MANTISSA_BITS = 52


def fine_start(extent: int) -> int:
    """The first extent of a fine range."""
    if extent < EXACT:
        return extent
    shift = extent.bit_length() - 1 - FINE_BITS
    return extent >> shift << shift


def after_fine(start: int) -> int:
    """The first extent of the next fine range."""
    return start + 1 if start < EXACT else start + (1 << start.bit_length() - 1 - FINE_BITS)


def coarse_end(extent: int) -> int:
    """The last extent of a coarse range, of which one is given."""
    shift = max(extent.bit_length() - 1 - COARSE_BITS, 0)
    return ((extent >> shift) + 1 << shift) - 1


def fine_starts(extents: npt.NDArray[np.int64]) -> list[int]:
    """`fine_start` of each."""
    return np.where(extents < EXACT, extents, _cut(extents, FINE_BITS, 0)).tolist()


def coarse_middles(extents: npt.NDArray[np.int64]) -> list[int]:
    """An extent in the middle of each one's coarse range."""
    return _cut(extents, COARSE_BITS, 1).tolist()


def _cut(extents: npt.NDArray[np.int64], bits: int, following: int) -> npt.NDArray[np.int64]:
    """Extents of which the first bit and `bits` more are left; `following`: the next one."""
    words = extents.astype(np.float64).view(np.int64)
    kept = _MANTISSA_BITS - bits
    words = words >> kept << kept | following << kept - 1
    found: npt.NDArray[np.int64] = words.view(np.float64).astype(np.int64)
    return found
