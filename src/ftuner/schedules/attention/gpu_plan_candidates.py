"""Candidates for attention on a GPU: the estimate of a tile as a function of lengths.

A candidate computes what does not depend on lengths once. The seconds equal those of
`gpu_cost.estimate_attention`, which a test checks: its terms for the busiest
multiprocessor, `max(matrix, power, shared) + stall + tail`, simplify to the seconds of that
multiprocessor's blocks of keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionForm, AttentionKernel
from ftuner.cost.gpu.product import Chip
from ftuner.cost.gpu.tile import ACCUMULATOR_BYTES
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.planner.gpu.plan import AttentionProblem, RequestLengths
from ftuner.schedules.attention.gpu_cost import AttentionTiling, mask_bytes_of_block
from ftuner.schedules.attention.gpu_cost_tile import AttentionTileCost


class Summary(NamedTuple):
    """The statistics of request lengths that estimates read; requests without rows do not count."""

    requests: int
    rows: int
    seen: float
    """The sum over requests of the keys that a row sees on average."""
    seen_by_rows: float
    """The sum over requests of these keys times rows."""
    longest_rows: int
    longest_keys: int


def summary_of(lengths: RequestLengths, causal: bool) -> Summary:
    """Returns the statistics of request lengths. `causal`: whether the last row of a request sees
    all its keys, the row before one fewer, and so on."""
    requests = rows = longest_rows = longest_keys = 0
    seen = by_rows = 0.0
    for r, k in zip(*lengths, strict=True):
        if r:
            requests += 1
            rows += r
            s = float(k)
            if causal and r > 1:
                # Rows before the first key see none.
                s = k - r / 2 if k >= r else k * k / (2 * r)
            seen += s
            by_rows += s * r
            if r > longest_rows:
                longest_rows = r
            if k > longest_keys:
                longest_keys = k
    return Summary(requests, rows, seen, by_rows, longest_rows, longest_keys)


class Candidate:
    """A tile, with heads that share keys packed or not. Immutable."""

    def __init__(
        self, chip: Chip, form: AttentionForm, cost: AttentionTileCost, packed: bool, lower: int,
        splits: bool, tuning: GpuTuning,
    ) -> None:  # fmt: skip
        """`lower`: rows of the next lower tile that is packed or unpacked like this one; 0 if there
        is none. `splits`: whether there is a kernel that splits keys."""
        self.cost = cost
        self.packed = packed
        self.lower = lower
        self.key_s = cost.step_s[-1] / (cost.tile.bq * cost.tile.bk)
        """Seconds of a full multiprocessor per row and key."""
        sums = tuning.sums_in_flight
        self.whole = AttentionKernel(form, cost.tile, packed, sums_in_flight=sums)
        self.split = replace(self.whole, split=True) if splits else None
        self._tuning = tuning
        self._chip = chip
        self._causal = form.causal != "none"
        self._bq, self._bk = cost.tile.bq, cost.tile.bk
        across = form.depth + form.columns
        mask_bytes = mask_bytes_of_block(form, cost.tile)
        self._l2_s_per_block = (
            self._bk * across * chip.itemsize + mask_bytes
        ) / chip.l2_bytes_per_s
        self._dram_s_per_block = mask_bytes / chip.dram_bytes_per_s
        summed_bytes = 2.0 * self._bq * (form.columns + 2) * ACCUMULATOR_BYTES
        self._l2_s_per_part = summed_bytes / chip.l2_bytes_per_s
        self._around_s = cost.fill_s + cost.store_s

    def tiling(self, problem: AttentionProblem, summary: Summary | None) -> AttentionTiling:
        """Returns a problem cut into this tile; `summary`: where requests are of unequal length."""
        batch, heads, sharing, rows, keys, depth, columns, past = problem
        bq, bk = self._bq, self._bk
        packed_heads = sharing if self.packed else 1
        apart = sharing // packed_heads
        size = (depth + columns) * self._chip.itemsize
        if summary is None:
            tiles = -(-rows * packed_heads // bq)
            units = batch * heads * apart * tiles
            last, even = rows + past, True
            if self._causal:
                keys_seen = min(max(last, 0), keys)
                longest = -(-keys_seen // bk)
                even = tiles == 1 or longest <= 1
            else:
                longest = -(-keys // bk)
            blocks = float(units * longest)
            if not even:
                # Keys that the last row of a tile sees, for the first tile and for the last.
                first = min(bq // packed_heads + past, last)
                if first >= 0 and last <= keys:
                    seen = (first + last) / 2
                else:
                    seen = _mean_between(first, last, keys)
                blocks = min(units * (seen / bk + 0.5), blocks)
            own, each = batch * heads * sharing * rows * size, keys * size
            return AttentionTiling(
                units, blocks, longest, even, own, batch * heads * each, each, tiles * apart
            )
        # A request has half a tile more than its rows on average, and at least one tile.
        requests = summary.requests
        per_tile = packed_heads / bq
        tiled = max(requests, summary.rows * per_tile + requests / 2)
        seen = max(summary.seen, summary.seen_by_rows * per_tile + summary.seen / 2)
        head_tiles = -(-summary.longest_rows * packed_heads // bq)
        return AttentionTiling(
            heads * apart * round(tiled), heads * apart * (seen / bk + tiled / 2),
            -(-summary.longest_keys // bk), False, heads * sharing * rows * size,
            heads * keys * size, summary.longest_keys * size, head_tiles * apart,
        )  # fmt: skip

    def best_split(self, problem: AttentionProblem, summary: Summary | None) -> tuple[float, int]:
        """Returns the least seconds, and the `split_keys` that takes them."""
        tiling = self.tiling(problem, summary)
        units, _, longest, *_ = tiling
        seconds, best = self.seconds(tiling, 1), 1
        sms, tuning = self._chip.multiprocessors, self._tuning
        least_blocks = tuning.split_key_blocks
        starved = units < tuning.starved_waves * sms and longest >= 2 * least_blocks
        if self.split is None or not starved:
            return seconds, best
        most = min(longest // least_blocks, tuning.max_split_keys)
        tried = 1
        for waves in (1, self.cost.blocks):
            split_keys = min(waves * sms // units, most)
            if split_keys > tried:
                tried = split_keys
                cut = self.seconds(tiling, split_keys)
                spread = best == 1 and units < sms and cut < tuning.split_tolerance * seconds
                if cut < seconds or spread:
                    seconds, best = cut, split_keys
        return seconds, best

    def seconds(self, tiling: AttentionTiling, split_keys: int) -> float:
        """Returns `AttentionEstimate.seconds`; a test checks that both are equal."""
        units, blocks, longest, even, own_bytes, key_bytes, head_bytes, head_units = tiling
        chip, cost = self._chip, self.cost
        sms = chip.multiprocessors
        l2_s = blocks * self._l2_s_per_block + own_bytes / chip.l2_bytes_per_s
        around_s = chip.launch_s
        if split_keys > 1:
            units *= split_keys
            longest = -(-longest // split_keys)
            l2_s += units * self._l2_s_per_part
            around_s += chip.reduce_s + cost.partial_s * (1 + split_keys)
        share = -(-units // sms)
        resident = min(cost.blocks, share)
        step_s = cost.step_s[resident]
        if even:
            near_s = share * longest * step_s
        else:
            near_s = blocks / sms * step_s
            if units > sms:
                near_s += chip.last_unit_share * blocks / units * step_s
            alone_s = longest * cost.step_s[1]
            if alone_s > near_s:
                near_s = alone_s
        rounds = -(-units // (sms * resident))
        around_s += ((rounds - 1) / resident + 1.0) * self._around_s
        if head_bytes > chip.held_bytes:
            key_bytes *= -(-head_units // (sms * cost.blocks))
        dram_s = blocks * self._dram_s_per_block + (own_bytes + key_bytes) / chip.dram_bytes_per_s
        # `overlapped_seconds`, without a call.
        p = chip.overlap_exponent
        overlapping_s: float = (near_s**p + l2_s**p + dram_s**p) ** (1.0 / p)
        return around_s + overlapping_s


def _mean_between(first: int, last: int, most: int) -> float:
    """Returns the mean of `min(max(x, 0), most)` for x from first to last."""
    if first >= last:
        return float(min(max(last, 0), most))
    return (_area(last, most) - _area(first, most)) / (last - first)


def _area(x: int, most: int) -> float:
    """Returns the area under `min(max(x, 0), most)` from 0 to x."""
    if x <= 0:
        return 0.0
    return x * x / 2 if x <= most else most * (x - most / 2)
