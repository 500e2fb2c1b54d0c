"""How the sequences of a recurrent layer are cut into tasks."""

from __future__ import annotations

from ftuner.planner.cpu.planner import Planner


def recurrence_blocks(planner: Planner, width: int, hidden: int, rows: int, most: int) -> int:
    """Sequences of a task, of `rows` in all and at most `most` tasks: those with the fewest cycles
    of a full panel of `width` vectors, and of these the fewest tasks. Each task reads the whole
    weight, so that low row tiles may gain nothing."""
    _, covers = planner.cover(width, False, hidden)
    blocks = dict.fromkeys(-(-rows // tasks) for tasks in range(1, min(rows, most) + 1))
    return min(blocks, key=lambda block: covers[block].cycles(hidden))
