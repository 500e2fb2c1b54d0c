"""A device in place of one: its truth is the estimate with known constants, and noise."""

import random
from collections.abc import Mapping, Sequence

from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.gpu.calibration.calibrate import HostSeconds
from ftuner.runtime.gpu.calibration.trials import Trial
from ftuner.runtime.shown_progress import Progress

TRIAL_S = 4e-3
"""Seconds of the clock for each timed trial."""


class SimulatedClock:
    """A clock of a chip with constants of its own."""

    def __init__(
        self, truth: GpuHardware, noise: float = 0.01, outliers: float = 0.03, slower: float = 0.0,
        seed: int = 0,
    ) -> None:  # fmt: skip
        """`noise`: relative standard deviation of a time. `outliers`: part of the times that are
        half as long again. `slower`: how much slower the chip becomes over a hundred rounds."""
        self.truth = truth
        self.prepared: list[Trial] = []
        self._noise, self._outliers, self._slower = noise, outliers, slower
        self._random = random.Random(seed)
        self._now = 0.0
        self._rounds = 0

    def now(self) -> float:
        return self._now

    def prepare(
        self, trials: Sequence[Trial], progress: Progress | None = None
    ) -> Mapping[Trial, str]:
        self.prepared += trials
        return {}

    def seconds(self, trial: Trial) -> float:
        assert trial in self.prepared
        self._now += TRIAL_S
        return trial.estimate(self.truth).seconds * self._factor()

    def host_seconds(self) -> HostSeconds | None:
        self._rounds += 1
        tuning = self.truth.tuning
        return HostSeconds(tuning.host_launch_s * self._factor(), tuning.replay_s * self._factor())

    def _factor(self) -> float:
        found = 1.0 + self._random.gauss(0.0, self._noise) + self._slower * self._rounds / 100
        return found * (1.5 if self._random.random() < self._outliers else 1.0)
