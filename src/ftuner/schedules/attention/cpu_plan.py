"""Attention: how its rows are cut into blocks and tasks."""

from __future__ import annotations

from ftuner.core.ranges import after_coarse, middle
from ftuner.cost.step import Estimate, Machine
from ftuner.planner.cpu.planner import Planner
from ftuner.schedules.attention.cpu_cost import (
    AttentionBlocks,
    AttentionCost,
    AttentionLayout,
    AttentionProblem,
)


def attention_blocks(planner: Planner, problem: AttentionProblem) -> AttentionBlocks:
    """Blocks whose scores stay in L2, and enough tasks for all workers. They are those of all
    problems whose rows, and vectors of keys, are in the same coarse ranges."""
    library, tuning = planner.library, planner.library.hardware.tuning
    elements, workers = problem.elements, problem.workers
    main = planner.cover(library.widths[0], False, problem.depth)[1].main
    rows, last = middle(problem.rows), after_coarse(problem.rows) - 1
    steps = middle(-(-problem.steps // library.lanes)) * library.lanes
    l2_bytes = library.hardware.l2_bytes
    score_row = max(steps, 1) * library.types.c.itemsize
    tiles = int(tuning.scores_share_of_l2 * l2_bytes / (score_row * main))
    # More rows do not make better use of a panel that is in L2.
    tiles = min(tiles, tuning.max_block_row_tiles)
    if problem.offset is not None:
        tiles = min(tiles, rows // (main * tuning.causal_blocks))
    tiles = max(tiles, 1)
    groups = problem.groups
    # Heads that share k and v stay with one worker where their groups divide evenly or are many;
    # otherwise batch elements are split.
    enough = tuning.attention_tasks_per_worker * workers
    even = groups % workers == 0 or groups >= enough
    splits = 1
    if not even and elements < enough:
        splits = min(-(-enough // elements), -(-last // main))
    runs = groups if even else elements * splits
    # No task has more rows.
    most = min(-(-last // (main * splits)) * main, last)
    return AttentionBlocks(min(main * tiles, most), main, splits, runs)


def attention_estimate(
    planner: Planner, problem: AttentionProblem, layout: AttentionLayout, bytes_moved: int
) -> Estimate:
    """What the busiest worker spends its time on; `bytes_moved` by all workers together."""
    library = planner.library
    ukernels = planner.ukernels(library.widths[0])
    machine = Machine(library.hardware, library.isa, problem.workers)
    blocks = attention_blocks(planner, problem)
    return AttentionCost(machine, ukernels, problem, layout, blocks).terms(bytes_moved)
