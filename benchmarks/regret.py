"""`python -m benchmarks.regret`: the plan chosen by arithmetic against the best measured one.

For each shape of a set, every single-uKernel and two-band cover is run: one tile height for all
rows and one more for the remainder, of every panel width, on every grid of workers. Of so many the
fastest is fast by luck too, so the best few are timed again with the chosen plan, interleaved:
regret is the median over the rounds of the chosen plan's time over another's, less one, for the
other that makes it largest.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cases import Gemm, select
from benchmarks.machine import describe, versions
from benchmarks.results import SCHEMA, save
from benchmarks.run import results_here
from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.planner.cpu.cover import one_or_two_heights
from ftuner.planner.cpu.problem import Problem
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.plan_records import Encoded, Strides

ROUNDS = 25
FINALISTS = 5
FINAL_ROUNDS = 50
BURST_S = 5e-4
L2_MULTIPLE = 4
"""Weights rotated, in multiples of L2, so that B comes from where it would."""


@dataclass(frozen=True)
class Candidate:
    """A plan ready to run, and the width of the panels it reads."""

    name: str
    width: int
    encoded: Encoded


def layout(case: Gemm) -> Strides:
    """Contiguous x and y, and a bias."""
    return Strides(case.k * 4, 4, 0, 0, case.n * 4, (), (0,), False)


def candidates(layers: dict[int, Dense], case: Gemm, backend: CpuBackend) -> list[Candidate]:
    """The chosen plan of each width first, then all others."""
    found = []
    for width, layer in layers.items():
        products = layer.products
        problem = Problem(case.m, case.n, case.k, 1, ROW, False, "panels", width, 0,
                             backend.threads)  # fmt: skip
        strides = layout(case)
        planner = products.planner
        for candidate in planner.candidates(problem):
            if not candidate.fits(case.m):
                continue
            plan = planner.lay_out(problem, candidate)
            found.append(Candidate("x".join(map(str, candidate.choice.grid)), width,
                                   products.encode(plan, strides)))  # fmt: skip
            for segments in one_or_two_heights(case.m, candidate.family.max_mr):
                forced = plan.covered(segments, candidate.table.cover(_heights(segments)).reading)
                if forced is not None:
                    name = f"{'x'.join(map(str, candidate.choice.grid))} {segments}"
                    found.append(Candidate(name, width, products.encode(forced, strides)))
    return found


def _heights(segments: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    return tuple(mr for mr, tiles in segments for _ in range(tiles))


def measure(case: Gemm, backend: CpuBackend) -> dict[str, Any]:
    """Regret of one shape."""
    generator = np.random.default_rng(0)
    l2 = backend.hardware.levels[1].capacity_bytes
    copies = max(2, math.ceil(L2_MULTIPLE * l2 / (case.n * case.k * 4)))
    weights = [generator.standard_normal((case.n, case.k), dtype=np.float32) for _ in range(copies)]
    bias = generator.standard_normal(case.n, dtype=np.float32)
    x = generator.standard_normal((case.m, case.k), dtype=np.float32)
    y = np.empty((case.m, case.n), dtype=np.float32)
    # One set of packed weights for each width: whoever reads it finds it in the same cache.
    chosen_width = Dense(weights[0], bias, session=backend).panels.width
    widths = backend.products(product_types(FLOAT32)).compiled.library.widths
    packed = {v: [Dense(w, bias, session=backend, width=v) for w in weights] for v in widths}
    products = packed[chosen_width][0].products
    problem = packed[chosen_width][0].problem(case.m)
    own = products.encode(products.planner.plan(problem), layout(case))
    runs = [Candidate("chosen", chosen_width, own)]
    runs += candidates({v: layers[0] for v, layers in packed.items()}, case, backend)

    def burst(candidate: Candidate, calls: int) -> float:
        layers = packed[candidate.width]
        began = time.perf_counter()
        for i in range(calls):
            layer = layers[i % copies]
            words = layer.bias_words.address
            layer.products.launch(candidate.encoded, x, layer.panels.packed, y, words)
        return (time.perf_counter() - began) / calls

    burst(runs[0], copies)
    estimate = burst(runs[0], copies)
    calls = copies * max(1, round(BURST_S / (estimate * copies)))
    best = [math.inf] * len(runs)
    order = list(range(len(runs)))
    for _ in range(ROUNDS):
        generator.shuffle(order)
        for i in order:
            burst(runs[i], copies)
            best[i] = min(best[i], burst(runs[i], calls))
    finalists = sorted(range(1, len(runs)), key=best.__getitem__)[:FINALISTS]
    order = [0, *finalists]
    samples: dict[int, list[float]] = {i: [] for i in order}
    for _ in range(FINAL_ROUNDS):
        generator.shuffle(order)
        for i in order:
            burst(runs[i], copies)
            samples[i].append(burst(runs[i], calls))
    ratios = {
        i: statistics.median(own / other for own, other in zip(samples[0], samples[i], strict=True))
        for i in finalists
    }
    fastest = max(finalists, key=ratios.__getitem__)
    return {
        "case": case.label,
        "candidates": len(runs),
        "chosen_s": statistics.median(samples[0]),
        "best_s": statistics.median(samples[fastest]),
        "best": f"{runs[fastest].width}v {runs[fastest].name}",
        "regret": max(ratios[fastest] - 1, 0.0),
    }


def main(
    set_: Annotated[str, typer.Option("--set", help="workload set")] = "mlp",
    threads: Annotated[int, typer.Option(help="threads")] = 1,
    every: Annotated[int, typer.Option(help="take every n-th shape")] = 5,
    most: Annotated[float, typer.Option(help="skip shapes of more GFLOP than this")] = 0.3,
) -> None:
    """Measure regret and save it."""
    backend = default_backend()
    backend.threads = threads
    cases = [c for c in select("gemm", set_) if 2e-9 * c.m * c.n * c.k <= most][::every]
    results = []
    for case in cases:
        results.append(measure(case, backend))
        last = results[-1]
        print(f"{last['case']:>16}  {100 * last['regret']:5.1f}%  {last['best']}", flush=True)
    regrets = [r["regret"] for r in results]
    print(f"mean {100 * sum(regrets) / len(regrets):.1f}%, worst {100 * max(regrets):.1f}%")
    document = {
        "schema": SCHEMA,
        "kind": "regret",
        "set": set_,
        "threads": threads,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": asdict(describe()),
        "versions": versions(),
        "mean": sum(regrets) / len(regrets),
        "worst": max(regrets),
        "cases": results,
    }
    save(document, results_here() / f"regret-{set_}-t{threads}.json")


if __name__ == "__main__":
    typer.run(main)
