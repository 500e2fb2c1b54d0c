"""Calibration of a device, from its own constants and from wrong ones: what it finds, and what the
plans chosen by the constants cost before and after.

All priors should end at the same constants. Regret is measured as in `benchmarks.gpu_regret`: the
plans of each shape are timed once, and each set of constants chooses among them. The timed trials
and plans are kept as samples, a JSON line each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_bench import Bench, Section
from benchmarks.gpu_cases import Product, dry_cases, regret_cases
from benchmarks.gpu_products import Operands
from benchmarks.gpu_regret import named, plans, timed_plans
from benchmarks.gpu_simulated import SimulatedClock
from benchmarks.gpu_timing import Timing
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.recorded import load_recorded, recorded_names, to_document
from ftuner.planner.gpu.plan import ProductPlan
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.planner.gpu.problem import ProductProblem
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.calibration.calibrate import Clock, DeviceCalibration, calibrate
from ftuner.runtime.gpu.calibration.device_clock import DeviceClock
from ftuner.runtime.gpu.calibration.table import with_values
from ftuner.runtime.gpu.calibration.trials import AttentionTrial, ProductTrial, Trial
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
    for name, values in SKEWED.items():
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


def calibration(bench: Bench, section: Section) -> None:
    """Every prior, then shapes until the time is over."""
    section.restart()
    variants: dict[str, GpuHardware] = {}
    lines: list[dict[str, Any]] = []
    clock = clock_of(bench)
    for name, prior in priors(bench.backend.hardware, bench.dry).items():
        found = calibrate(prior, clock)
        variants |= {f"{name}, before": prior, f"{name}, after": found.hardware}
        section.add(name, **_result(found))
        lines += (
            _sample(found.hardware, trial, time.seconds, time.error, time.rounds, False)
            for trial, time in found.times.items()
        )
    left = 0
    for case in [next(dry_cases())] if bench.dry else regret_cases()[:SHAPES]:
        if bench.left_s <= 0:
            left += 1
            continue
        result, measured = _regrets(bench, case, variants)
        section.add(case.label, **result)
        lines += measured
    section.document["left"] = left
    _write(section, bench.backend.hardware, lines)


def _result(found: DeviceCalibration) -> dict[str, Any]:
    return {
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


def _regrets(
    bench: Bench, case: Product, variants: Mapping[str, GpuHardware]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Regret of one shape by each set of constants, and the samples."""
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
    samples = [
        _sample(variants[last], ProductTrial(plan), *_timed(timings[labels[plan]]),
                plan == chosen[last])
        for plan in every if labels[plan] in timings
    ]  # fmt: skip
    return result, samples


def _timed(timing: Timing) -> tuple[float, float, int]:
    spread = (timing.median_s - timing.min_s) / timing.median_s
    return timing.median_s, spread, timing.rounds


def _sample(
    hardware: GpuHardware, trial: Trial, seconds: float, spread: float, rounds: int, chosen: bool
) -> dict[str, Any]:
    """A plan, measured, as a line of a dataset. `terms` are of the calibrated chip."""
    plan = trial.plan
    problem: dict[str, Any]
    if isinstance(trial, ProductTrial):
        dtype, p = trial.plan.kernel.multiply, trial.plan.problem
        problem = {"m": p.m, "n": p.n, "k": p.k, "batch": p.batch}
        described = {
            "kind": "product", "tiles": [asdict(tile) for tile in trial.plan.kernel.tiles],
            "rows": trial.plan.rows, "split_k": trial.plan.split_k, "swizzle": trial.plan.swizzle,
            "programs": trial.plan.programs,
        }  # fmt: skip
    else:
        assert isinstance(trial, AttentionTrial)
        kernel = trial.plan.kernel
        dtype, problem = kernel.form.multiply, dict(trial.plan.problem._asdict())
        described = {
            "kind": "attention", "tile": asdict(kernel.tile), "causal": kernel.form.causal,
            "packed": kernel.packed, "split_keys": trial.plan.split_keys,
            "l2_heads": trial.plan.l2_heads, "programs": plan.programs,
        }  # fmt: skip
    return {
        "isa": hardware.architecture, "dtype": dtype, "workers": hardware.multiprocessors,
        "level": "DRAM", "problem": problem, "plan": described, "chosen": chosen,
        "terms": trial.estimate(hardware).terms(), "seconds": seconds, "spread": spread,
        "rounds": rounds,
    }  # fmt: skip


def _write(section: Section, hardware: GpuHardware, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the samples beside the section's document, anew each time."""
    document = section.document
    header = {
        "kind": SAMPLES_KIND, "schema": SAMPLES_SCHEMA, "fingerprint": hardware.name,
        "hardware": to_document(hardware), "versions": document["versions"],
        "date": document["date"],
    }  # fmt: skip

    def written() -> Iterator[str]:
        for line in (header, *lines):
            yield json.dumps(line, allow_nan=False) + "\n"

    path = section.folder / SAMPLES
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(written()), encoding="utf-8")
