"""The plan chosen by arithmetic against the best of all that could be launched, measured.

For each shape every uKernel of the library is run: each tile with every split-k that the
planner considers, and each pair at each of its heights. Regret is the time of the chosen plan over
that of the fastest, less one; the chosen plan is timed among them, so noise can only make it worse.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_bench import Attempt, Bench, attempts, error_of
from benchmarks.gpu_cases import Product, dry_cases, regret_cases
from benchmarks.gpu_products import Operands
from benchmarks.gpu_timing import Call, Settings, Timing, measure
from ftuner.planner.gpu.candidates import Candidate, CandidateEstimate
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import ProductPlanner, product_planner_for
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.calibration.device_clock import PlannedProducts

SETTINGS = Settings(burst_s=1e-3, rounds=5)


def plans(planner: ProductPlanner, problem: ProductProblem) -> Iterator[ProductPlan]:
    """Every plan of a problem that the library has."""
    for candidate in planner.candidates(problem):
        for estimate in _estimates(candidate, problem):
            kernel = planner.library.kernel(
                candidate.tiles, problem.a_order, problem.b_order, problem.alignment,
                estimate.split_k > 1, c_aligned=problem.c_aligned,
            )  # fmt: skip
            yield ProductPlan(
                problem, kernel, estimate.rows or problem.m, estimate.split_k, estimate.swizzle,
                estimate.programs,
            )  # fmt: skip


def _estimates(candidate: Candidate, problem: ProductProblem) -> Iterator[CandidateEstimate]:
    tiles = -(-problem.m // candidate.granule)
    if len(candidate.tiles) > 1:
        ratio = candidate.tiles[0].bm // candidate.tiles[1].bm
        for talls in candidate.heights(tiles):
            yield candidate.estimate(talls, tiles - talls * ratio, 1)
        return
    for split_k in candidate.split_k_choices(tiles):
        yield candidate.estimate(tiles, 0, split_k)


def named(plan: ProductPlan) -> str:
    """A plan in a few words."""
    tiles = " + ".join(str(tile) for tile in plan.kernel.tiles)
    split_k = f", split-k {plan.split_k}" if plan.split_k > 1 else ""
    return f"{tiles}{split_k}"


def run_case(bench: Bench, case: Product) -> dict[str, Any]:
    """Regret of one shape; the result as JSON."""
    operands = Operands(bench, case)
    dtype = matrix_dtype(operands.x[0], "x")
    planner = product_planner_for(bench.backend.block_library(dtype, case.multiply))  # type: ignore[arg-type]
    problem = ProductProblem(case.m, case.n, case.k)
    chosen = planner.plan(problem)
    began = time.perf_counter()
    others = list(plans(planner, problem))
    if bench.dry:
        others = others[:: max(1, len(others) // 4)]
    every = {"chosen": chosen, **{f"{i} {named(p)}": p for i, p in enumerate(others)}}
    runs, wrong = _runs(bench, case, operands, every)
    prepared = time.perf_counter()
    timings = measure(runs, bench.meter, SETTINGS, bench.rng)
    ended = time.perf_counter()
    best = min(timings, key=lambda name: timings[name].median_s)
    found: dict[str, Any] = {
        "candidates": len(others),
        "wrong": wrong,
        "best": best,
        "best_s": timings[best].median_s,
        "chosen": named(chosen),
        "check_s": prepared - began,
        "search_s": ended - prepared,
        "plan_s": _plan_s(planner, problem),
        "timings": {name: timing.median_s for name, timing in timings.items()},
        "estimates": {f"{i} {named(p)}": planner.estimate(p).seconds for i, p in enumerate(others)},
    }
    if "chosen" in timings:
        found["chosen_s"] = timings["chosen"].median_s
        found["regret"] = found["chosen_s"] / found["best_s"] - 1
    return found


def timed_plans(
    bench: Bench, case: Product, operands: Operands, every: Mapping[str, ProductPlan]
) -> tuple[dict[str, Timing], list[str]]:
    """The times of plans by name, and those whose results are wrong."""
    runs, wrong = _runs(bench, case, operands, every)
    return measure(runs, bench.meter, SETTINGS, bench.rng), wrong


def _runs(
    bench: Bench, case: Product, operands: Operands, every: Mapping[str, ProductPlan]
) -> tuple[dict[str, list[Call]], list[str]]:
    """The calls of plans whose results are right, and what is wrong of the others."""
    runs: dict[str, list[Call]] = {}
    wrong = []
    for name, plan in every.items():
        runs[name] = operands.ours(PlannedProducts(bench.backend, plan))
        error = error_of(runs[name][0](), operands.x[0], operands.w[0], case.multiply)
        if not error <= 1.0:
            wrong.append(f"{name}: {error:.3g}")
            del runs[name]
    return runs, wrong


def _plan_s(planner: ProductPlanner, problem: ProductProblem) -> float:
    """Seconds to plan for numbers of rows that were not seen before, on average."""
    rows = range(problem.m + 1, problem.m + 101)
    began = time.perf_counter()
    for m in rows:
        planner.plan(problem._replace(m=m))
    return (time.perf_counter() - began) / len(rows)


def regret(bench: Bench) -> Iterator[Attempt]:
    """A sample of shapes."""
    return attempts(bench, [next(dry_cases())] if bench.dry else regret_cases(), run_case)
