"""Attention: how its rows are cut into blocks and tasks, and what that takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.mapping import bounds
from ftuner.cost.functions import EXP2_FLUSHED, operation_cycles
from ftuner.cost.step import Machine, Stream, estimate_of
from ftuner.cost.terms import Estimate
from ftuner.planner.cpu.planner import Planner


class AttentionProblem(NamedTuple):
    """`elements` times `softmax(q @ k * scale + mask) @ v`: q is (rows, depth), k (depth, steps), v
    (steps, columns)."""

    elements: int
    sharing: int
    """Elements that follow each other and have the same k and v."""
    rows: int
    depth: int
    steps: int
    """Keys that any row may see."""
    columns: int
    offset: int | None
    """Row i sees keys j <= i + offset, if it is given."""
    workers: int

    def seen(self, rows: int) -> int:
        """Keys that the first rows of an element see."""
        if self.offset is None:
            return self.steps
        return max(min(rows + self.offset, self.steps), 0)


class AttentionBlocks(NamedTuple):
    """How the rows of a batch element are cut."""

    rows: int
    """Of a block: all have as many but the last."""
    splits: int
    """Tasks of a batch element."""
    runs: int
    """Runs of tasks to be dealt to workers: those of a run share k and v, where there are enough
    of such runs."""


def attention_blocks(planner: Planner, problem: AttentionProblem) -> AttentionBlocks:
    """Blocks whose scores stay in L2, and enough tasks for all workers."""
    library, tuning = planner.library, planner.library.hardware.tuning
    elements, workers = problem.elements, problem.workers
    main = planner.cover(library.widths[0], False, problem.depth)[1].main
    steps = -(-problem.steps // library.lanes) * library.lanes
    levels = library.hardware.levels
    l2_bytes = levels[min(1, len(levels) - 1)].capacity_bytes
    score_row = max(steps, 1) * library.dtype.itemsize
    tiles = int(tuning.scores_share_of_l2 * l2_bytes / (score_row * main))
    # More rows do not make better use of a panel that is in L2.
    tiles = min(tiles, tuning.max_block_row_tiles)
    if problem.offset is not None:
        tiles = min(tiles, problem.rows // (main * tuning.causal_blocks))
    tiles = max(tiles, 1)
    groups = elements // problem.sharing
    # Heads that share k and v stay with one worker where their groups divide evenly or are many;
    # otherwise batch elements are split.
    enough = tuning.attention_tasks_per_worker * workers
    even = groups % workers == 0 or groups >= enough
    splits = 1
    if not even and elements < enough:
        all_tiles = -(-problem.rows // main)
        splits = min(-(-enough // elements), all_tiles)
        tiles = min(tiles, all_tiles // splits)
    runs = groups if even else elements * splits
    return AttentionBlocks(min(main * tiles, problem.rows), splits, runs)


class AttentionLayout(NamedTuple):
    """What the cycles of an attention depend on beside its extents."""

    masked: bool
    k_copies: bool
    """Whether k is contiguous along its steps, so that packing copies vectors."""
    v_copies: bool


def attention_estimate(
    planner: Planner, problem: AttentionProblem, layout: AttentionLayout, bytes_moved: int
) -> Estimate:
    """What the busiest worker spends its time on; `bytes_moved` by all workers together."""
    library = planner.library
    machine = Machine(library.hardware, library.isa, problem.workers)
    block, splits, _ = attention_blocks(planner, problem)
    tasks = problem.elements * splits
    mine = -(-tasks // problem.workers)
    blocks = -(-problem.rows // block)
    # Batch elements of the busiest worker: whole ones, and the largest tasks of one more.
    whole_elements, more = divmod(mine, splits)
    parts = (bounds(blocks, splits, i) for i in range(splits))
    largest = max(min(end * block, problem.rows) - begin * block for begin, end in parts)
    busiest = whole_elements + min(more * largest / problem.rows, 1.0)
    rows = _RowCycles(planner, problem, layout.masked)
    cut = [(begin, min(begin + block, problem.rows)) for begin in range(0, problem.rows, block)]
    if problem.offset is None:
        # All blocks are alike but the last.
        cycles = [rows.of(block, problem.steps)] * (len(cut) - 1)
        cycles.append(rows.of(cut[-1][1] - cut[-1][0], problem.steps))
    else:
        cycles = [rows.of(end - begin, problem.seen(end)) for begin, end in cut]
    issue, stall, fixed = (busiest * sum(part) for part in zip(*cycles, strict=True))
    packs = -(-mine // (splits * problem.sharing))
    pack = packs * _pack_cycles(planner, problem, layout)
    workers = min(tasks, problem.workers)
    share = min(busiest / problem.elements, 1.0)
    stream = Stream(bytes_moved * share, bytes_moved)
    return estimate_of(machine, workers, issue, stall, fixed, [stream], pack)


class _RowCycles:
    """Cycles of blocks of rows: both products by the planner's covers, and the softmax between."""

    def __init__(self, planner: Planner, problem: AttentionProblem, masked: bool) -> None:
        self._planner, self._problem, self._masked = planner, problem, masked

    def of(self, rows: int, steps: int) -> tuple[float, float, float]:
        """Issue, stall and what surrounds loops, of one block whose rows see so many keys."""
        if not steps:
            return 0.0, 0.0, 0.0
        problem = self._problem
        parts = [
            self._product(rows, steps, problem.depth),
            self._product(rows, problem.columns, steps),
            [rows * cycles for cycles in self._softmax(steps)],
        ]
        issue, stall, fixed = map(sum, zip(*parts, strict=True))
        return issue, stall, fixed

    def _product(self, rows: int, n: int, k: int) -> Sequence[float]:
        planner, library = self._planner, self._planner.library
        width = library.widths[0]
        full, left = divmod(n, width * library.lanes)
        covers = [(full, planner.cover(width, False, k)[1][rows])]
        if left:
            covers.append((1, planner.cover(-(-left // library.lanes), True, k)[1][rows]))
        issue = sum(panels * k * cover.issue for panels, cover in covers)
        step = sum(panels * k * cover.step for panels, cover in covers)
        return issue, step - issue, sum(panels * cover.fixed for panels, cover in covers)

    def _softmax(self, steps: int) -> Sequence[float]:
        """Of one row: scale and mask it, take powers, divide the result."""
        library, problem = self._planner.library, self._problem
        isa, dtype, lanes = library.isa, library.dtype, library.lanes
        tuning = library.hardware.tuning

        def cycles(*ops: str) -> float:
            return sum(operation_cycles(op, dtype, lanes, isa, tuning) for op in ops)

        through = 1.0 / isa.load_per_cycle + 1.0 / isa.store_per_cycle
        scale = through + cycles("multiply", "maximum")
        if self._masked:
            scale += 1.0 / isa.load_per_cycle + cycles("add")
        power = through + cycles("subtract", "multiply", EXP2_FLUSHED, "add")
        vectors, stored = -(-steps // lanes), -(-problem.columns // lanes)
        latency = isa.fma_latency_cycles
        issue = vectors * (scale + power) + stored * (through + cycles("multiply"))
        stall = vectors * (max(latency - scale, 0.0) + max(latency - power, 0.0))
        # The largest and the sum of a row are found in lanes first.
        across = 2 * math.log2(lanes) * (latency + 1.0) + cycles("divide")
        return issue, stall, 3 * tuning.loop_cycles + across


def _pack_cycles(planner: Planner, problem: AttentionProblem, layout: AttentionLayout) -> float:
    """Of k and v of one batch element."""
    lanes, tuning = planner.library.lanes, planner.library.hardware.tuning
    copy_cycles = tuning.pack_copy_cycles_per_vector
    transpose_cycles = tuning.pack_transpose_cycles_per_vector
    total = 0.0
    for copies, steps, columns in (
        (layout.k_copies, problem.depth, problem.steps),
        (layout.v_copies, problem.steps, problem.columns),
    ):
        cycles = copy_cycles if copies else transpose_cycles
        total += steps * -(-columns // lanes) * cycles
    return total
