"""The terms of an estimate on a CPU, and the one function that composes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ftuner.core.frozen import dataclass
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel


class Estimate(NamedTuple):
    """Seconds of the busiest worker by cause.

    The planner makes one for each candidate of a new shape, hence a named tuple.
    """

    issue_s: float = 0.0
    """Multiply-adds over their ports."""
    stall_s: float = 0.0
    """What k steps take longer than their multiply-adds: latency, load ports, B from L2."""
    l3_s: float = 0.0
    """Transfers from the caches after L2."""
    dram_s: float = 0.0
    """Transfers from DRAM."""
    tile_s: float = 0.0
    """Entering and leaving tiles, the copies of tails and the sums of partial products."""
    pack_s: float = 0.0
    """Packing A and B."""
    synchronise_s: float = 0.0
    """Starting the workers and waiting for them."""
    correction: float = 1.0
    """Learned factor of the whole; 1 where nothing is known better than the terms."""

    @property
    def seconds(self) -> float:
        """The largest of what overlaps (computing, each memory level) plus what does not, times the
        correction.

        `Planner.plan` has a copy of this formula, which a test compares with it.
        """
        compute_s = self.issue_s + self.stall_s + self.tile_s
        overlapping_s = max(compute_s, self.l3_s, self.dram_s)
        return (overlapping_s + self.pack_s + self.synchronise_s) * self.correction

    @property
    def bound(self) -> str:
        """The limiting resource: `compute`, `l3` or `dram`."""
        compute_s = self.issue_s + self.stall_s + self.tile_s
        terms = {"compute": compute_s, "l3": self.l3_s, "dram": self.dram_s}
        return max(terms, key=lambda name: terms[name])

    def terms(self) -> dict[str, float]:
        """All terms by name, in seconds, before the correction."""
        return {name: float(getattr(self, name)) for name in TERMS}


TERMS = tuple(name for name in Estimate._fields if name.endswith("_s"))
"""The names of the terms."""


@dataclass(frozen=True)
class Machine:
    """The CPU, its ISA and the number of workers that costs are estimated for."""

    hardware: CpuHardware
    isa: Isa
    workers: int

    @property
    def period_s(self) -> float:
        return 1.0 / self.hardware.clock_hz

    @property
    def synchronise_s(self) -> float:
        """Starting the workers of a step and waiting for them."""
        return self.hardware.tuning.synchronise_s if self.workers > 1 else 0.0


@dataclass(frozen=True)
class StepCost:
    """What one step of a program computes, moves and takes, at known extents."""

    flops: int
    """Operations on floating-point elements, a multiply-add counted as two, an elementary function
    as one."""
    reads_bytes: int
    """Bytes read, each element once."""
    writes_bytes: int
    estimate: Estimate

    @property
    def bytes_moved(self) -> int:
        return self.reads_bytes + self.writes_bytes


class Stream(NamedTuple):
    """Bytes that the busiest worker reads or writes."""

    bytes: float
    footprint_bytes: int
    """Bytes accessed between two uses of these; decides which level they come from."""


def level_of(hardware: CpuHardware, footprint_bytes: int) -> MemoryLevel:
    """The first level that holds `footprint_bytes` in its `cache_share`."""
    share = hardware.tuning.cache_share
    for level in hardware.levels[:-1]:
        if footprint_bytes <= share * level.capacity_bytes:
            return level
    return hardware.levels[-1]


def rate_bytes_per_s(level: MemoryLevel, workers: int) -> float:
    """Bytes per second of one of `workers` that read concurrently."""
    return min(level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s / workers)


def estimate_of(
    machine: Machine, workers: int, issue_cycles: float, stall_cycles: float, fixed_cycles: float,
    streams: Iterable[Stream], pack_cycles: float = 0.0,
) -> Estimate:  # fmt: skip
    """The estimate of cycles and streams of the busiest of `workers` that have something to do.

    `stall_cycles` is what chains of dependent instructions take beyond `issue_cycles`.
    """
    near_s = l3_s = dram_s = 0.0
    levels = machine.hardware.levels
    for stream in streams:
        level = level_of(machine.hardware, stream.footprint_bytes)
        seconds = stream.bytes / rate_bytes_per_s(level, workers)
        if level is levels[-1]:
            dram_s += seconds
        elif level in levels[2:]:
            l3_s += seconds
        else:
            near_s += seconds
    period = machine.period_s
    issue_s = issue_cycles * period
    return Estimate(
        issue_s=issue_s,
        stall_s=max(stall_cycles * period, near_s - issue_s, 0.0),
        l3_s=l3_s,
        dram_s=dram_s,
        tile_s=fixed_cycles * period,
        pack_s=pack_cycles * period,
        synchronise_s=machine.synchronise_s,
    )
