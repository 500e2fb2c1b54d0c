"""The constants that are calibrated on a device: one row for each, with the trials that settle it.

A row proposes many trials. Those are timed whose estimate depends on the row's constant most,
compared with what the other constants, which are not known either, change of it: the design of an
experiment, by arithmetic on the estimate alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from typing import Any, NamedTuple

from ftuner.hardware.constants import constants
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.runtime.gpu.calibration.trials import (
    Trial,
    Workload,
    attended,
    full,
    lone,
    split,
    streamed,
    swept,
    workload_of,
)

PRIOR_SPREAD = 0.3
"""Standard deviation of the logarithm of a constant before calibration: within a third, mostly."""
EXPECTED_NOISE = 0.01
"""Relative error of a timed trial that the choice of trials reckons with."""
LEAST_SENSITIVITY = 0.01
"""Least derivative of the logarithm of a trial's estimate by the logarithm of the constant that it
is to settle."""
_STEP, _FAR_STEP = 0.1, 1.1
"""Steps of the logarithm of a constant for derivatives: the estimate has kinks. The second is three
times the constant, and a third of it."""
_L2_PARTS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
"""Parts of L2 that B takes."""
_DEPTHS = (16, 32, 64, 128)

Source = tuple[Any, ...]
"""The library of a `Workload` that trials are taken from, what takes them, and its arguments."""


class Row(NamedTuple):
    """One constant of `GpuTuning`, and the trials that settle it."""

    field: str
    why: str
    """How the constant follows from these trials."""
    sources: tuple[Source, ...]
    trials: int = 5
    """Trials to time."""
    swept: bool = False
    """Whether all trials proposed are timed: the estimate is a step function of the constant."""

    def proposed(self, workload: Workload) -> tuple[Trial, ...]:
        """Returns the trials that settle the constant, as far as the chip has libraries of them."""
        found: dict[Trial, None] = {}
        for library, source, *arguments in self.sources:
            known = getattr(workload, library)
            found |= {} if known is None else dict.fromkeys(source(known, *arguments))
        return tuple(found)


_M, _S = "matrix", "single"
TABLE = (
    Row(
        "sustained_matrix_share",
        "products in whole waves of full multiprocessors take as long as their multiply-adds",
        ((_M, full, 2, 4096), (_M, full, 1, 8192)),
    ),
    Row(
        "sustained_vector_share", "the same without matrix units",
        ((_S, full, 1, 2048), (_S, full, 1, 4096)),
    ),
    Row(
        "split_matrix_share", "the same of float32 by parts on the matrix units",
        ((_S, full, 1, 2048), (_S, full, 1, 4096)),
    ),
    Row(
        "sustained_dram_share",
        "few rows by a weight of several times L2 take as long as the weight's transfer",
        ((_M, streamed, 1, 4.0), (_M, streamed, 1, 8.0), (_S, streamed, 1, 4.0)),
    ),
    Row(
        "l2_rate_ratio",
        "products of many row and column tiles take as long as L2 delivers them",
        ((_M, full, 2, 4096), (_M, full, 4, 4096)), trials=6,
    ),
    Row(
        "overlap_exponent",
        "rows for which multiply-adds take about as long as the weight's transfer take longer than "
        "either",
        (*((_M, streamed, rows, 4.0) for rows in (1, 2, 3, 4, 6)),
         *((_S, streamed, rows, 2.0) for rows in (1, 2, 3)), (_M, full, 2, 4096)),
        trials=8,
    ),
    Row(
        "loaded_latency_ratio",
        "one small tile for each multiprocessor takes a latency for each round of its stages",
        ((_M, lone, 8192), (_M, lone, 16384), (_S, lone, 8192)),
    ),
    Row(
        "step_cycles",
        "one large tile for each multiprocessor takes longer than its multiply-adds for each step",
        ((_M, lone, 8192), (_S, lone, 4096)), trials=6,
    ),
    Row(
        "synchronous_step_cycles", "the same of low tiles, whose warps wait for their products",
        ((_M, lone, 4096), (_M, lone, 8192), (_S, lone, 4096)), trials=6,
    ),
    Row(
        "ramp_latencies", "products of few steps take longer than these",
        ((_M, lone, 256), (_M, lone, 512)), trials=6,
    ),
    Row(
        "part_rate_share", "products by split-k of large tiles take as long as their parts",
        ((_M, split, 4), (_M, split, 8)), trials=6,
    ),
    Row(
        "reduce_latencies",
        "products by split-k with few steps end a few latencies after their last step",
        ((_M, split, 4), (_M, split, 8)), trials=6,
    ),
    Row(
        "l2_share",
        "a weight that is read once for each row tile comes from DRAM again where it is larger",
        ((_M, swept, 16, _L2_PARTS),), swept=True,
    ),
    Row(
        "exponentials_per_cycle",
        "attention over short vectors takes as long as its exponentials",
        tuple((_M, attended, depth, 2048, 4.0, False) for depth in _DEPTHS),
    ),
    Row(
        "last_unit_share",
        "causal attention with few tiles for each multiprocessor ends unevenly",
        tuple((_M, attended, depth, rows, waves, True)
              for depth in (64, 128) for rows in (1024, 2048, 4096) for waves in (1.5, 2.5, 4.0)),
        trials=8,
    ),
)  # fmt: skip
"""The constants that calibration settles, those first that most others are found beside."""

STEPPED = frozenset(row.field for row in TABLE if row.swept)
"""Constants of which the estimate is a step function."""

HOST_FIELDS = ("host_launch_s", "replay_s")
"""Constants that are the host's own time, measured as they are."""

KEPT = {
    "l2_headroom": "only compares tiles when a library is made; no estimate depends on it",
    "ample_latencies": "the same",
    "absent_line_cycles": "trials have whole tiles",
    "split_instructions": "changes with `split_matrix_share`",
    "fragment_wait_cycles": "changes with `synchronous_step_cycles`",
    "copy_instructions": "counted in the machine code, and trials are aligned",
    "element_instructions": "the same",
    "element_latency_cycles": "trials are aligned",
    "elements_in_flight": "the same",
}
"""Rates that calibration leaves as they are, and why."""


def with_values(hardware: GpuHardware, values: Mapping[str, float]) -> GpuHardware:
    """Returns a chip with other values of single constants."""
    changed: Mapping[str, Any] = values
    return replace(hardware, tuning=replace(hardware.tuning, **changed))


def limits_of(field: str) -> tuple[float, float]:
    """Returns the least and the greatest value that a constant may have."""
    known = constants(GpuTuning)[field]
    return (
        1e-12 if known.least is None else known.least,
        1e12 if known.most is None else known.most,
    )


def sensitivities(
    hardware: GpuHardware, trials: Sequence[Trial], fields: Sequence[str], step: float = _STEP
) -> dict[Trial, dict[str, float]]:
    """Returns the derivative of the logarithm of each trial's estimate by the logarithm of each
    constant, over `step` to either side."""
    found: dict[Trial, dict[str, float]] = {trial: {} for trial in trials}
    for field in fields:
        least, most = limits_of(field)
        value = getattr(hardware.tuning, field)
        low, high = max(value * exp(-step), least), min(value * exp(step), most)
        below, above = (with_values(hardware, {field: x}) for x in (low, high))
        for trial in trials:
            ratio = trial.estimate(above).seconds / trial.estimate(below).seconds
            found[trial][field] = log(ratio) / log(high / low)
    return found


def designed(hardware: GpuHardware) -> dict[str, tuple[Trial, ...]]:
    """Returns the trials to time for each constant; none where no estimate depends on it."""
    workload = workload_of(hardware)
    proposed = {row.field: row.proposed(workload) for row in TABLE}
    pool = list(dict.fromkeys(trial for trials in proposed.values() for trial in trials))
    fields = [row.field for row in TABLE]
    near, far = (sensitivities(hardware, pool, fields, step) for step in (_STEP, _FAR_STEP))

    def own(trial: Trial, field: str) -> float:
        # The constant may be far from its present value, where the trial does not depend on it.
        return max(abs(near[trial][field]), abs(far[trial][field]))

    def score(trial: Trial, field: str) -> float:
        others = sum((near[trial][f] * PRIOR_SPREAD) ** 2 for f in fields if f != field)
        return own(trial, field) / sqrt(EXPECTED_NOISE**2 + others)

    found = {}
    for row in TABLE:
        trials = proposed[row.field]
        if not row.swept:
            depending = [t for t in trials if own(t, row.field) >= LEAST_SENSITIVITY]
            depending.sort(key=lambda trial: -score(trial, row.field))
            trials = tuple(depending[: row.trials])
        found[row.field] = trials
    return found
