"""Fits what surrounds the k steps of a tile, the overlap with L2, and packing."""

from __future__ import annotations

from itertools import product
from statistics import linear_regression

import numpy as np

from ftuner.hardware.constants import Fitted
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.calibration.stand import Stand, believed, between, closest, geometric
from ftuner.runtime.cpu.trials import Trial

_SHORT_STEPS = (8, 16, 24, 32)
_LONG_STEPS = 64
_PANELS = (8, 40)
"""The difference of their times has no call in it."""
_ROUNDS = 20
_SHARES = geometric(0.3, 1.5, 30)
_OVERLAPS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
_SCALES = geometric(0.95, 1.3, 15)
_PRIOR_WEIGHT = 1e-3


def fit_tiles(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """Entering a tile, and each vector of its accumulators: what is left of the time of short k at
    no steps, of tiles of several heights. Their slopes, beside that of a longer k, tell how fast B
    comes from L2; the rate of multiply-adds is left free, as loops cost some per cent of it."""
    heights = sorted({1, 2, 3, 4, stand.tallest} & set(range(1, stand.tallest + 1)))
    steps = (*_SHORT_STEPS, _LONG_STEPS)
    places = list(product(heights, steps, _PANELS))
    l2, nr = stand.hardware.levels[1], stand.family.nr
    trials = [
        stand.trial(((mr, 1),), stand.bed.weights(l2, panels * nr, k)) for mr, k, panels in places
    ]
    timings = stand.timed(trials, _ROUNDS)
    seconds = {place: t.seconds for place, t in zip(places, timings, strict=True)}
    few, many = _PANELS

    def of_panel(mr: int, k: int) -> float:
        return (seconds[mr, k, many] - seconds[mr, k, few]) * stand.hardware.clock_hz / (many - few)

    vectors = [float(stand.tile(mr).accumulators) for mr in heights]
    begins = [
        linear_regression(_SHORT_STEPS, [of_panel(mr, k) for k in _SHORT_STEPS]).intercept
        for mr in heights
    ]
    of_vector, entering = linear_regression(vectors, begins)
    # Beside other load, a difference may be next to nothing, or less.
    measured = [
        max(of_panel(mr, _LONG_STEPS) - of_panel(mr, _SHORT_STEPS[-1]), 1.0)
        / (_LONG_STEPS - _SHORT_STEPS[-1])
        for mr in heights
    ]

    def modelled(share: float, overlap: float, scale: float) -> list[float]:
        return [scale * stand.l2_cycles(mr, share, overlap) for mr in heights]

    prior = (tuning.l2_share, tuning.l2_overlap, 1.0)
    ways = product(_SHARES, _OVERLAPS, _SCALES)
    (share, overlap, _), error = closest(ways, modelled, measured, prior, _PRIOR_WEIGHT)
    spread = max(t.spread for t in timings)
    error = max(error, spread)
    return {
        "tile_cycles": Fitted(believed(entering, tuning.tile_cycles, spread), spread),
        "tile_cycles_per_vector": Fitted(
            believed(of_vector, tuning.tile_cycles_per_vector, spread), spread
        ),
        "l2_share": Fitted(between(share, tuning.l2_share, error), error),
        "l2_overlap": Fitted(between(overlap, tuning.l2_overlap, error), error),
    }


def fit_crowding(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """What the tallest tile loses where its rows lead to the same sets of L1, and are more than its
    ways: the difference of its k steps with rows of whole ways and with somewhat shorter ones."""
    l1, mr = stand.hardware.levels[0], stand.family.max_mr
    size = stand.library.types.a.itemsize
    if not 0 < l1.associativity < mr:
        return {}
    k = l1.capacity_bytes // l1.associativity // size
    l2, nr = stand.hardware.levels[1], stand.family.nr
    steps = (k, k - l1.line_bytes // size)
    weights = [stand.bed.weights(l2, 2 * nr, count) for count in steps]
    segments = ((mr, 1),)
    timings = stand.timed([stand.trial(segments, w) for w in weights], _ROUNDS)
    crowded, other = (stand.cycles(t, segments, w) for t, w in zip(timings, weights, strict=True))
    reads = mr * stand.tile(mr).parts
    found = max(crowded - other, 0.0) / reads
    error = max(t.spread for t in timings)
    value = believed(max(found, 1e-3), tuning.crowded_row_cycles, error)
    return {"crowded_row_cycles": Fitted(value, error)}


def fit_packing(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """Copying and transposing a vector into a panel, from L2 to L2."""
    library, nr = stand.library, stand.family.nr
    types = library.types
    pack = stand.products.kernels.runtime.packs[types.b]
    size = types.b.itemsize
    k = max(int(stand.hardware.levels[1].capacity_bytes / 4 / (nr * size)), nr)
    # Rows are apart by no power of two, which would lead to few sets of the caches.
    rows = np.ones((max(k, nr), max(k, nr) + nr // 2), types.b.name)
    target = np.empty((k + 1) * nr, types.b.name)
    far, near = rows.strides

    def packing(k_stride: int, column_stride: int) -> Trial:
        source, there = rows.ctypes.data, target.ctypes.data
        return Trial(lambda: pack(source, k_stride, column_stride, there, k, nr, nr))

    copied, transposed = stand.timed([packing(far, near), packing(near, far)], _ROUNDS)
    vectors = nr * k / library.lanes
    fields = {"pack_copy_cycles_per_vector": copied, "pack_transpose_cycles_per_vector": transposed}
    clock_hz = stand.hardware.clock_hz
    return {
        field: Fitted(
            believed(t.seconds * clock_hz / vectors, getattr(tuning, field), t.spread), t.spread
        )
        for field, t in fields.items()
    }
