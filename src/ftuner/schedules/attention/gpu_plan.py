"""The planner of attention on a GPU: from lengths to a kernel and the number of parts of its keys.

For each height of a tile, one combination of key block, warps and stages is kept: the fastest by
the geometric mean of a full multiprocessor and of one tile alone. A plan takes one of the heights.
Heads that share keys are rows of one tile (packed) or have their own tiles. Keys are split where
tiles are fewer than multiprocessors. The candidate with the lowest closed-form estimate is the
plan. Planning is arithmetic: nothing is compiled or measured.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import inf, sqrt

from ftuner.core.gpu.attention import AttentionForm, AttentionKernel, AttentionTile
from ftuner.cost.gpu.product import chip_of
from ftuner.cost.gpu.tile import supports, vector_instruction
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.planner.gpu.plan import AttentionPlan, AttentionProblem, RequestLengths
from ftuner.schedules.attention.gpu_cost import AttentionEstimate, estimate_attention
from ftuner.schedules.attention.gpu_cost_tile import (
    ROWS_A_WARP,
    AttentionTileCost,
    attention_tile_cost,
    exchanges_more,
    takes_specialised,
)
from ftuner.schedules.attention.gpu_plan_candidates import Candidate, Summary, summary_of

HEIGHTS = (16, 32, 64, 128)
KEYS = (16, 32, 64, 128)
WARPS = (4, 8)
SPECIALISED = AttentionTile(128, 128, 8, 3, specialised=True)
"""Two stages would be in use at once: buffers are given back a step later."""
STAGES = (2, 3, 4)
"""Blocks of keys in flight or in use. Without asynchronous copies only the first is tried."""


@lru_cache(maxsize=1024)
def kept_tiles(hardware: GpuHardware, form: AttentionForm) -> tuple[AttentionTileCost, ...]:
    """Returns the tiles of a form that do not spill, one for each height, lowest first, and last
    the one with specialised warps, if the tuning has it; if there are none, the smallest tile.

    Raises:
        HardwareError: the chip does not multiply so, or has no room for the smallest tile.
    """
    if not supports(hardware, form.multiply):
        raise HardwareError(f"{hardware.name} does not multiply {form.multiply}")
    least_rows = ROWS_A_WARP
    if form.multiply == "float32":
        least_rows = vector_instruction(hardware.warp_threads).rows
    stages = STAGES if hardware.asynchronous_copy else STAGES[:1]
    kept = []
    for bq in HEIGHTS:
        found: list[AttentionTileCost] = []
        for bk, warps, count in product(KEYS, WARPS, stages):
            if bq < warps * least_rows and warps > min(WARPS):
                # More warps than rows: some would compute the same rows.
                continue
            tile = AttentionTile(bq, bk, warps, count)
            cost = attention_tile_cost(hardware, form, tile)
            if cost is not None and not exchanges_more(hardware, form, tile):
                found.append(cost)
        if found:
            # Of equal ones the first, which takes the fewest resources.
            kept.append(min(found, key=_seconds_of_key))
    if hardware.tuning.specialised_warpgroups > 1 and takes_specialised(hardware, form):
        specialised = attention_tile_cost(hardware, form, SPECIALISED)
        assert specialised is not None
        kept.append(specialised)
    if kept:
        return tuple(kept)
    least = AttentionTile(HEIGHTS[0], KEYS[0], WARPS[0], STAGES[0])
    cost = attention_tile_cost(hardware, form, least, spilling=True)
    if cost is None:
        raise HardwareError(
            f"{hardware.name} has no room for a tile of attention over {form.depth} elements and "
            f"values of {form.columns}, {form.multiply}"
        )
    return (cost,)


def _seconds_of_key(cost: AttentionTileCost) -> float:
    """Returns a multiprocessor's seconds per row and key: the geometric mean of those with the chip
    full and with one tile alone."""
    full, alone = cost.step_s[-1], cost.step_s[1]
    return sqrt(full * alone) / (cost.tile.bq * cost.tile.bk)


def estimate_attention_plan(
    hardware: GpuHardware, plan: AttentionPlan, lengths: RequestLengths | None = None
) -> AttentionEstimate:
    """Returns the estimate of a plan on a chip, by terms. The chip may differ in rates and
    constants from the one that the plan was made for; the plan's tile fits both."""
    kernel = plan.kernel
    form, tuning = kernel.form, hardware.tuning
    cost = attention_tile_cost(hardware, form, kernel.tile, spilling=True)
    assert cost is not None
    chip = chip_of(hardware, form.dtype)
    candidate = Candidate(chip, form, cost, kernel.packed, 0, kernel.split, tuning)
    tiling = candidate.tiling(plan.problem, _summary(form, lengths))
    return estimate_attention(chip, form, cost, tiling, plan.split_keys)


def _summary(form: AttentionForm, lengths: RequestLengths | None) -> Summary | None:
    return None if lengths is None else summary_of(lengths, form.causal != "none")


class AttentionPlanner:
    """Plans for one chip and form; immutable, safe to use from several threads."""

    def __init__(self, hardware: GpuHardware, form: AttentionForm, shared: bool) -> None:
        """`shared`: whether several heads of queries share keys and values.

        Raises:
            HardwareError: the chip does not multiply so, or has no room for the smallest tile.
        """
        self._form = form
        self._ample_waves = hardware.tuning.ample_attention_waves
        self._chip = chip_of(hardware, form.dtype)
        tiles = kept_tiles(hardware, form)
        self._candidates = tuple(_candidates(hardware, tiles, form, shared))
        packed = [c.cost.tile.bq for c in self._candidates if c.packed]
        self._tallest_packed = max(packed, default=0)

    @property
    def kernels(self) -> tuple[AttentionKernel, ...]:
        """All kernels that a plan may choose."""
        found = [kernel for c in self._candidates for kernel in (c.whole, c.split)]
        return tuple(kernel for kernel in found if kernel is not None)

    def plan(
        self, problem: AttentionProblem, lengths: RequestLengths | None = None
    ) -> AttentionPlan:
        """Returns the cheapest plan; rows, keys and heads of the problem are positive. `lengths`:
        where requests are of unequal length."""
        least, best, chosen = inf, 1, self._candidates[0]
        summary = _summary(self._form, lengths)
        rows = problem.rows if summary is None else summary.longest_rows
        packed_rows = rows * problem.sharing
        # The tallest tile that fills the chip with many waves.
        all_rows = problem.rows * problem.sharing * problem.heads
        if lengths is None:
            all_rows *= problem.batch
        many = all_rows // (self._ample_waves * self._chip.multiprocessors)
        least_key_s = inf
        for candidate in self._candidates:
            if candidate.key_s >= least_key_s:
                continue
            if candidate.lower >= (packed_rows if candidate.packed else rows):
                # The next lower tile has room for all rows.
                continue
            if candidate.packed and rows >= candidate.cost.tile.bq:
                # Each head fills a tile by itself.
                continue
            if not candidate.packed and packed_rows <= self._tallest_packed:
                # One packed tile has room for all heads, and reads their keys once.
                continue
            tile = candidate.cost.tile
            if tile.bq <= many and not tile.specialised:
                # Nothing is left out for the sake of specialised tiles, whose blocks are large.
                least_key_s = candidate.key_s
            seconds, split_keys = candidate.best_split(problem, summary)
            if seconds < least:
                least, best, chosen = seconds, split_keys, candidate
        kernel = chosen.whole if best == 1 else chosen.split
        assert kernel is not None
        return self.plan_by(problem, kernel, best)

    def plan_by(
        self, problem: AttentionProblem, kernel: AttentionKernel, split_keys: int
    ) -> AttentionPlan:
        """Returns the plan by a kernel of the form, with keys in `split_keys` parts."""
        return AttentionPlan(problem, kernel, self._l2_heads(kernel, problem), split_keys)

    def seconds(self, plan: AttentionPlan, lengths: RequestLengths | None = None) -> float:
        """Returns the seconds by which a plan of this planner was chosen."""
        candidate = next(c for c in self._candidates if plan.kernel in (c.whole, c.split))
        summary = _summary(self._form, lengths)
        return candidate.seconds(candidate.tiling(plan.problem, summary), plan.split_keys)

    def _l2_heads(self, kernel: AttentionKernel, problem: AttentionProblem) -> int:
        """Returns the heads whose tiles are interleaved. Causal attention begins with the last
        tiles of as many heads as L2 holds the keys of, so that short tiles come last. Otherwise the
        tiles of one head are consecutive."""
        if self._form.causal == "none":
            return 1
        ragged = self._form.ragged is not None
        across = self._form.depth + self._form.columns
        keys = problem.keys // problem.batch if ragged else problem.keys
        held = int(self._chip.held_bytes // (max(keys, 1) * across * self._chip.itemsize))
        apart = 1 if kernel.packed else problem.sharing
        heads = problem.heads * (1 if ragged else problem.batch)
        return min(max(held, 1), heads) * apart


def _candidates(
    hardware: GpuHardware, costs: tuple[AttentionTileCost, ...], form: AttentionForm, shared: bool
) -> list[Candidate]:
    """The tallest tiles first."""
    chip, tuning = chip_of(hardware, form.dtype), hardware.tuning
    found = []
    for packed in (True, False) if shared else (False,):
        lower = 0
        for cost in costs:
            bq = cost.tile.bq
            if packed and (bq > tuning.tallest_packed_rows or cost.tile.specialised):
                continue
            if shared and not packed and bq < min(tuning.lowest_unpacked_rows, costs[-1].tile.bq):
                continue
            accumulators = bq * form.columns // (cost.tile.warps * hardware.warp_threads)
            few = accumulators <= tuning.max_split_accumulators
            splits = few and bq <= tuning.tallest_split_rows and not cost.tile.specialised
            found.append(Candidate(chip, form, cost, packed, lower, splits, tuning))
            lower = bq
    return sorted(found, key=lambda candidate: -candidate.cost.tile.bq)


@lru_cache(maxsize=1024)
def attention_planner(hardware: GpuHardware, form: AttentionForm, shared: bool) -> AttentionPlanner:
    """Returns the one planner of a chip and form."""
    return AttentionPlanner(hardware, form, shared)
