"""The estimate of attention on a GPU: seconds by cause, and their sum with overlap.

A unit is a tile of rows, or with split keys a part of one. Multiprocessors take units as they
become free. Of u units with equally many blocks of keys, the busiest of S multiprocessors does
`ceil(u / S)`. Where request lengths differ or attention is causal, long units begin first, and the
busiest multiprocessor does an even share and half of a unit, or the longest unit alone. Its time
beyond an even share is the tail of the last wave.

    seconds = overlapped_seconds(max(matrix, power, shared) + stall + tail, l2, dram)
              + fill + store + reduce + launch

Sources: makespans by waves as in `cost.gpu.product`; split keys, whose sums the
last-arriving program adds up, from flash-decoding (Dao et al. 2023).
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionForm, AttentionTile
from ftuner.cost.gpu.product import Chip
from ftuner.cost.gpu.tile import ACCUMULATOR_BYTES, overlapped_seconds
from ftuner.schedules.attention.gpu_cost_tile import AttentionTileCost


class AttentionEstimate(NamedTuple):
    """Seconds of attention on a GPU by cause. Others than these are as in `ProductEstimate`."""

    matrix_s: float
    """Products, spread evenly over all multiprocessors."""
    power_s: float
    """Exponentials and sums, in the same way."""
    shared_s: float
    stall_s: float
    """The excess of blocks of keys over the longest of these: contention, the turns of a warpgroup
    between products and powers, latency of loads."""
    tail_s: float
    l2_s: float
    dram_s: float
    fill_s: float
    store_s: float
    reduce_s: float
    """Adding up the sums of split keys."""
    launch_s: float
    overlap_exponent: float

    @property
    def busiest_s(self) -> float:
        """Seconds of the busiest multiprocessor between its fills and stores."""
        return max(self.matrix_s, self.power_s, self.shared_s) + self.stall_s + self.tail_s

    @property
    def seconds(self) -> float:
        """Total seconds: the terms that overlap, and the sum of the others."""
        overlapping_s = overlapped_seconds(
            self.overlap_exponent, self.busiest_s, self.l2_s, self.dram_s
        )
        return overlapping_s + self.fill_s + self.store_s + self.reduce_s + self.launch_s

    def terms(self) -> dict[str, float]:
        """Returns all terms by name, in seconds."""
        return {name: s for name, s in self._asdict().items() if name.endswith("_s")}


class AttentionTiling(NamedTuple):
    """An attention by one tile, before keys are split."""

    units: int
    """Tiles of all heads."""
    blocks: float
    """Blocks of keys of all units together."""
    longest: int
    """Blocks of keys of the longest unit."""
    even: bool
    """Whether all units have equally many blocks."""
    own_bytes: float
    """Queries and results."""
    key_bytes: float
    """Keys and values, each once."""
    head_bytes: float
    """Keys and values of one head of the longest request."""
    head_units: int
    """Tiles that read `head_bytes`."""


def mask_bytes_of_block(form: AttentionForm, tile: AttentionTile) -> float:
    """Returns the bytes of the mask that a tile reads for a block of keys."""
    if form.mask is None:
        return 0.0
    rows = tile.bq if form.mask.spread == "scores" else 1
    return float(rows * tile.bk * form.mask.dtype.itemsize)


def estimate_attention(
    chip: Chip,
    form: AttentionForm,
    cost: AttentionTileCost,
    tiling: AttentionTiling,
    split_keys: int,
) -> AttentionEstimate:
    """Returns the estimate of one launch, with the keys of each tile in `split_keys` parts."""
    (bq, bk), sms = (cost.tile.bq, cost.tile.bk), chip.multiprocessors
    across = form.depth + form.columns
    units = tiling.units * split_keys
    share = -(-units // sms)
    resident = min(cost.blocks, share)
    step_s = cost.step_s[resident]
    longest = -(-tiling.longest // split_keys)

    # The busiest multiprocessor.
    even = tiling.blocks / sms
    matrix_s, power_s = even * cost.matrix_s, even * cost.power_s
    shared_s = even * cost.shared_s
    even_s = even * step_s
    if tiling.even:
        busiest_s = share * longest * step_s
    else:
        busiest_s = even_s
        if units > sms:
            busiest_s += chip.last_unit_share * tiling.blocks / units * step_s
        busiest_s = max(busiest_s, longest * cost.step_s[1])
    most_s = max(matrix_s, power_s, shared_s)

    # Other units hide fills and stores, except for the first fill and the last store.
    rounds = -(-units // (sms * resident))
    around = (rounds - 1) / resident + 1.0
    reduce_s = summed_bytes = 0.0
    if split_keys > 1:
        reduce_s = chip.reduce_s + cost.partial_s * (1 + split_keys)
        # Written, and read back by the last-arriving program.
        summed_bytes = 2.0 * units * bq * (form.columns + 2) * ACCUMULATOR_BYTES

    # L2 and DRAM.
    mask_bytes = tiling.blocks * mask_bytes_of_block(form, cost.tile)
    l2_bytes = tiling.blocks * bk * across * chip.itemsize + tiling.own_bytes + mask_bytes
    passes = 1
    if tiling.head_bytes > chip.held_bytes:
        # Tiles that run at the same time read the same keys.
        passes = -(-tiling.head_units // (sms * cost.blocks))
    dram_bytes = tiling.own_bytes + passes * tiling.key_bytes + mask_bytes
    return AttentionEstimate(
        matrix_s,
        power_s,
        shared_s,
        even_s - most_s if even_s > most_s else 0.0,
        busiest_s - even_s if busiest_s > even_s else 0.0,
        (l2_bytes + summed_bytes) / chip.l2_bytes_per_s,
        dram_bytes / chip.dram_bytes_per_s,
        around * cost.fill_s,
        around * cost.store_s,
        reduce_s,
        chip.launch_s,
        chip.overlap_exponent,
    )
