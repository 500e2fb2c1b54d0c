"""How a GPU steps along a recurrent layer: one launch for each stage of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.recurrence import Cell

WARPS = 4
"""Warps of a program. Assumed: 128 threads, as those of nests."""
STAGES = 3
"""Blocks of k that are in flight. Assumed, as for products."""


class Block(NamedTuple):
    """What a program computes, and by how much of k at a time."""

    sequences: int
    hidden: int
    k: int


BLOCKS = (Block(16, 16, 64), Block(64, 16, 32))
"""Few and many sequences. Assumed: 16 is the least extent of a matrix instruction, and where there
are few sequences, narrow blocks spread the weight over more multiprocessors. The sums of four gates
of larger blocks do not fit the registers of a thread."""


@dataclass(frozen=True)
class RecurrenceKernel:
    """What the code of a stage of a step depends on."""

    dtype: DType
    """Of all arrays but the lengths of sequences. Sums and expressions are float32."""
    cell: Cell
    stage: int
    hidden: int
    block: Block
    tf32: bool
    """Whether float32 is multiplied as tf32."""
    aligned: bool
    """Whether the weight begins at a multiple of 16 bytes."""


def turns(cell: Cell) -> bool:
    """Whether a stage writes the plane that it multiplies. Other programs still read the old one,
    so that there are two, which take turns from step to step."""
    return any(stage.multiplied in [name for name, _ in stage.results] for stage in cell.stages())


def block_of(sequences: int) -> Block:
    """Returns the block of a launch."""
    few, many = BLOCKS
    return few if sequences <= few.sequences else many
