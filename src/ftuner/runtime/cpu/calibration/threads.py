"""Fits what it costs to start all workers and to wait for them."""

from __future__ import annotations

from ftuner.hardware.calibration import Fitted
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.plan import Choice, Grid
from ftuner.runtime.cpu.calibration.fits import between
from ftuner.runtime.cpu.calibration.stand import Stand
from ftuner.runtime.cpu.trials import Trial

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
    least, most = (tuning.chunk_s / 8, tuning.chunk_s * 8)
    error = max(shares.spread, chunks.spread) * shares.seconds / max(abs(cost) * panels, 1e-9)
    seconds = between(min(max(cost / CHUNK_COST, least), most), tuning.chunk_s, error)
    return {"chunk_s": Fitted(seconds, error)}


def _product(stand: Stand, workers: int, used: int) -> Trial:
    """Some panels for each of `workers`, done by `used` of them."""
    n = stand.family.nr * _PANELS * workers
    weights = stand.bed.weights(stand.hardware.levels[1], n, _STEPS)
    problem = panel_problem(n, _STEPS, stand.width, stand.tallest, used)
    choice = Choice(Grid(1, 1, used, 1), stand.width, _STEPS, False, False, False)
    planner = stand.products.planner
    return stand.bed.trial(planner.lay_out(problem, planner.candidate(problem, choice)), weights)
