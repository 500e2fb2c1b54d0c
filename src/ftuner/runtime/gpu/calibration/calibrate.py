"""Calibration of a GPU: trials are timed in interleaved rounds until the constants are settled.

The first design of trials comes from the chip's present constants. Where these are far off, it is
not the best one for the device, so trials are designed again from the constants found, and timed
together with the others. Rounds stop when every constant is known well enough, or the time is over.
Compiling the trials' kernels is not part of that time: most of them are kernels of the library,
which tuning compiles anyway.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, log
from statistics import median
from typing import Any, NamedTuple, Protocol

from ftuner.core.frozen import dataclass
from ftuner.errors import HardwareError
from ftuner.hardware.constants import Calibration, Fitted, confidence, constants
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.runtime.backend import Effort
from ftuner.runtime.gpu.calibration.solve import SETTLED_WIDTH, Settled, Timed, solve, timed
from ftuner.runtime.gpu.calibration.table import HOST_FIELDS, STEPPED, designed, with_values
from ftuner.runtime.gpu.calibration.trials import Trial
from ftuner.runtime.shown_progress import Progress

CALIBRATION_VERSION = 1
"""Version of the trials and of what follows from them: models of older ones are made again."""
FIRST_ROUNDS = 5
"""Rounds before the first solution of a design. Each next one has twice as many."""
WANTED_ERROR = 0.05
"""Rounds stop when no settled constant has a wider interval."""
NARROWED = 0.9
"""Rounds go on if the last ones narrowed an interval to this or less."""
SLOW = 0.05
"""A round is slow if it takes longer by more than the fastest tenth."""
THROTTLED_DRIFT = 0.03
"""A device is throttled if trials take longer by more, in their last rounds than in their first."""
LEAST_ROUNDS_OF_DRIFT = 9

_LOG = logging.getLogger(__name__)


class Budget(NamedTuple):
    """The time of a calibration."""

    seconds: float
    """For timing and solving."""
    designs: int
    """Designs of trials at most."""


BUDGETS: Mapping[Effort, Budget] = {"default": Budget(8.0, 2), "thorough": Budget(40.0, 3)}


class HostSeconds(NamedTuple):
    """What the host takes, one sample."""

    launch_s: float
    replay_s: float


class Clock(Protocol):
    """Times trials on a device. `runtime.gpu.calibration.device_clock` has that of CUDA devices."""

    def now(self) -> float:
        """Returns the seconds of the clock that the budget is in."""

    def prepare(
        self, trials: Sequence[Trial], progress: Progress | None = None
    ) -> Mapping[Trial, str]:
        """Compiles the kernels of trials and makes their operands; returns why trials cannot run,
        for those that cannot."""

    def seconds(self, trial: Trial) -> float:
        """Returns the device's seconds of one launch of a prepared trial, whose operands come from
        DRAM."""

    def host_seconds(self) -> HostSeconds | None:
        """Returns a sample of the host's times; None before a trial is prepared, or where launches
        cannot be recorded."""


@dataclass(frozen=True)
class DeviceCalibration:
    """The result of a calibration, with all that it was found from."""

    hardware: GpuHardware
    """With the constants found, their provenance and confidence."""
    summary: Calibration
    settled: tuple[Settled, ...]
    """Every constant of the table and of the host."""
    times: Mapping[Trial, Timed]
    failed: Mapping[Trial, str]
    """Trials that could not run, and why."""
    drift: float
    """Median over trials of how much longer the last rounds took than the first, relative."""

    @property
    def condition(self) -> str:
        """`steady`, `noisy` or `throttled`."""
        if self.drift > THROTTLED_DRIFT:
            return "throttled"
        return "noisy" if self.summary.noisy else "steady"

    def __str__(self) -> str:
        count = sum(x.is_settled for x in self.settled)
        text = (
            f"calibrated {self.hardware.name} in {self.summary.seconds:.1f} s: {count} of "
            f"{len(self.settled)} constants settled by {len(self.times)} trials"
        )
        if self.condition == "throttled":
            text += f"; the device is throttled: it slowed down by {self.drift:.0%} meanwhile"
        elif self.condition == "noisy":
            text += f"; the device is noisy: {self.summary.slow_share:.0%} of the rounds were slow"
        return text


def calibrate(
    hardware: GpuHardware, clock: Clock, effort: Effort = "default",
    progress: Progress | None = None,
) -> DeviceCalibration:  # fmt: skip
    """Calibrates the constants of an idle device; `hardware` has those from before.

    Raises:
        HardwareError: no trial runs on the device.
    """
    assert effort != "none"
    budget = BUDGETS[effort]
    rng = random.Random(0)
    rows: dict[str, tuple[Trial, ...]] = {}
    rounds: dict[Trial, list[float]] = {}
    host: list[HostSeconds] = []
    failed: dict[Trial, str] = {}
    found: list[Settled] = []
    model, spent_s = hardware, 0.0
    for number in range(budget.designs):
        for field, trials in designed(model).items():
            rows[field] = tuple(dict.fromkeys((*rows.get(field, ()), *trials)))
        added = [t for ts in rows.values() for t in ts if t not in rounds and t not in failed]
        if number and not added:
            break
        failed.update(clock.prepare(list(dict.fromkeys(added)), progress))
        rounds.update((t, []) for t in added if t not in failed)
        if not rounds:
            raise HardwareError(f"no kernel runs on {hardware.name}: {next(iter(failed.values()))}")
        end_s = budget.seconds * (number + 1) / budget.designs
        began, done, next_solution = clock.now(), 0, FIRST_ROUNDS
        found = []
        while True:
            _time_round(clock, rounds, host, rng)
            done += 1
            used_s = spent_s + clock.now() - began
            is_over = used_s >= end_s and done >= FIRST_ROUNDS
            if done < next_solution and not is_over:
                continue
            next_solution *= 2
            last, found = found, solve(hardware, rows, {t: timed(x) for t, x in rounds.items()})
            if progress is not None:
                progress("calibrate", min(round(used_s), int(budget.seconds)), int(budget.seconds))
            if is_over or _is_enough(found, last):
                break
        spent_s += clock.now() - began
        model = with_values(hardware, {x.field: x.value for x in found})
    found += _of_host(hardware, host)
    changed = [x for x in found if x.is_settled or x.value != getattr(hardware.tuning, x.field)]
    tuning = _calibrated(hardware.tuning, changed)
    fitted = {x.field: Fitted(getattr(tuning, x.field), x.error) for x in changed}
    result = DeviceCalibration(
        hardware=replace(hardware, tuning=tuning),
        summary=Calibration(tuning, fitted, hardware.tuning, spent_s, _slow_share(rounds)),
        settled=tuple(found),
        times={trial: timed(own) for trial, own in rounds.items()},
        failed=failed,
        drift=_drift(rounds),
    )
    for trial, why in failed.items():
        _LOG.warning("no trial of %s: %s", trial, why)
    _LOG.log(logging.INFO if result.condition == "steady" else logging.WARNING, "%s", result)
    return result


def _time_round(
    clock: Clock, rounds: Mapping[Trial, list[float]], host: list[HostSeconds], rng: random.Random
) -> None:
    """Times every trial once, in random order, so that what changes meanwhile affects all alike."""
    order = list(rounds)
    rng.shuffle(order)
    for trial in order:
        rounds[trial].append(clock.seconds(trial))
    sample = clock.host_seconds()
    if sample is not None:
        host.append(sample)


def _is_enough(found: Sequence[Settled], before: Sequence[Settled]) -> bool:
    """Whether more rounds would not improve the constants: their intervals are narrow, or were not
    narrowed by as many rounds as `before` had. Those of step functions depend on trials alone."""
    widths = {x.field: x.error for x in before}
    return all(
        x.error <= WANTED_ERROR or x.error > NARROWED * widths.get(x.field, inf)
        for x in found
        if x.is_settled and x.field not in STEPPED
    )


def _of_host(hardware: GpuHardware, samples: Sequence[HostSeconds]) -> list[Settled]:
    found = []
    for field, name in zip(HOST_FIELDS, HostSeconds._fields, strict=True):
        before = getattr(hardware.tuning, field)
        if not samples:
            found.append(Settled(field, before, 1.0, False, 0))
            continue
        time = timed([getattr(sample, name) for sample in samples])
        confidence = 2.0 * max(time.error, 1e-4)
        found.append(Settled(field, time.seconds, confidence, confidence <= SETTLED_WIDTH, 1))
    return found


def _calibrated(tuning: GpuTuning, changed: Sequence[Settled]) -> GpuTuning:
    """Returns a tuning with the constants found: those settled, and others that trials did not
    allow as they were."""
    values: dict[str, Any] = {}
    known = constants(GpuTuning)
    for x in changed:
        whole = isinstance(getattr(GpuTuning, x.field), int)
        value = max(round(x.value), 1) if whole else x.value
        assert known[x.field].expectation(value) is None
        values[x.field] = value
    measured = {x.field: "probed" if x.field in HOST_FIELDS else "fitted" for x in changed}
    sure = {x.field: round(confidence(x.error), 3) for x in changed}
    return replace(
        tuning,
        provenance={**tuning.provenance, **measured},
        confidence={**tuning.confidence, **sure},
        **values,
    )


def _slow_share(rounds: Mapping[Trial, Sequence[float]]) -> float:
    """Returns the share of rounds that took clearly longer than the fastest tenth of their
    trial's."""
    slow = total = 0
    for own in rounds.values():
        limit_s = (1.0 + SLOW) * sorted(own)[len(own) // 10]
        slow += sum(s > limit_s for s in own)
        total += len(own)
    return slow / total


def _drift(rounds: Mapping[Trial, Sequence[float]]) -> float:
    """Returns how much longer trials took in the last third of the rounds than in the first; 0 if
    the rounds are too few."""
    found = []
    for own in rounds.values():
        third = len(own) // 3
        if len(own) >= LEAST_ROUNDS_OF_DRIFT:
            found.append(log(median(own[-third:]) / median(own[:third])))
    return median(found) if found else 0.0
