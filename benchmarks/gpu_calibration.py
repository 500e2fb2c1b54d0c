"""Calibration of a device, from its own constants and from wrong ones: what it finds, and what the
plans chosen by the constants cost before and after.

All priors should end at the same constants. Regret is measured as in `benchmarks.gpu_regret`: the
plans of each shape are timed once, and each set of constants chooses among them. The timed trials
and plans are kept as samples, a JSON line each.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.gpu_bench import Attempt, Bench
from benchmarks.gpu_cases import Product, dry_cases, regret_cases
from benchmarks.gpu_plans import described
from benchmarks.gpu_products import Operands
from benchmarks.gpu_regret import named, plans, timed_plans
from benchmarks.gpu_simulated import SimulatedClock
from benchmarks.gpu_timing import Timing
from ftuner.core.gpu.tile import ProductKernel
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.recorded import from_document, load_recorded, recorded_names, to_document
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.calibration.calibrate import Clock, DeviceCalibration, calibrate
from ftuner.runtime.gpu.calibration.device_clock import DeviceClock
from ftuner.runtime.gpu.calibration.table import with_values
from ftuner.runtime.gpu.calibration.trials import ProductTrial, Trial
from ftuner.ukernels.gpu.library import build_gpu_library

SAMPLES = "gpu-samples.jsonl"
SAMPLES_KIND, SAMPLES_SCHEMA = "ftuner-samples", 1
SKEWED: Mapping[str, Mapping[str, float]] = {
    "rates of half": {
        "sustained_matrix_share": 0.45, "sustained_vector_share": 0.4, "sustained_dram_share": 0.45,
        "exponentials_per_cycle": 8.0,
    },
    "latencies of double": {
        "loaded_latency_ratio": 3.0, "step_cycles": 80, "reduce_latencies": 4.0,
        "overlap_exponent": 4.0,
    },
}  # fmt: skip
"""Wrong constants, by name."""
DRY_TRUTH = {"sustained_matrix_share": 0.7, "loaded_latency_ratio": 2.2, "step_cycles": 70}
"""What the simulated device of a dry run has."""
SHAPES = 6


def priors(hardware: GpuHardware, dry: bool) -> dict[str, GpuHardware]:
    """The device with its constants from before, those of recorded GPUs where they differ, and
    wrong ones."""
    found = {"default": with_tuning(hardware, GpuTuning())}
    for name in () if dry else recorded_names():
        recorded = load_recorded(name)
        if isinstance(recorded, GpuHardware):
            found[name] = with_tuning(hardware, recorded.tuning)
    for name, values in [*SKEWED.items()][: 1 if dry else None]:
        found[name] = with_values(found["default"], values)
    seen: set[GpuTuning] = set()
    return {
        name: each
        for name, each in found.items()
        if not (each.tuning in seen or seen.add(each.tuning))  # type: ignore[func-returns-value]
    }


def with_tuning(hardware: GpuHardware, tuning: GpuTuning) -> GpuHardware:
    """A chip with all constants of another."""
    return GpuHardware(**{**vars(hardware), "tuning": tuning})


def clock_of(bench: Bench) -> Clock:
    """The device's clock; a simulated one in a dry run, because trials are large."""
    if bench.dry:
        return SimulatedClock(with_values(bench.backend.hardware, DRY_TRUTH))
    return DeviceClock(bench.backend)


def calibration(bench: Bench) -> Iterator[Attempt]:
    """Every prior, then shapes until the time is over."""
    clock = clock_of(bench)
    priors_of = priors(bench.backend.hardware, bench.dry)

    def calibrated(prior: GpuHardware) -> dict[str, Any]:
        found = calibrate(prior, clock)
        _keep(bench, [
            _sample(found.hardware, trial, time.seconds, time.error, time.rounds, False)
            for trial, time in found.times.items()
        ])  # fmt: skip
        return _result(found)

    for name, prior in priors_of.items():
        yield Attempt(name, partial(calibrated, prior))
    for case in [next(dry_cases())] if bench.dry else regret_cases()[:SHAPES]:
        yield Attempt(case.label, partial(_regrets, bench, case, priors_of))


def _result(found: DeviceCalibration) -> dict[str, Any]:
    return {
        "hardware": to_document(found.hardware),
        "seconds": found.summary.seconds,
        "condition": found.condition,
        "slow_share": found.summary.slow_share,
        "drift": found.drift,
        "trials": len(found.times),
        "failed": sorted(set(found.failed.values())),
        "constants": {
            x.field: {
                "before": getattr(found.summary.before, x.field), "value": x.value,
                "error": x.error, "settled": x.is_settled, "trials": x.trials,
            }
            for x in found.settled
        },
    }  # fmt: skip


def _regrets(bench: Bench, case: Product, priors_of: Mapping[str, GpuHardware]) -> dict[str, Any]:
    """Regret of one shape by each set of constants; keeps the samples."""
    assert bench.journal is not None
    variants: dict[str, GpuHardware] = {}
    for found in bench.journal.document["cases"]:
        if "constants" in found:
            after = from_document(found["hardware"])
            assert isinstance(after, GpuHardware)
            name = found["label"]
            variants |= {f"{name}, before": priors_of[name], f"{name}, after": after}
    operands = Operands(bench, case)
    dtype = matrix_dtype(operands.x[0], "x")
    problem = ProductProblem(case.m, case.n, case.k)
    planners = {
        name: product_planner_for(build_gpu_library(hardware, dtype, case.multiply))  # type: ignore[arg-type]
        for name, hardware in variants.items()
    }
    chosen = {name: planner.plan(problem) for name, planner in planners.items()}
    others: Iterable[ProductPlan] = plans(next(iter(planners.values())), problem)
    if bench.dry:
        others = list(others)[:2]
    every = list(dict.fromkeys((*chosen.values(), *others)))
    labels = {plan: f"{i} {named(plan)}" for i, plan in enumerate(every)}
    timings, wrong = timed_plans(bench, case, operands, {labels[p]: p for p in every})
    best = min(timings, key=lambda label: timings[label].median_s)
    best_s = timings[best].median_s
    result = {
        "wrong": wrong,
        "best": best,
        "best_s": best_s,
        "chosen": {name: labels[plan] for name, plan in chosen.items()},
        "regrets": {
            name: timings[labels[plan]].median_s / best_s - 1
            for name, plan in chosen.items()
            if labels[plan] in timings
        },
    }
    last = list(variants)[1]
    _keep(bench, [
        _sample(variants[last], ProductTrial(plan), *_timed(timings[labels[plan]]),
                plan == chosen[last])
        for plan in every if labels[plan] in timings
    ])  # fmt: skip
    return result


def _timed(timing: Timing) -> tuple[float, float, int]:
    spread = (timing.median_s - timing.min_s) / timing.median_s
    return timing.median_s, spread, timing.rounds


def _sample(
    hardware: GpuHardware, trial: Trial, seconds: float, spread: float, rounds: int, chosen: bool
) -> dict[str, Any]:
    """A plan, measured, as a line of a dataset. `terms` are of the calibrated chip."""
    plan = trial.plan
    is_product = isinstance(trial, ProductTrial)
    problem = plan.problem._asdict()
    if is_product:
        problem = {name: problem[name] for name in ("m", "n", "k", "batch")}
    kernel = trial.plan.kernel
    dtype = kernel.multiply if isinstance(kernel, ProductKernel) else kernel.form.multiply
    return {
        "isa": hardware.architecture, "dtype": dtype, "workers": hardware.multiprocessors,
        "level": "DRAM", "problem": problem, "plan": described(plan), "chosen": chosen,
        "terms": trial.estimate(hardware).terms(), "seconds": seconds, "spread": spread,
        "rounds": rounds,
    }  # fmt: skip


def _keep(bench: Bench, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append samples to the file beside the section's document."""
    assert bench.journal is not None
    document, path = bench.journal.document, bench.journal.path.parent / SAMPLES
    header = {
        "kind": SAMPLES_KIND, "schema": SAMPLES_SCHEMA, "fingerprint": bench.backend.hardware.name,
        "hardware": to_document(bench.backend.hardware), "versions": document["versions"],
        "date": document["date"],
    }  # fmt: skip
    # A file of an earlier run is written over.
    known = path.exists() and json.loads(path.read_text().split("\n", 1)[0]) == header
    text = "".join(json.dumps(x, allow_nan=False) + "\n" for x in (*[header] * (not known), *lines))
    with path.open("a" if known else "w", encoding="utf-8") as file:
        file.write(text)
