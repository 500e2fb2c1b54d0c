"""The estimate: seconds of a piece of work on one uKernel, made of named terms.

Pure functions of (hardware, uKernel, rectangle). Cycles of one k step of a register tile follow
Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (2016): multiply-adds over
their ports, loads over theirs, and the latency of a chain of dependent multiply-adds. Transfers
overlap with them, so the largest counts; what surrounds the reduction of a tile is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.dtype import DType
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel
from ftuner.hardware.tuning import CpuTuning

WIDEN_OPERATIONS = 2
"""Operations of a uKernel on a vector of 8-bit integers besides loading it, on the ports of
multiply-adds. Derived from its code: extend, convert."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of the busiest worker by cause."""

    issue_s: float = 0.0
    """Multiply-adds over their ports."""
    stall_s: float = 0.0
    """What k steps take longer than their multiply-adds: latency, load ports, B from L2."""
    l3_s: float = 0.0
    """Transfers from the caches behind L2."""
    dram_s: float = 0.0
    """Transfers from DRAM."""
    tile_s: float = 0.0
    """Entering and leaving tiles, the copies of tails and the sums of partial products."""
    pack_s: float = 0.0
    """Packing A and B."""
    synchronise_s: float = 0.0
    """Starting the workers and waiting for them."""

    @property
    def seconds(self) -> float:
        """The largest of what overlaps (computing, each memory level) plus what does not."""
        compute_s = self.issue_s + self.stall_s + self.tile_s
        return max(compute_s, self.l3_s, self.dram_s) + self.pack_s + self.synchronise_s

    @property
    def bound(self) -> str:
        """What holds the work up: `compute`, `l3` or `dram`."""
        compute_s = self.issue_s + self.stall_s + self.tile_s
        terms = {"compute": compute_s, "l3": self.l3_s, "dram": self.dram_s}
        return max(terms, key=lambda name: terms[name])

    def terms(self) -> dict[str, float]:
        """All terms by name, in seconds."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class StepCycles:
    """Cycles of one k step of a register tile, by what limits it."""

    issue: float
    latency: float
    load: float

    @property
    def cycles(self) -> float:
        return max(self.issue, self.latency, self.load)


def step_cycles(tile: RegisterTile, isa: Isa) -> StepCycles:
    """One k step of a tile whose operands are in L1."""
    return StepCycles(
        issue=tile.parts * tile.mr * tile.vectors / isa.fma_per_cycle,
        latency=tile.parts * isa.fma_latency_cycles / tile.chains,
        load=tile.parts * (tile.mr + tile.vectors) / isa.load_per_cycle,
    )


def widen_cycles(tile: RegisterTile, isa: Isa) -> float:
    """Cycles of a k step that a tile takes longer where its B is of 8-bit integers."""
    return WIDEN_OPERATIONS * tile.width / isa.fma_per_cycle


def dot_step_cycles(tile: RegisterTile, isa: Isa, lanes: int) -> StepCycles:
    """One k step of a dot tile, a lane of its vectors, whose operands are in L1."""
    whole = step_cycles(tile, isa)
    return StepCycles(whole.issue / lanes, whole.latency / lanes, whole.load / lanes)


def dot_tile_cycles(tile: RegisterTile, lanes: int, tuning: CpuTuning) -> float:
    """What one dot tile costs besides its whole vectors of k: the cycles of any tile, the rest of k
    (a vector more), and adding up the lanes."""
    rounds = math.log2(lanes) + 1
    sum_cycles = tuning.dot_sum_cycles_per_round * rounds * tile.mr * tile.vectors
    return tile_cycles(tile, tuning) + sum_cycles


def tile_cycles(tile: RegisterTile, tuning: CpuTuning, scratch: bool = False) -> float:
    """What one tile costs besides its k steps; `scratch`: its rows are copied to C."""
    vectors_cycles = tuning.tile_cycles_per_vector * tile.accumulators
    cycles = tile.parts * (tuning.tile_cycles + vectors_cycles)
    return cycles + tuning.tail_cycles_per_row * tile.mr if scratch else cycles


def efficiency(tile: RegisterTile, isa: Isa) -> float:
    """The part of the FMA peak that a tile reaches with its operands in L1; at most 1."""
    step = step_cycles(tile, isa)
    return step.issue / step.cycles


def panel_intensity(
    tile: RegisterTile, isa: Isa, dtype: DType, hardware: CpuHardware, level: MemoryLevel
) -> float:
    """Time to compute a k step over the time to fetch its row of B from `level`: `R` of FTuner's
    tile filter, with the reduction axis at one step. Above 1 the fetch hides."""
    row_bytes = tile.width * isa.vector_bytes
    bytes_per_cycle = level.bandwidth_bytes_per_s / hardware.clock_hz
    return step_cycles(tile, isa).issue / (row_bytes / bytes_per_cycle)
