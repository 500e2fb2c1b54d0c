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

TILE_CYCLES = 32.0
"""Cycles to enter and leave a tile: between the 24 fitted on AMD Zen 3 (AVX2, tiles 1x16 to 6x16
and 4x24, k from 8 to 96) and the 40 that rank tails of 16 to 48 columns best on Intel Emerald
Rapids (AVX-512, k of 64)."""
TILE_CYCLES_PER_VECTOR = 2.0
"""Cycles to clear, add and store one vector of accumulators; fitted on AMD Zen 3."""
TAIL_CYCLES_PER_ROW = 6.0
"""Cycles to copy one row of a tail tile from scratch to C; fitted on AMD Zen 3."""
PACK_CYCLES_PER_VECTOR_COPY = 1.8
"""Cycles to copy one vector into a panel; fitted on AMD Zen 3."""
PACK_CYCLES_PER_VECTOR_TRANSPOSE = 4.5
"""Cycles to transpose one vector into a panel; fitted on AMD Zen 3."""
WIDEN_CYCLES_PER_VECTOR = 4.0
"""Cycles to widen one vector of 8-bit integers into a panel; fitted on Intel Emerald Rapids
(AVX-512, panels of 480 KiB, where widening pays from 20 rows on)."""
WIDEN_OPERATIONS = 2
"""What a uKernel does to a vector of 8-bit integers besides loading it, on the ports of
multiply-adds: extend, convert."""
FAR_ROW_BYTES_PER_CYCLE = 5.0
"""Bytes of B that arrive per cycle where every k step lies on another page, which no prefetcher
crosses; fitted on AMD Zen 3."""
TOTAL_CYCLES_PER_ROUND = 1.0
"""Cycles to halve the lanes of one accumulator of a dot tile: a shuffle and an addition. Fitted on
Intel Emerald Rapids."""
CACHE_SHARE = 0.8
"""Part of a cache that a block may fill: the rest is for what passes by. From Low et al., who
leave one way of each set to the streams."""


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


def dot_tile_cycles(tile: RegisterTile, lanes: int) -> float:
    """What one dot tile costs besides its whole vectors of k: the cycles of any tile, the rest of k
    (a vector more), and adding up the lanes."""
    rounds = math.log2(lanes) + 1
    return tile_cycles(tile) + TOTAL_CYCLES_PER_ROUND * rounds * tile.mr * tile.vectors


def tile_cycles(tile: RegisterTile, scratch: bool = False) -> float:
    """What one tile costs besides its k steps; `scratch`: its rows are copied to C."""
    cycles = tile.parts * (TILE_CYCLES + TILE_CYCLES_PER_VECTOR * tile.accumulators)
    return cycles + TAIL_CYCLES_PER_ROW * tile.mr if scratch else cycles


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
