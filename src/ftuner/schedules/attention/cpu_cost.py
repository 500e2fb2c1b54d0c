"""The cost of an attention on a CPU: what its busiest worker takes.

Batch elements are cut into blocks of rows. Each block takes two products, by exact covers of its
rows, and a softmax between them; k and v are packed first. The terms are those of
`ftuner.cost.step.Estimate`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from ftuner.core.frozen import dataclass
from ftuner.core.ranges import bounds
from ftuner.cost.cpu.product import UKernels
from ftuner.cost.functions import EXP2_FLUSHED, operation_cycles
from ftuner.cost.step import Estimate, Machine, Stream, estimate_of


class AttentionProblem(NamedTuple):
    """`elements` times `softmax(q @ k * scale + mask) @ v`: q is (rows, depth), k (depth, steps), v
    (steps, columns)."""

    elements: int
    groups: int
    """Runs of consecutive elements that have the same k and v."""
    rows: int
    depth: int
    """In steps of k of the product that gives the scores: numbers, or words of them."""
    steps: int
    """Keys that any row may see."""
    columns: int
    offset: int | None
    """Row i sees keys j <= i + offset, if it is given."""
    workers: int

    def seen(self, rows: int) -> int:
        """Keys that the first `rows` rows of an element see."""
        if self.offset is None:
            return self.steps
        return max(min(rows + self.offset, self.steps), 0)


class AttentionLayout(NamedTuple):
    """What the cycles of an attention depend on besides its extents."""

    masked: bool
    k_copies: bool
    """Whether k is contiguous along its steps, so that packing copies vectors."""
    v_copies: bool
    """The same of v along its columns."""
    capped: bool = False
    """Whether scores pass a hyperbolic tangent."""


class AttentionBlocks(NamedTuple):
    """How the rows of a batch element are cut."""

    rows: int
    """Rows of each block of a task but the last, which may have fewer."""
    tile: int
    """Rows of a row tile: tasks begin at multiples of it."""
    splits: int
    """Tasks of a batch element."""
    runs: int
    """Runs of consecutive tasks, which are dealt to workers. The tasks of a run share k and v,
    where there are enough such runs."""


class _Cycles(NamedTuple):
    """Cycles of some rows of one batch element."""

    issue: float
    stall: float
    tile: float


@dataclass(frozen=True)
class AttentionCost:
    """The terms of an attention whose blocks and tasks are chosen."""

    machine: Machine
    ukernels: UKernels
    problem: AttentionProblem
    layout: AttentionLayout
    blocks: AttentionBlocks

    def terms(self, bytes_moved: int) -> Estimate:
        """The terms of the busiest worker; `bytes_moved` by all workers together."""
        problem, (block, tile_rows, splits, _) = self.problem, self.blocks
        tasks = problem.elements * splits
        mine = -(-tasks // problem.workers)
        tiles = -(-problem.rows // tile_rows)
        # Batch elements of the busiest worker: whole ones, and the largest tasks of one more.
        whole_elements, more = divmod(mine, splits)
        parts = [
            tuple(min(bound * tile_rows, problem.rows) for bound in bounds(tiles, splits, i))
            for i in range(splits)
        ]
        largest = max(end - begin for begin, end in parts)
        busiest = whole_elements + min(more * largest / problem.rows, 1.0)
        cut = [
            (top, min(top + block, end)) for begin, end in parts for top in range(begin, end, block)
        ]
        if problem.offset is None:
            # Most blocks have as many rows.
            numbers = Counter(end - begin for begin, end in cut)
            cycles = [
                _Cycles(*(number * part for part in self._block(rows, problem.steps)))
                for rows, number in numbers.items()
            ]
        else:
            cycles = [self._block(end - begin, problem.seen(end)) for begin, end in cut]
        issue, stall, tile = (busiest * sum(part) for part in zip(*cycles, strict=True))
        sharing = problem.elements // problem.groups
        pack = -(-mine // (splits * sharing)) * self._pack()
        share = min(busiest / problem.elements, 1.0)
        stream = Stream(bytes_moved * share, bytes_moved)
        workers = min(tasks, problem.workers)
        return estimate_of(self.machine, workers, issue, stall, tile, [stream], pack)

    def _block(self, rows: int, steps: int) -> _Cycles:
        """One block whose rows see `steps` keys."""
        if not steps:
            return _Cycles(0.0, 0.0, 0.0)
        parts = (
            self._product(rows, steps, self.problem.depth),
            self._product(rows, self.problem.columns, self._words(steps)),
            _Cycles(*(rows * cycles for cycles in self._softmax(steps))),
        )
        return _Cycles(*map(sum, zip(*parts, strict=True)))

    def _product(self, rows: int, n: int, k: int) -> _Cycles:
        issue, step, fixed = self.ukernels.cycles(n, k, (rows, 1))
        return _Cycles(issue, step - issue, fixed)

    def _words(self, keys: int) -> int:
        """The steps of k that keys are in the product with v."""
        return -(-keys // self.ukernels.types.a.numbers)

    def _softmax(self, steps: int) -> _Cycles:
        """One row: scale and mask it, take powers, divide the result."""
        isa, tuning = self.machine.isa, self.machine.hardware.tuning
        dtype, lanes = self.ukernels.types.c, self.ukernels.lanes

        def cycles(*ops: str) -> float:
            return sum(operation_cycles(op, dtype, lanes, isa, tuning) for op in ops)

        through = 1.0 / isa.load_per_cycle + 1.0 / isa.store_per_cycle
        scale = through + cycles("multiply", "maximum")
        if self.layout.masked:
            scale += 1.0 / isa.load_per_cycle + cycles("add")
        if self.layout.capped:
            scale += cycles("tanh", "multiply")
        power = through + cycles("subtract", "multiply", EXP2_FLUSHED, "add")
        vectors, stored = -(-steps // lanes), -(-self.problem.columns // lanes)
        latency = isa.fma_latency_cycles
        issue = vectors * (scale + power) + stored * (through + cycles("multiply"))
        stall = vectors * (max(latency - scale, 0.0) + max(latency - power, 0.0))
        # The largest and the sum of a row are found in lanes first.
        across = 2 * math.log2(lanes) * (latency + 1.0) + cycles("divide")
        return _Cycles(issue, stall, 3 * tuning.loop_cycles + across)

    def _pack(self) -> float:
        """Cycles of packing k and v of one batch element."""
        problem, layout = self.problem, self.layout
        lanes, tuning = self.ukernels.lanes, self.machine.hardware.tuning
        total = 0.0
        for copies, steps, columns in (
            (layout.k_copies, problem.depth, problem.steps),
            (layout.v_copies, self._words(problem.steps), problem.columns),
        ):
            cycles = tuning.pack_transpose_cycles_per_vector
            if copies:
                cycles = tuning.pack_copy_cycles_per_vector
            total += steps * -(-columns // lanes) * cycles
        return total
