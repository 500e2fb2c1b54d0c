"""Calibration: short trials of real uKernels set the fields of a tuning that the probe cannot see.

Each fit is a row of `FITS`: it measures on a stand, and finds values of some fields. It has a share
of the time; trials that are steady sooner leave theirs to the fits after it. What a fit found holds
for the fits after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.hardware.calibration import Calibration, Fitted, confidence
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.calibration.code import fit_code
from ftuner.runtime.cpu.calibration.fits import Found
from ftuner.runtime.cpu.calibration.intakes import fit_intakes
from ftuner.runtime.cpu.calibration.stand import Stand, stand_families
from ftuner.runtime.cpu.calibration.steps import fit_steps
from ftuner.runtime.cpu.calibration.threads import fit_chunks, fit_threads
from ftuner.runtime.cpu.calibration.tiles import fit_crowding, fit_packing, fit_tiles
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.shown_progress import Progress

_LOG = logging.getLogger(__name__)

_FITTED = "fitted"


class Fit(NamedTuple):
    """One row of the calibration."""

    name: str
    fit: Callable[[Stand, CpuTuning], Found]
    share: float
    """Of the time."""


FITS = (
    Fit("tiles", fit_tiles, 0.15),
    Fit("crowding", fit_crowding, 0.03),
    Fit("packing", fit_packing, 0.05),
    Fit("threads", fit_threads, 0.05),
    Fit("chunks", fit_chunks, 0.05),
    Fit("code", fit_code, 0.2),
    Fit("intakes", fit_intakes, 0.55),
)
STEP_FITS = (Fit("steps", fit_steps, 0.2),)
"""Those that compile kernels of their own, for a calibration that may take longer."""


def _products_of(kernels: Kernels) -> Products:
    """Products of float32, of which only what the stand needs is compiled."""
    types = product_types(FLOAT32)
    library = kernels.library(types, ACCUMULATOR)
    families = stand_families(library)
    return Products(kernels, kernels.compiled(types, ACCUMULATOR, None, families))


def calibrate(
    kernels: Kernels, budget_s: float, session: Callable[[CpuTuning], Any],
    progress: Progress | None = None, fits: Sequence[Fit] = FITS,
) -> Calibration:  # fmt: skip
    """Measure the fields of the tuning of a machine, whose values are the priors.

    `kernels`: of the ISA to measure with; `session`: as of `Stand`; `budget_s`: seconds to measure
    for, beside what a fit takes at least, and after compiling the uKernels that are measured.
    """
    products = _products_of(kernels)
    began = time.perf_counter()
    before = tuning = kernels.hardware.tuning
    stand = Stand(products, began + budget_s, session)
    found: dict[str, Fitted] = {}
    left = sum(fit.share for fit in fits)
    for done, fit in enumerate(fits):
        if progress is not None:
            progress("calibrate", done, len(fits))
        now = time.perf_counter()
        stand.deadline = now + max(began + budget_s - now, 0.0) * fit.share / left
        left -= fit.share
        some = fit.fit(stand, tuning)
        _LOG.info("calibrated %s in %.3f s", fit.name, time.perf_counter() - now)
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
