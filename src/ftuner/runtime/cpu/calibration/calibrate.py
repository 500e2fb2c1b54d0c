"""Fits what it costs to start all workers and to wait for them.

Each fit is a row of `FITS`: it measures on a stand, and finds values of some fields. It has a share
of the time; trials that are steady sooner leave theirs to the fits after it. What a fit found holds
for the fits after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.hardware.constants import Calibration, Fitted, confidence
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.plan import Choice, Grid
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.calibration.intakes import fit_code, fit_intakes
from ftuner.runtime.cpu.calibration.stand import Found, Stand, believed, stand_families
from ftuner.runtime.cpu.calibration.steps import fit_steps
from ftuner.runtime.cpu.calibration.tiles import fit_crowding, fit_packing, fit_tiles
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.trials import Trial
from ftuner.runtime.shown_progress import Progress

_ROUNDS = 40
_STEPS = 64
_PANELS = 8
"""Panels of each worker: some microseconds, so that all of them take part."""
CHUNK_COST = 0.02
"""Share of a chunk's duration that it may cost to take it."""
_LEAST_S, _MOST_S = 0.2e-6, 100e-6
"""Between a cache line's way from core to core, and waking a sleeping thread."""


def fit_threads(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """Starting a job on all workers, which spin, and waiting for them: a product on all workers,
    less its share of the time of one alone."""
    workers = stand.hardware.cores
    if workers < 2:
        return {}
    alone, together = _product(stand, workers, 1), _product(stand, workers, workers)
    one, all_ = stand.timed([alone, together], _ROUNDS)
    call_s = stand.pace.seconds
    seconds = (all_.seconds - call_s) - (one.seconds - call_s) / workers
    error = max(one.spread, all_.spread) * all_.seconds / max(seconds, _LEAST_S)
    return {"synchronise_s": Fitted(min(max(seconds, _LEAST_S), _MOST_S), error)}


def fit_chunks(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """The least duration of a chunk: of products whose panels come from L3 in as many chunks as
    there are panels, less the same in one share a worker."""
    workers = stand.hardware.cores
    if workers < 2 or len(stand.far_levels) < 2:
        return {}
    weights = stand.weights(stand.far_levels[0])
    segments = ((stand.tallest, 1), (max(stand.tallest - 1, 1), 1))
    panels = weights.n // stand.family.nr
    whole, chunked = (
        stand.trial(segments, weights, workers=workers, chunks=chunks) for chunks in (0, panels)
    )
    shares, chunks = stand.timed([whole, chunked], _ROUNDS)
    cost = (chunks.seconds - shares.seconds) / (panels / workers - 1)
    error = max(shares.spread, chunks.spread) * shares.seconds / max(abs(cost) * panels, 1e-9)
    return {"chunk_s": Fitted(believed(cost / CHUNK_COST, tuning.chunk_s, error), error)}


def _product(stand: Stand, workers: int, used: int) -> Trial:
    """Some panels for each of `workers`, done by `used` of them."""
    n = stand.family.nr * _PANELS * workers
    weights = stand.bed.weights(stand.hardware.levels[1], n, _STEPS)
    problem = panel_problem(n, _STEPS, stand.width, stand.tallest, used)
    choice = Choice(Grid(1, 1, used, 1), stand.width, _STEPS, False, False, False)
    planner = stand.products.planner
    return stand.bed.trial(planner.lay_out(problem, planner.candidate(problem, choice)), weights)


_LOG = logging.getLogger(__name__)

_FITTED = "fitted"


Fit = tuple[Callable[[Stand, CpuTuning], Found], float]
"""One row of the calibration: a fit, and its share of the time."""
FITS: tuple[Fit, ...] = (
    (fit_tiles, 0.15),
    (fit_crowding, 0.03),
    (fit_packing, 0.05),
    (fit_threads, 0.05),
    (fit_chunks, 0.05),
    (fit_code, 0.2),
    (fit_intakes, 0.55),
)
STEP_FITS: tuple[Fit, ...] = ((fit_steps, 0.2),)
"""Those that compile kernels of their own, for a calibration that may take longer."""


def calibrate(
    kernels: Kernels, budget_s: float, session: Callable[[CpuTuning], Any],
    progress: Progress | None = None, fits: Sequence[Fit] = FITS,
) -> Calibration:  # fmt: skip
    """Measure the fields of the tuning of a machine, whose values are the priors.

    `kernels`: of the ISA to measure with; `session`: as of `Stand`; `budget_s`: seconds to measure
    for, beside what a fit takes at least, and after compiling the uKernels that are measured.
    """
    types = product_types(FLOAT32)
    # Only what the stand needs is compiled.
    families = stand_families(kernels.library(types, ACCUMULATOR))
    products = Products(kernels, kernels.compiled(types, ACCUMULATOR, None, families))
    began = time.perf_counter()
    before = tuning = kernels.hardware.tuning
    stand = Stand(products, began + budget_s, session)
    found: dict[str, Fitted] = {}
    left = sum(share for _, share in fits)
    for done, (fit, share) in enumerate(fits):
        if progress is not None:
            progress("calibrate", done, len(fits))
        now = time.perf_counter()
        stand.deadline = now + max(began + budget_s - now, 0.0) * share / left
        left -= share
        some = fit(stand, tuning)
        _LOG.info("%s took %.3f s", fit.__name__, time.perf_counter() - now)
        found.update(some)
        values: dict[str, Any] = {name: fitted.value for name, fitted in some.items()}
        tuning = replace(tuning, **values)
    if progress is not None:
        progress("calibrate", len(fits), len(fits))
    tuning = replace(
        tuning,
        provenance={**before.provenance, **dict.fromkeys(found, _FITTED)},
        confidence={
            **before.confidence,
            **{n: max(round(confidence(f.error), 3), 0.001) for n, f in found.items()},
        },
    )
    result = Calibration(tuning, found, before, time.perf_counter() - began, stand.pace.slow_share)
    if result.noisy:
        _LOG.warning(
            "other load slowed down %.0f%% of the calibration: calibrate again when the machine is "
            "quiet", 100 * result.slow_share,
        )  # fmt: skip
    return result
