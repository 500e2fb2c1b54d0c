"""The cycles of one register tile: its k steps, what surrounds them, and how long it waits for a
panel of B from a level after L2.

Pure functions of tile and hardware. Cycles of one k step follow Low et al., "Analytical Modeling Is
Enough for High-Performance BLIS" (2016): multiply-adds over their ports, loads over theirs, and the
latency of a chain of dependent multiply-adds.

The tile that reads a panel first waits for its cache misses. How many of them are under way, and so
how fast the panel arrives, depends on the tile: a low one has little else to do, parts read narrow
strips, and where several tiles share a panel, each fetches a part of the next one. What is measured
of each is an `Intake` of the tuning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.dtype import BFLOAT16, FLOAT16, INT8, DType, levels_of
from ftuner.core.frozen import dataclass
from ftuner.core.product import ProductTypes
from ftuner.hardware.intake_tuning import Intake, IntakeTuning
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel, MultiplyAddRate
from ftuner.hardware.tuning import CpuTuning

WIDEN_OPERATIONS: Mapping[DType, int] = {INT8: 2, FLOAT16: 1, BFLOAT16: 2}
"""Operations of a uKernel on a vector of narrow elements besides loading it, on the ports of
multiply-adds. Derived from its code: extend, convert; convert; extend, shift."""
LEVEL_OPERATIONS = 2
"""Of levels of few bits: mask, subtract. A zero point is another one to subtract."""
FLOAT16_OPERATIONS = 10
"""Where there is no instruction that converts them."""


@dataclass(frozen=True)
class StepCycles:
    """Cycles of one k step of a register tile, by what limits it."""

    issue: float
    latency: float
    load: float

    @property
    def cycles(self) -> float:
        return max(self.issue, self.latency, self.load)


def step_cycles(tile: RegisterTile, isa: Isa, types: ProductTypes) -> StepCycles:
    """One k step of a tile whose operands are in L1."""
    if tile.matrix:
        return _matrix_step_cycles(tile, isa, types)
    return step_cycles_at(isa.multiply_add(types), tile, isa)


def step_cycles_at(rate: MultiplyAddRate, tile: RegisterTile, isa: Isa) -> StepCycles:
    """The cycles of a k step, for many tiles at once."""
    return StepCycles(
        issue=tile.parts * tile.mr * tile.vectors / rate.per_cycle,
        latency=tile.parts * rate.latency_cycles / tile.chains,
        load=tile.parts * (tile.mr + tile.vectors) / isa.load_per_cycle,
    )


def _matrix_step_cycles(tile: RegisterTile, isa: Isa, types: ProductTypes) -> StepCycles:
    """The mean of the steps that a matrix unit takes together."""
    unit, rate = instruction_set(isa.name).matrix, isa.tile_multiply_add(types)
    assert unit is not None
    assert rate is not None
    return StepCycles(
        issue=tile.parts * tile.mr * tile.vectors / rate.per_cycle,
        latency=tile.parts * rate.latency_cycles / unit.steps,
        load=tile.parts * (tile.mr / unit.steps + tile.vectors) / isa.load_per_cycle,
    )


def widen_cycles(tile: RegisterTile, isa: Isa, dtype: DType) -> float:
    """Cycles of a k step that a tile takes longer where its B is narrower than A."""
    if dtype.kind == "block":
        operations = LEVEL_OPERATIONS + int(levels_of(dtype)[1])
    else:
        operations = WIDEN_OPERATIONS[dtype]
    if dtype == FLOAT16 and not instruction_set(isa.name).converts_float16:
        operations = FLOAT16_OPERATIONS
    return operations * tile.width / isa.fma_per_cycle


def dot_step_cycles(tile: RegisterTile, isa: Isa, types: ProductTypes) -> StepCycles:
    """One k step of a dot tile, a lane of its vectors, whose operands are in L1."""
    whole, lanes = step_cycles(tile, isa, types), isa.lanes(types.accumulator)
    return StepCycles(whole.issue / lanes, whole.latency / lanes, whole.load / lanes)


def dot_tile_cycles(tile: RegisterTile, lanes: int, tuning: CpuTuning) -> float:
    """Cycles of one dot tile besides its whole vectors of k: those of any tile, the rest of k (a
    vector more), and adding up the lanes."""
    rounds = math.log2(lanes) + 1
    sum_cycles = tuning.dot_sum_cycles_per_round * rounds * tile.mr * tile.vectors
    return tile_cycles(tile, tuning) + sum_cycles


def tile_cycles(tile: RegisterTile, tuning: CpuTuning, scratch: bool = False) -> float:
    """Cycles of one tile besides its k steps; `scratch`: its rows are copied to C."""
    vectors_cycles = tuning.tile_cycles_per_vector * tile.accumulators
    if tile.matrix:
        # Its sums become vectors through memory.
        vectors_cycles *= 2
    cycles = tile.parts * (tuning.tile_cycles + vectors_cycles)
    return cycles + tuning.tail_cycles_per_row * tile.mr if scratch else cycles


def efficiency(tile: RegisterTile, isa: Isa, types: ProductTypes) -> float:
    """The part of the multiply-add peak that a tile reaches with its operands in L1; at most 1."""
    step = step_cycles(tile, isa, types)
    return step.issue / step.cycles


def panel_intensity(
    tile: RegisterTile, isa: Isa, types: ProductTypes, hardware: CpuHardware, level: MemoryLevel
) -> float:
    """Time to compute a k step over the time to fetch its row of B from `level`: `R` of FTuner's
    tile filter, with the reduction axis at one step. Above 1 the fetch hides."""
    row_bytes = tile.width * isa.lanes(types.accumulator) * types.b.itemsize
    bytes_per_cycle = level.bandwidth_bytes_per_s / hardware.clock_hz
    return step_cycles(tile, isa, types).issue / (row_bytes / bytes_per_cycle)


class Reading(NamedTuple):
    """How the tile that reads a panel first does so."""

    streams_log2: int
    """Binary logarithm of the streams along k."""
    ahead_bytes: int
    """Prefetch distance, over all streams."""


AT_HAND = Reading(0, 0)
"""Of a panel that was written just before."""


def overlapped(x: float, y: float, exponent: float) -> float:
    """The time of two things at once: the p-norm of their times."""
    more, less = (x, y) if x > y else (y, x)
    if less <= 0.0:
        return more
    return float(more * (1.0 + (less / more) ** exponent) ** (1.0 / exponent))


LOW, TALL, PARTS, SEVERAL = "low", "tall", "parts", "several"
"""Kinds of covers of a panel: one low tile, a taller one, one in parts, several tiles."""


def kind_of(tuning: IntakeTuning, tile: RegisterTile, alone: bool) -> str:
    """The kind of a cover whose first tile is `tile`. `alone`: no other tile follows."""
    if not alone:
        return SEVERAL
    if tile.parts > 1:
        return PARTS
    return LOW if tile.mr <= tuning.low_tile_rows else TALL


def intake_field(kind: str, from_dram: bool, shared: bool) -> str:
    """The field of the tuning that has the `Intake` of a kind of cover."""
    return f"{kind}_{'dram' if from_dram else 'l3'}{'_shared' if shared else ''}"


class FarPanel(NamedTuple):
    """A panel of B that comes from a level after L2."""

    cycles: float
    """Of fetching one k step of it at the bandwidth that a worker has."""
    from_dram: bool
    shared: bool
    """Whether other workers read panels of theirs from the level."""

    def intake(self, tuning: IntakeTuning, tile: RegisterTile, alone: bool) -> Intake:
        """How a panel is taken in if `tile` reads it first. `alone`: no other tile follows."""
        kind = kind_of(tuning, tile, alone)
        found: Intake = getattr(tuning, intake_field(kind, self.from_dram, self.shared))
        return found

    def wait(self, intake: Intake, cycles: float) -> float:
        """Cycles that a k step of all tiles of the panel takes longer than `cycles`, their own."""
        return overlapped(cycles, self.cycles / intake.share, intake.overlap) - cycles


def reading(intake: Intake) -> Reading:
    """How a tile reads a panel that it takes in so."""
    return Reading(intake.k_streams.bit_length() - 1, intake.prefetch_bytes)
