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

from ftuner.core.gpu.attention import AttentionForm, AttentionKernel, AttentionTile
from ftuner.cost.gpu.attention import (
    AttentionEstimate,
    estimate_attention,
)
from ftuner.cost.gpu.attention_tile import (
    ROWS_A_WARP,
    AttentionTileCost,
    attention_tile_cost,
)
from ftuner.cost.gpu.product import Chip, chip_of
from ftuner.cost.gpu.tile import supports, vector_instruction
from ftuner.errors import HardwareError
from ftuner.hardware.model import GpuHardware
from ftuner.planner.gpu.attention_candidates import Candidate, Summary, summary_of
from ftuner.planner.gpu.attention_plan import (
    AttentionPlan,
    AttentionProblem,
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
MOST_SPLIT_ACCUMULATORS = 64
"""Of a thread, in a kernel that cuts keys: with 128, adding parts up spilled."""
MANY_WAVES = 8
"""Tiles that are no faster for each row and key than a taller one are left out, where of that there
are as many for each multiprocessor. Derived: the last wave costs an eighth at most."""
LOWEST_APART = 32
"""Rows of the lowest tile of one head, where heads share keys."""


@lru_cache(maxsize=1024)
def kept_tiles(hardware: GpuHardware, form: AttentionForm) -> tuple[AttentionTileCost, ...]:
    """The tiles of a form that a chip holds without spilling, one for each height, lowest first; if
    there are none, the least tile.

    Raises:
        HardwareError: a chip that cannot multiply so, or has no room for the least tile.
    """
    multiply = "tf32" if form.multiply == "tf32x3" else form.multiply
    if not supports(hardware, multiply):
        raise HardwareError(f"{hardware.name} does not multiply {multiply}")
    least_rows = ROWS_A_WARP
    if multiply == "float32":
        least_rows = vector_instruction(hardware.warp_threads).rows
    stages = STAGES if hardware.asynchronous_copy else STAGES[:1]
    kept = []
    for bq in HEIGHTS:
        found: list[AttentionTileCost] = []
        for bk, warps, count in product(KEYS, WARPS, stages):
            if bq < warps * least_rows and warps > min(WARPS):
                # Compiled kernels have warps that do the same rows.
                continue
            cost = attention_tile_cost(hardware, form, AttentionTile(bq, bk, warps, count))
            if cost is not None:
                found.append(cost)
        if found:
            # Of equals the first one, which takes the least.
            kept.append(min(found, key=_seconds_of_key))
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
    """Of a multiprocessor, for each row and key: the geometric mean with the chip full, and with
    one tile alone."""
    full, alone = cost.step_s[-1], cost.step_s[1]
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
        tiles = kept_tiles(hardware, form)
        self._candidates = tuple(
            _candidates(self._chip, hardware.warp_threads, tiles, form, shared)
        )

        packed = [c.cost.tile.bq for c in self._candidates if c.packed]
        self._tallest_packed = max(packed, default=0)

    @property
    def kernels(self) -> tuple[AttentionKernel, ...]:
        """All that a plan may choose."""
        found = [kernel for c in self._candidates for kernel in (c.whole, c.split)]
        return tuple(kernel for kernel in found if kernel is not None)

    def plan(
        self, problem: AttentionProblem, lengths: RequestLengths | None = None
    ) -> AttentionPlan:
        """The plan that takes the least; rows, keys and heads of the problem are positive.
        `lengths` are given where requests are of unequal length."""
        least, best, chosen = inf, 1, self._candidates[0]
        summary = self._summary(lengths)
        rows = problem.rows if summary is None else summary.longest_rows
        packed_rows = rows * problem.sharing
        # Rows of the tallest tile that there are many of.
        all_rows = problem.rows * problem.sharing * problem.heads
        if lengths is None:
            all_rows *= problem.batch
        many = all_rows // (MANY_WAVES * self._chip.multiprocessors)
        least_key_s = inf
        for candidate in self._candidates:
            if candidate.key_s >= least_key_s:
                continue
            if candidate.lower >= (packed_rows if candidate.packed else rows):
                # That one has room for all rows.
                continue
            if candidate.packed and rows >= candidate.cost.tile.bq:
                # So has each head, for a tile of its own.
                continue
            if not candidate.packed and packed_rows <= self._tallest_packed:
                # One tile has room for all heads, and reads their keys once.
                continue
            if candidate.cost.tile.bq <= many:
                least_key_s = candidate.key_s
            seconds, parts = candidate.price(problem, summary)
            if seconds < least:
                least, best, chosen = seconds, parts, candidate
        kernel = chosen.whole if best == 1 else chosen.split
        assert kernel is not None
        return AttentionPlan(problem, kernel, self._group(chosen, problem), best)

    def estimate(
        self, plan: AttentionPlan, lengths: RequestLengths | None = None
    ) -> AttentionEstimate:
        """What a plan of this planner takes, term by term."""
        candidate = self._candidate(plan)
        work = candidate.work(plan.problem, self._summary(lengths))
        return estimate_attention(self._chip, self._form, candidate.cost, work, plan.parts)

    def price(self, plan: AttentionPlan, lengths: RequestLengths | None = None) -> float:
        """The seconds that a plan of this planner was chosen by."""
        candidate = self._candidate(plan)
        return candidate.seconds(candidate.work(plan.problem, self._summary(lengths)), plan.parts)

    def _candidate(self, plan: AttentionPlan) -> Candidate:
        return next(c for c in self._candidates if plan.kernel in (c.whole, c.split))

    def _summary(self, lengths: RequestLengths | None) -> Summary | None:
        return None if lengths is None else summary_of(lengths, self._form.causal != "none")

    def _group(self, candidate: Candidate, problem: AttentionProblem) -> int:
        """Heads side by side. Rows that see ever more keys begin with the last ones of as many
        heads as L2 holds the keys of, so that short tiles come last; else tiles of one head follow
        each other."""
        if self._form.causal == "none":
            return 1
        ragged = self._form.ragged is not None
        across = self._form.depth + self._form.columns
        keys = problem.keys // problem.batch if ragged else problem.keys
        held = int(self._chip.held_bytes // (max(keys, 1) * across * self._chip.itemsize))
        apart = 1 if candidate.packed else problem.sharing
        heads = problem.heads * (1 if ragged else problem.batch)
        return min(max(held, 1), heads) * apart


def _candidates(
    chip: Chip, warp_threads: int, costs: tuple[AttentionTileCost, ...], form: AttentionForm,
    shared: bool,
) -> list[Candidate]:  # fmt: skip
    """The tallest first."""
    found = []
    for packed in (True, False) if shared else (False,):
        lower = 0
        for cost in costs:
            bq = cost.tile.bq
            if packed and bq > TALLEST_PACKED:
                continue
            if shared and not packed and bq < min(LOWEST_APART, costs[-1].tile.bq):
                continue
            accumulators = bq * form.columns // (cost.tile.warps * warp_threads)
            cuts = bq <= TALLEST_SPLIT and accumulators <= MOST_SPLIT_ACCUMULATORS
            found.append(Candidate(chip, form, cost, packed, lower, cuts))
            lower = bq
    return sorted(found, key=lambda candidate: -candidate.cost.tile.bq)


@lru_cache(maxsize=1024)
def attention_planner(hardware: GpuHardware, form: AttentionForm, shared: bool) -> AttentionPlanner:
    """The one planner of a chip and form."""
    return AttentionPlanner(hardware, form, shared)
