"""The recorded CPU nearest to a machine, by features that do not depend on its clock or cores.

A machine that was not tuned starts from what was measured on the one most like it. Features are
sizes, rates in each cycle, and bandwidths in bytes of each cycle, so that two machines of one
microarchitecture agree at any clock. They are compared by the binary logarithm of their ratio; the
distance is the weighted root mean square of these, in octaves.

A constant of a tuning is, from the strongest: measured on the machine itself, taken over from a
file that the user gave (`given: NAME`), taken over from the nearest recorded machine
(`prior: NAME`), or the default. Facts of the hardware are never taken over.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from ftuner.hardware.constants import GIVEN, PRIOR, constants, is_taken, taken_from
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, own_folder, recorded_names
from ftuner.hardware.tuning import CpuTuning, ProbeTuning

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


def _of_level(name: str, field: str) -> Callable[[CpuHardware], float | None]:
    """A field of a memory level; of bandwidths the bytes in each cycle."""

    def value(hardware: CpuHardware) -> float | None:
        level = next((level for level in hardware.levels if level.name == name), None)
        if level is None:
            return None
        found = float(getattr(level, field))
        return found if field == "capacity_bytes" else found / hardware.clock_hz

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
    "l2_bytes_per_cycle": Feature(1.0, _of_level("L2", "bandwidth_bytes_per_s")),
    "l3_bytes_per_cycle": Feature(1.0, _of_level("L3", "bandwidth_bytes_per_s")),
    "dram_bytes_per_cycle": Feature(0.5, _of_level("DRAM", "bandwidth_bytes_per_s")),
    "dram_bytes_per_cycle_of_all": Feature(0.5, _dram_bytes_per_cycle_of_all),
    "l1_bytes": Feature(0.5, _of_level("L1", "capacity_bytes")),
    "l2_bytes": Feature(0.5, _of_level("L2", "capacity_bytes")),
    "l3_bytes": Feature(0.5, _of_level("L3", "capacity_bytes")),
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
    """The CPUs among the recorded machines, by name. What models of GPUs consist of would take 25
    ms to import."""
    machines = map(load_recorded, recorded_names("cpu"))
    return tuple(machine for machine in machines if isinstance(machine, CpuHardware))


def nearest(hardware: CpuHardware, machines: Iterable[CpuHardware]) -> Nearest | None:
    """The nearest of some machines; the first by name of several. None if none has the
    architecture."""
    found = (Nearest(machine, distance(hardware, machine)) for machine in machines)
    near = [each for each in found if math.isfinite(each.distance)]
    return min(near, key=lambda each: (each.distance, each.machine.name), default=None)


_LOG = logging.getLogger(__name__)

_OF_ONE_MACHINE = frozenset({"s", "us", "Hz", "bytes", "polls per us"})
"""Units of constants that depend on a machine's clock, caches or operating system. Cycles, rates in
each cycle, ratios and counts are portable."""
_DECIDES_PRIORS = ("nearest.py", "priors.py", "tuning.py")
"""Sources in this folder that decide, besides the recorded machines, what is taken over."""


def portable(tuning: CpuTuning) -> dict[str, Any]:
    """The constants of a tuning that another machine may start from: those that somebody found out
    for this machine, in a unit that does not depend on it. The probe's own are none of them,
    because the probe comes first."""
    left_out = constants(ProbeTuning)
    return {
        name: getattr(tuning, name)
        for name, known in constants(tuning).items()
        if known.unit not in _OF_ONE_MACHINE
        and name not in left_out
        and (provenance := tuning.provenance.get(name, "assumed")) != "assumed"
        and not is_taken(provenance)
    }


def own_tuning(tuning: CpuTuning) -> CpuTuning:
    """A tuning without what the nearest recorded machine lends it."""
    return _without(tuning, PRIOR)


def with_given(hardware: CpuHardware, source: CpuHardware) -> CpuHardware:
    """A machine with what was tuned on another one, or on itself before.

    If both have one fingerprint, the machine takes over the whole tuning, and the correction that
    was learned with it, unless the recorded machines lend it other constants here. If not, it takes
    over the portable constants, in the place of what earlier such machines gave; constants that
    were found out for the machine itself stay. Either way the nearest recorded machine lends the
    rest.
    """
    bare = replace(hardware, correction=None)
    if source.fingerprint != hardware.fingerprint:
        tuning = _filled(_without(hardware.tuning, PRIOR, GIVEN), source, GIVEN)
        return with_nearest(replace(bare, tuning=tuning))
    found = with_nearest(replace(bare, tuning=own_tuning(source.tuning)))
    # A correction is of the errors that the estimate has with one tuning.
    same = found.tuning == source.tuning
    return replace(found, correction=source.correction) if same else found


def with_nearest(hardware: CpuHardware) -> CpuHardware:
    """A machine whose tuning has, where nothing stronger is known, the portable constants of the
    nearest recorded machine, unless that is further away than `MAX_DISTANCE`."""
    tuning = own_tuning(hardware.tuning)
    found = nearest(hardware, recorded_cpus())
    if found is None:
        _LOG.info("no recorded machine has the architecture %s", hardware.architecture)
    elif found.distance > MAX_DISTANCE:
        _LOG.info(
            "%s has no prior: %s is nearest, %.2f octaves away; the limit is %.2f",
            hardware.name, found.machine.name, found.distance, MAX_DISTANCE,
        )  # fmt: skip
    else:
        tuning = _filled(tuning, found.machine, PRIOR)
        taken = sum(source.startswith(PRIOR) for source in tuning.provenance.values())
        _LOG.info(
            "%s has %d constants of %s, %.2f octaves away",
            hardware.name, taken, found.machine.name, found.distance,
        )  # fmt: skip
    return replace(hardware, tuning=tuning)


@cache
def priors_digest() -> str:
    """Names all that decides which constants a machine takes over from the recorded ones: kept
    models with another digest get them anew. Reading the files takes 0.7 ms, as parsing them would
    40 ms."""
    folder = own_folder()
    files = sorted((folder / "machines").iterdir(), key=lambda entry: entry.name)
    read = hashlib.sha256()
    for entry in (*files, *(folder / name for name in _DECIDES_PRIORS)):
        if entry.is_file():
            data = entry.read_bytes()
            read.update(f"{entry.name} {len(data)}\n".encode() + data)
    return read.hexdigest()[:16]


def _filled(tuning: CpuTuning, source: CpuHardware, prefix: str) -> CpuTuning:
    """A tuning with the portable constants of a machine where it has only defaults."""
    default = CpuTuning()
    taken = {
        name: value
        for name, value in portable(source.tuning).items()
        if name not in tuning.provenance
        and getattr(tuning, name) == getattr(default, name) != value
    }
    origin = dict.fromkeys(taken, taken_from(prefix, source.name))
    return replace(tuning, **taken, provenance={**tuning.provenance, **origin})


def _without(tuning: CpuTuning, *prefixes: str) -> CpuTuning:
    """A tuning with the defaults of the constants whose provenance has one of some prefixes."""
    dropped: Collection[str] = [
        name for name, source in tuning.provenance.items() if source.startswith(prefixes)
    ]
    default = CpuTuning()
    return replace(
        tuning,
        **{name: getattr(default, name) for name in dropped},
        provenance={n: s for n, s in tuning.provenance.items() if n not in dropped},
    )
