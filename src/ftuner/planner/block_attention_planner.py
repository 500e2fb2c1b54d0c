"""Choosing the attention kernel of a GPU, and how its keys are cut, by an estimate.

For each height of a tile one block of keys, number of warps and of stages is kept, whichever is
fastest with a multiprocessor full of it and with one alone. A plan takes one of these heights, with
the heads that share keys as rows of one tile or apart; where tiles are fewer than multiprocessors,
keys are cut into parts. Candidates are priced in closed form; arithmetic only: nothing is compiled
or measured.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import inf, sqrt
from typing import NamedTuple

from ftuner.core.block_attention import AttentionForm, AttentionKernel, AttentionTile
from ftuner.cost.block_attention import (
    ROWS_A_WARP,
    AttentionTileCost,
    attention_tile_cost,
)
from ftuner.cost.block_attention_estimate import (
    AttentionEstimate,
    AttentionWork,
    estimate_attention,
)
from ftuner.cost.block_estimate import chip_of
from ftuner.cost.blocks import supports
from ftuner.errors import HardwareError
from ftuner.hardware.model import GpuHardware
from ftuner.planner.block_attention import (
    BlockAttentionPlan,
    BlockAttentionProblem,
    RequestLengths,
)

HEIGHTS = (16, 32, 64, 128)
KEYS = (16, 32, 64, 128)
WARPS = (4, 8)
STAGES = (2, 3, 4)
"""Blocks of keys under way or in use. Without asynchronous copies, the first of them."""
TALLEST_PACKED = 64
"""Rows of the tallest tile that heads which share keys are rows of; taller ones have rows enough of
one head."""
TALLEST_SPLIT = 64
"""Rows of the tallest tile whose keys are cut: where taller ones are too few, so are their rows."""
LOWEST_APART = 64
"""Rows of the lowest tile of one head, where heads share keys."""
LEAST_BLOCKS = 4
"""Blocks of keys that a part must keep; below, adding parts up costs more than it saves."""
MAX_PARTS = 64
STARVED_WAVES = 2
"""Keys are cut only where the tiles are fewer than this many for each multiprocessor."""


class _Candidate(NamedTuple):
    cost: AttentionTileCost
    packed: bool
    lower: int
    """Rows of the next lower tile that takes heads likewise; 0 if there is none."""
    whole: AttentionKernel
    split: AttentionKernel | None
    """The kernel that cuts keys, if there is one."""


@lru_cache(maxsize=1024)
def kept_tiles(hardware: GpuHardware, form: AttentionForm) -> tuple[AttentionTileCost, ...]:
    """The tiles of a form that a chip holds without spilling, one for each height, lowest first.

    Raises:
        HardwareError: a chip that cannot multiply so, or has no room for the least tile.
    """
    multiply = "tf32" if form.multiply == "tf32x3" else form.multiply
    if not supports(hardware, multiply):
        raise HardwareError(f"{hardware.name} does not multiply {multiply}")
    stages = STAGES if hardware.asynchronous_copy else STAGES[:1]
    kept = []
    for bq in HEIGHTS:
        found: list[AttentionTileCost] = []
        for bk, warps, count in product(KEYS, WARPS, stages):
            # A low tile on many warps adds sums up across them; a thin block fills none.
            if bq * 2 < warps * ROWS_A_WARP and warps > min(WARPS):
                continue
            cost = attention_tile_cost(hardware, form, AttentionTile(bq, bk, warps, count))
            if cost is not None:
                found.append(cost)
        if found:
            # Of equals the first one, which takes the least.
            kept.append(min(found, key=_seconds_of_key))
    if not kept:
        raise HardwareError(
            f"{hardware.name} has no room for a tile of attention over {form.depth} elements and "
            f"values of {form.columns}, {form.multiply}"
        )
    return tuple(kept)


def _seconds_of_key(cost: AttentionTileCost) -> float:
    """Of a multiprocessor, for each row and key: the geometric mean with the chip full, and with
    one tile alone."""
    full, alone = cost.step_s[-1] , cost.step_s[1]
    return sqrt(full * alone) / (cost.tile.bq * cost.tile.bk)


class AttentionPlanner:
    """Plans for one chip and form; immutable, safe to use from several threads."""

    def __init__(self, hardware: GpuHardware, form: AttentionForm, shared: bool) -> None:
        """`shared`: whether several heads of queries share keys and values.

        Raises:
            HardwareError: a chip that cannot multiply so, or has no room for the least tile.
        """
        self._form = form
        self._chip = chip_of(hardware, form.dtype)
        self._candidates = tuple(_candidates(kept_tiles(hardware, form), form, shared))

    @property
    def kernels(self) -> tuple[AttentionKernel, ...]:
        """All that a plan may choose."""
        found = [kernel for c in self._candidates for kernel in (c.whole, c.split)]
        return tuple(kernel for kernel in found if kernel is not None)

    def plan(
        self, problem: BlockAttentionProblem, lengths: RequestLengths | None = None
    ) -> BlockAttentionPlan:
        """The plan that takes the least; rows, keys and heads of the problem are positive.
        `lengths` are given where requests are of unequal length."""
        least, best, chosen = inf, 1, self._candidates[0]
        sms = self._chip.multiprocessors
        summary = None if lengths is None else _summary(lengths, self._form.causal != "none")
        rows = problem.rows if summary is None else summary.longest_rows
        for candidate in self._candidates:
            if candidate.lower >= (rows * problem.sharing if candidate.packed else rows):
                # That one has room for all rows.
                continue
            work = self._work(candidate, problem, summary)
            seconds = self._seconds(candidate, work, 1)
            if seconds < least:
                least, best, chosen = seconds, 1, candidate
            if candidate.split is None or work.units >= STARVED_WAVES * sms:
                continue
            most = min(work.longest // LEAST_BLOCKS, MAX_PARTS)
            for waves in {1, candidate.cost.blocks}:
                parts = min(waves * sms // work.units, most)
                if parts > 1:
                    seconds = self._seconds(candidate, work, parts)
                    if seconds < least:
                        least, best, chosen = seconds, parts, candidate
        kernel = chosen.whole if best == 1 else chosen.split
        assert kernel is not None
        return BlockAttentionPlan(problem, kernel, self._group(chosen, problem), best)

    def estimate(
        self, plan: BlockAttentionPlan, lengths: RequestLengths | None = None
    ) -> AttentionEstimate:
        """What a plan of this planner takes, term by term."""
        candidate = next(c for c in self._candidates if plan.kernel in (c.whole, c.split))
        summary = None if lengths is None else _summary(lengths, self._form.causal != "none")
        work = self._work(candidate, plan.problem, summary)
        return estimate_attention(self._chip, self._form, candidate.cost, work, plan.parts)

    def _seconds(self, candidate: _Candidate, work: AttentionWork, parts: int) -> float:
        return estimate_attention(self._chip, self._form, candidate.cost, work, parts).seconds

    def _group(self, candidate: _Candidate, problem: BlockAttentionProblem) -> int:
        """Heads side by side. Rows that see ever more keys begin with the last ones of as many
        heads as L2 holds the keys of, so that short tiles come last; else tiles of one head follow
        each other."""
        if self._form.causal == "none":
            return 1
        across = self._form.depth + self._form.columns
        keys = problem.keys // (problem.batch if self._form.ragged is not None else 1)
        held = int(self._chip.held_bytes // (max(keys, 1) * across * self._chip.itemsize))
        return max(held, 1) * (1 if candidate.packed else problem.sharing)

    def _work(
        self, candidate: _Candidate, problem: BlockAttentionProblem, summary: _Summary | None
    ) -> AttentionWork:
        batch, heads, sharing, rows, keys, depth, columns, past = problem
        bq, bk = candidate.cost.tile.bq, candidate.cost.tile.bk
        together = sharing if candidate.packed else 1
        apart = heads * (sharing // together)
        size = (depth + columns) * self._chip.itemsize
        if summary is not None:
            # Each request has half a tile more than its rows, one at least.
            tiles = max(summary.requests, summary.rows * together / bq + summary.requests / 2)
            seen = max(summary.seen, summary.seen_by_rows * together / bq + summary.seen / 2)
            units = apart * round(tiles)
            longest = -(-summary.longest_keys // bk)
            blocks = apart * (seen / bk + tiles / 2)
            head_bytes = summary.longest_keys * size
            head_units = -(-summary.longest_rows * together // bq) * (sharing // together)
            even = False
        else:
            tiles = -(-rows * together // bq)
            units = batch * apart * tiles
            longest = -(-keys // bk)
            blocks = float(units * longest)
            even = self._form.causal == "none" or longest == 1
            if not even:
                # The keys that the last row of each tile sees: from the first tile to the last one.
                first, last = min(bq // together, rows) + past, rows + past
                seen = _mean_between(first, last, keys)
                blocks = min(units * (seen / bk + 0.5), blocks)
                longest = -(-min(max(last, 0), keys) // bk)
            head_bytes = keys * size
            head_units = tiles * (sharing // together)
            heads *= batch
        return AttentionWork(
            units, blocks, longest, even, heads * sharing * rows * size,
            heads * keys * size, head_bytes, head_units,
        )  # fmt: skip


class _Summary(NamedTuple):
    """What lengths of requests come down to; those without rows are left out."""

    requests: int
    rows: int
    seen: float
    """The sum over requests of the keys that a row sees on average."""
    seen_by_rows: float
    """The same, times rows."""
    longest_rows: int
    longest_keys: int


def _summary(lengths: RequestLengths, causal: bool) -> _Summary:
    requests = rows = longest_rows = longest_keys = 0
    seen = by_rows = 0.0
    for r, k in zip(*lengths, strict=True):
        if r:
            requests += 1
            rows += r
            s = max(k - r / 2, k * k / (2 * r)) if causal and r > 1 else k
            seen += s
            by_rows += s * r
            longest_rows = max(longest_rows, r)
            longest_keys = max(longest_keys, k)
    return _Summary(requests, rows, seen, by_rows, longest_rows, longest_keys)


def _mean_between(first: int, last: int, most: int) -> float:
    """The mean of `min(max(x, 0), most)` for x from first to last."""
    if first >= last:
        return float(min(max(last, 0), most))
    return (_area(last, most) - _area(first, most)) / (last - first)


def _area(x: int, most: int) -> float:
    """Under `min(max(x, 0), most)`, from 0 to x."""
    if x <= 0:
        return 0.0
    return x * x / 2 if x <= most else most * (x - most / 2)


def _candidates(
    costs: tuple[AttentionTileCost, ...], form: AttentionForm, shared: bool
) -> list[_Candidate]:
    """By packing, then by height: packed ones first."""
    found = []
    for packed in (True, False) if shared else (False,):
        lower = 0
        for cost in costs:
            bq = cost.tile.bq
            if packed and bq > TALLEST_PACKED:
                continue
            if shared and not packed and bq < min(LOWEST_APART, costs[-1].tile.bq):
                continue
            split = None
            if bq <= TALLEST_SPLIT:
                split = AttentionKernel(form, cost.tile, packed, True)
            whole = AttentionKernel(form, cost.tile, packed)
            found.append(_Candidate(cost, packed, lower, whole, split))
            lower = bq
    return found


@lru_cache(maxsize=1024)
def attention_planner(
    hardware: GpuHardware, form: AttentionForm, shared: bool
) -> AttentionPlanner:
    """The one planner of a chip and form."""
    return AttentionPlanner(hardware, form, shared)
