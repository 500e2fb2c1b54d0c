"""The memory that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes at one shape of its inputs, beside compiled code."""

    weights_bytes: int
    """Constants: packed as products read them, others as they came."""
    arena_bytes: int
    """Intermediate results, those that do not live at the same time in one place."""
    workspace_bytes: int
    """What steps need while they run, of all workers: k, v and scores of attention, operands of
    products that are packed in each run, partial sums. On a GPU the most that one step allocates:
    copies of operands, partial sums."""
    attention_worker_bytes: int
    """The part of the workspace that each worker has in the largest attention; 0 on a GPU."""
    outputs_bytes: int
    """New arrays, one for each output."""
    records_bytes: int
    """The program of this shape, with the plans that it points to and the results that depend on
    extents alone; each shape has its own. On a GPU the inputs and outputs of a recorded program,
    else 0."""

    @property
    def total_bytes(self) -> int:
        parts = (self.weights_bytes, self.arena_bytes, self.workspace_bytes)
        return sum(parts) + self.outputs_bytes + self.records_bytes


def together(parts: Sequence[Memory]) -> Memory:
    """Of programs that run one after the other, and keep what they have: nothing, if there are
    none."""
    nothing = (0,) * len(fields(Memory))
    return Memory(*map(sum, zip(nothing, *map(astuple, parts), strict=True)))
