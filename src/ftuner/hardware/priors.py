"""Priors: constants that were tuned on another machine, as the starting values of this one.

A constant of a tuning is, from the strongest: measured on the machine itself, taken over from a
file that the user gave (`given: NAME`), taken over from the nearest recorded machine
(`prior: NAME`), or the default. Facts of the hardware are never taken over.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ftuner.hardware.constants import constants
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.nearest import MAX_DISTANCE, nearest, recorded_cpus
from ftuner.hardware.provenance import GIVEN, PRIOR, is_taken, taken_from
from ftuner.hardware.tuning import CpuTuning, ProbeTuning

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
        and _found_out(tuning.provenance.get(name))
    }


def _found_out(provenance: str | None) -> bool:
    return provenance is not None and provenance != "assumed" and not is_taken(provenance)


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
    folder = resources.files("ftuner.hardware")
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
