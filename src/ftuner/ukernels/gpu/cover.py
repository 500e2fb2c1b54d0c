"""The cover: the fewest tiles of which one is nearly as fast as any, for each reference product."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.core.product import ReadWindow
from ftuner.cost.gpu.product import (
    Chip,
    TileSchedule,
    chip_of,
    estimate_product,
    split_k_choices,
    tiling_of,
)
from ftuner.cost.gpu.tile import TileCost
from ftuner.hardware.gpu_model import GpuHardware


class ReferenceProduct(NamedTuple):
    """The extents of a product, as in `planner.gpu.plan.ProductProblem`."""

    m: int
    n: int
    k: int
    batch: int = 1
    window: ReadWindow | None = None


ROWS = (1, 12, 24, 34, 50, 80, 128, 250, 400, 700, 1000, 1500, 4000)
LAYERS = ((768, 768, 1), (3072, 768, 1), (768, 3072, 1), (4096, 4096, 1), (28672, 4096, 1),
          (8192, 2048, 1), (1024, 16384, 1), (128, 64, 192))  # fmt: skip
"""Rows, and columns, k and batch, of the reference products: decoding, square and skinny layers,
long k, and scores of attention."""
WINDOWS = ((49, 512, 512, 9), (196, 256, 256, 9), (784, 128, 128, 9), (3136, 64, 64, 9),
           (3136, 128, 128, 9), (6272, 96, 96, 9), (6272, 256, 256, 9), (12544, 128, 128, 9),
           (100352, 64, 64, 9), (262144, 16, 32, 9))  # fmt: skip
UNALIGNED_WINDOWS = ((12544, 32, 3, 9), (12544, 64, 3, 49), (3136, 96, 12, 9), (401408, 64, 21, 7))
"""Rows, columns, channels and elements of the window of reference convolutions."""
COVERED = 1.03
"""Largest ratio of the estimate of a reference product by a cover to that by all tiles."""


def references(alignment: int, axes: int) -> list[ReferenceProduct]:
    """Returns the reference products; `axes` are those of the window, 0 for matrices."""
    if not axes:
        return [ReferenceProduct(m, *layer) for m in ROWS for layer in LAYERS]
    return [
        ReferenceProduct(m, n, run * elements, 1, ReadWindow(axes, run, float(elements)))
        for m, n, run, elements in (WINDOWS if alignment == ALIGNMENT_BYTES else UNALIGNED_WINDOWS)
    ]


def covering(
    hardware: GpuHardware, dtype: DType, costs: Sequence[TileCost],
    products: Sequence[ReferenceProduct], chained: bool,
) -> list[TileCost]:  # fmt: skip
    """Returns a small cover by greedy choice; of tiles that serve equally well, earlier ones are
    taken. `chained` is as in `Tiling`."""
    if not costs:
        return []
    chip = chip_of(hardware, dtype)
    seconds = np.array(
        [[_seconds(hardware, chip, cost, p, chained) for p in products] for cost in costs]
    )
    ratios = seconds / seconds.min(axis=0)
    chosen: list[int] = []
    reached = np.full(len(products), np.inf)
    while reached.max() > COVERED:
        excess = np.maximum(np.minimum(reached, ratios) - COVERED, 0.0).sum(axis=1)
        chosen.append(int(excess.argmin()))
        reached = np.minimum(reached, ratios[chosen[-1]])
    # Tiles that later ones made superfluous.
    for number in list(chosen):
        others = [other for other in chosen if other != number]
        if others and ratios[others].min(axis=0).max() <= COVERED:
            chosen = others
    return [costs[number] for number in chosen]


def _seconds(
    hardware: GpuHardware, chip: Chip, cost: TileCost, product: ReferenceProduct, chained: bool
) -> float:
    """Returns the estimate of a product by one tile, by the best split-k."""
    m, n, k, batch, window = product
    tiling = tiling_of((cost,), n, k, batch, chained, window)
    tile, sms = cost.tile, chip.multiprocessors
    rows = -(-m // tile.bm)
    units = rows * tiling.columns * batch
    found = []
    for split_k in split_k_choices(hardware.tuning, sms, tiling, units):
        programs = min(units * split_k, cost.blocks * sms)
        swizzle = min(isqrt(programs // split_k * tile.bn // tile.bm) or 1, rows)
        schedule = TileSchedule((rows, 0), split_k, swizzle, programs)
        found.append(estimate_product(chip, tiling, schedule, m).seconds)
    return min(found)
