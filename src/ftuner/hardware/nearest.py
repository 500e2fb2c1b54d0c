"""The recorded CPU nearest to a machine, by features that do not depend on its clock or cores.

A machine that was not tuned starts from what was measured on the one most like it. Features are
sizes, rates in each cycle, and bandwidths in bytes of each cycle, so that two machines of one
microarchitecture agree at any clock. They are compared by the binary logarithm of their ratio; the
distance is the weighted root mean square of these, in octaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ftuner.hardware.model import CpuHardware, MemoryLevel
from ftuner.hardware.recorded import load_recorded, recorded_names

MAX_DISTANCE = 0.6
"""One further away lends nothing. Assumed: Zen 3 and Zen 4 are 0.57 octaves apart, which share
their units; Zen 4 and Ice Lake 0.68, which share the ISA only; Ice Lake and Skylake's client 0.99.
The bandwidths of one machine, probed several times beside busy neighbours, differ by less than
0.2."""
MISSING_OCTAVES = 2.0
"""What a feature counts that one of two machines lacks, such as L3: as much as a factor of 4."""


class Feature(NamedTuple):
    """One feature of a CPU."""

    weight: float
    value: Callable[[CpuHardware], float | None]
    """Positive; None if the machine lacks it."""


class Nearest(NamedTuple):
    """A recorded machine, and how far it is from another one."""

    machine: CpuHardware
    distance: float
    """In octaves."""


def _level(hardware: CpuHardware, name: str) -> MemoryLevel | None:
    return next((level for level in hardware.levels if level.name == name), None)


def _capacity(name: str) -> Callable[[CpuHardware], float | None]:
    def value(hardware: CpuHardware) -> float | None:
        level = _level(hardware, name)
        return None if level is None else float(level.capacity_bytes)

    return value


def _bytes_per_cycle(name: str) -> Callable[[CpuHardware], float | None]:
    def value(hardware: CpuHardware) -> float | None:
        level = _level(hardware, name)
        return None if level is None else level.bandwidth_bytes_per_s / hardware.clock_hz

    return value


def _dram_bytes_per_cycle_of_all(hardware: CpuHardware) -> float:
    return hardware.levels[-1].bandwidth_all_bytes_per_s / hardware.clock_hz / hardware.cores


# The tuning's cycles are those of the widest ISA's code, so what shapes this code weighs most: how
# many registers of which width the tiles have, and how many vectors are loaded and multiplied in a
# cycle. Bandwidths decide which of a tile's costs are hidden. They weigh half as much, as their
# probe on a shared machine has an error of up to half an octave; DRAM, which is shared with other
# tenants, a quarter. Sizes of caches weigh a quarter too: the estimate has them as they are.
FEATURES: Mapping[str, Feature] = {
    "vector_bytes": Feature(2.0, lambda h: h.widest.vector_bytes),
    "vector_registers": Feature(2.0, lambda h: h.widest.vector_registers),
    "fma_bytes_per_cycle": Feature(2.0, lambda h: h.widest.fma_per_cycle * h.widest.vector_bytes),
    "load_bytes_per_cycle": Feature(2.0, lambda h: h.widest.load_per_cycle * h.widest.vector_bytes),
    "fma_latency_cycles": Feature(2.0, lambda h: h.widest.fma_latency_cycles),
    "l2_bytes_per_cycle": Feature(1.0, _bytes_per_cycle("L2")),
    "l3_bytes_per_cycle": Feature(1.0, _bytes_per_cycle("L3")),
    "dram_bytes_per_cycle": Feature(0.5, _bytes_per_cycle("DRAM")),
    "dram_bytes_per_cycle_of_all": Feature(0.5, _dram_bytes_per_cycle_of_all),
    "l1_bytes": Feature(0.5, _capacity("L1")),
    "l2_bytes": Feature(0.5, _capacity("L2")),
    "l3_bytes": Feature(0.5, _capacity("L3")),
}


def distance(one: CpuHardware, other: CpuHardware) -> float:
    """The distance of two CPUs in octaves; infinite between architectures."""
    if one.architecture != other.architecture:
        return math.inf
    total = sum(
        feature.weight * _octaves(feature.value(one), feature.value(other)) ** 2
        for feature in FEATURES.values()
    )
    return math.sqrt(total / sum(feature.weight for feature in FEATURES.values()))


def _octaves(one: float | None, other: float | None) -> float:
    if one is None and other is None:
        return 0.0
    if one is None or other is None:
        return MISSING_OCTAVES
    return math.log2(one / other)


def recorded_cpus() -> tuple[CpuHardware, ...]:
    """The CPUs among the recorded machines, by name."""
    machines = (load_recorded(name) for name in recorded_names())
    return tuple(machine for machine in machines if isinstance(machine, CpuHardware))


def nearest(hardware: CpuHardware, machines: Iterable[CpuHardware]) -> Nearest | None:
    """The nearest of some machines; the first by name of several. None if none has the
    architecture."""
    found = (Nearest(machine, distance(hardware, machine)) for machine in machines)
    near = [each for each in found if math.isfinite(each.distance)]
    return min(near, key=lambda each: (each.distance, each.machine.name), default=None)
