"""Perfect hashes of keys that are known when a model is loaded.

Two multiplicative hashes give a bucket and a slot; the displacement of the bucket makes the slots
of all keys distinct (hash and displace; Belazzougui et al., ESA 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ftuner.graph.ir import Array

_TRIES = 4
"""Factors that are tried before the tables double. Derived: at most half of the slots are used, so
that two keys of one bucket rarely have one slot."""


@dataclass(frozen=True)
class PerfectHash:
    """The slot of a word is `(word * factors[1] >> shift) ^ displacements[word * factors[0] >>
    shift]`, in the arithmetic of unsigned words."""

    factors: tuple[int, int]
    shift: int
    displacements: Array
    order: Array
    """The number of the word of each slot; 0 for slots without one."""


def perfect_hash(words: Array) -> PerfectHash:
    """The hash of distinct unsigned integers."""
    bits = 8 * words.itemsize
    draw = np.random.default_rng(int.from_bytes(blake2b(words.tobytes()).digest(), "little"))
    log_size, tries = (2 * words.size - 1).bit_length(), 0
    while True:
        factors = draw.integers(1 << (bits - 1), 1 << bits, 2, words.dtype) | words.dtype.type(1)
        bucket, slot = ((words * f >> (bits - log_size)).astype(np.int64) for f in factors)
        displacements = _displacements(bucket, slot, 1 << log_size)
        if displacements is not None:
            break
        tries += 1
        log_size += tries % _TRIES == 0
    order = np.zeros(1 << log_size, np.int64)
    order[slot ^ displacements[bucket]] = np.arange(words.size)
    low, high = map(int, factors)
    return PerfectHash((low, high), bits - log_size, displacements, order)


def _displacements(bucket: Array, slot: Array, size: int) -> Array | None:
    """A displacement for each bucket, the fullest first; None if two of its keys have one slot."""
    free = np.ones(size, np.bool_)
    found = np.zeros(size, np.int64)
    counts = np.bincount(bucket, minlength=size)
    by_bucket = np.argsort(bucket, kind="stable")
    starts = np.cumsum(counts) - counts
    shared = np.flatnonzero(counts > 1)
    for number in shared[np.argsort(-counts[shared], kind="stable")].tolist():
        own = slot[by_bucket[starts[number] : starts[number] + counts[number]]]
        fits = next((d for d in range(size) if free[own ^ d].all()), None)
        if fits is None or len(set(own.tolist())) < own.size:
            return None
        found[number] = fits
        free[own ^ fits] = False
    alone = np.flatnonzero(counts == 1)
    found[alone] = slot[by_bucket[starts[alone]]] ^ np.flatnonzero(free)[: alone.size]
    return found
