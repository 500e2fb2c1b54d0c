"""The estimate of an attention on a GPU: seconds by cause, and how they come together.

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
from ftuner.cost.gpu.attention_tile import AttentionTileCost
from ftuner.cost.gpu.product import Chip
from ftuner.cost.gpu.tile import ACCUMULATOR_BYTES, overlapped_seconds


class AttentionEstimate(NamedTuple):
    """Seconds of an attention on a GPU by cause."""

    matrix_s: float
    """Products, spread evenly over all multiprocessors."""
    power_s: float
    """Exponentials and sums, likewise."""
    shared_s: float
    """Transfers into and out of shared memory, likewise."""
    stall_s: float
    """What blocks of keys take longer than the longest of these: they hold each other up, take
    turns in groups of warps, or have not arrived."""
    tail_s: float
    """What the busiest multiprocessor does beyond an even share."""
    l2_s: float
    """Transfers from and to L2."""
    dram_s: float
    """Transfers from and to DRAM."""
    fill_s: float
    """The first loads of tiles, where no other tile multiplies meanwhile."""
    store_s: float
    """Their results, likewise."""
    reduce_s: float
    """Adding up the sums of split keys."""
    launch_s: float
    overlap_exponent: float
    """As in `GpuTuning`."""

    @property
    def busiest_s(self) -> float:
        """Of the busiest multiprocessor, between its fills and stores."""
        return max(self.matrix_s, self.power_s, self.shared_s) + self.stall_s + self.tail_s

    @property
    def seconds(self) -> float:
        """What overlaps, and what does not."""
        overlapping_s = overlapped_seconds(
            self.overlap_exponent, self.busiest_s, self.l2_s, self.dram_s
        )
        return overlapping_s + self.fill_s + self.store_s + self.reduce_s + self.launch_s

    def terms(self) -> dict[str, float]:
        """All terms by name, in seconds."""
        return {name: s for name, s in self._asdict().items() if name.endswith("_s")}


class AttentionTiling(NamedTuple):
    """An attention by one tile, before keys are split."""

    units: int
    """Tiles of all heads."""
    blocks: float
    """Of keys, of all units together."""
    longest: int
    """Blocks of keys of the longest unit."""
    even: bool
    """Whether all units have as many."""
    own_bytes: float
    """Of queries and results."""
    key_bytes: float
    """Of keys and values, each once."""
    head_bytes: float
    """The same of the head of the request that has the most."""
    head_units: int
    """Tiles that read these."""


def mask_bytes_of_block(form: AttentionForm, tile: AttentionTile) -> float:
    """Of the mask that a block of keys of a tile reads."""
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

    # What surrounds the blocks of a unit hides behind other units, but for the first and last.
    rounds = -(-units // (sms * resident))
    around = (rounds - 1) / resident + 1.0
    reduce_s = summed_bytes = 0.0
    if split_keys > 1:
        reduce_s = chip.reduce_s + cost.partial_s * (1 + split_keys)
        # Written, and read back by the one that adds them up.
        summed_bytes = 2.0 * units * bq * (form.columns + 2) * ACCUMULATOR_BYTES

    # L2 and DRAM.
    mask_bytes = tiling.blocks * mask_bytes_of_block(form, cost.tile)
    l2_bytes = tiling.blocks * bk * across * chip.itemsize + tiling.own_bytes + mask_bytes
    passes = 1
    if tiling.head_bytes > chip.held_bytes:
        # Those that run together walk over the same keys.
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
