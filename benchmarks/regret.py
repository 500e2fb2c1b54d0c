"""`python -m benchmarks.regret`: the plan chosen by arithmetic against the best measured one.

Each shape of a set is a contest (`benchmarks.contests`) of every cover of one or two heights, of
every panel width, on every grid of workers. The weight comes from the level that it would come from
in a program that reads others, too: L3, or DRAM where the last cache cannot hold it.
"""

from typing import Annotated, Any

import typer

from benchmarks.cases import Gemm, select
from benchmarks.contests import Arena, Shape
from benchmarks.machine import describe
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import results_here
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.planner.cpu.planner import best_width
from ftuner.runtime.cpu.backend import CpuBackend, default_backend

OWN = "chosen"


def arena_of(backend: CpuBackend, threads: int) -> Arena:
    """Contests of the plans that this machine's tuning chooses."""
    return Arena(backend, FLOAT32, threads, {OWN: backend.hardware})


def measure(arena: Arena, case: Gemm, backend: CpuBackend) -> dict[str, Any]:
    """Regret of one shape."""
    products = backend.products(product_types(FLOAT32))
    first = best_width(products.planner, case.n, case.k, backend.threads)
    widths = sorted(products.compiled.library.widths, key=lambda width: width != first)
    behind_l2 = backend.hardware.levels[2:]
    size = case.n * case.k * FLOAT32.itemsize
    level = next((x for x in behind_l2 if size <= x.capacity_bytes), behind_l2[-1])
    outcome = arena.hold(level, Shape(case.m, case.n, case.k), widths)
    found = outcome.regrets[OWN]
    return {
        "case": case.label,
        "candidates": outcome.plans,
        **{name: found[name] for name in ("chosen_s", "best_s", "best", "regret")},
    }


def main(
    set_: Annotated[str, typer.Option("--set", help="workload set")] = "mlp",
    threads: Annotated[int, typer.Option(help="threads")] = 1,
    every: Annotated[int, typer.Option(help="take every n-th shape")] = 5,
    most: Annotated[float, typer.Option(help="skip shapes of more GFLOP than this")] = 0.3,
) -> None:
    """Measure regret and save it."""
    backend = default_backend()
    arena = arena_of(backend, threads)
    cases = [c for c in select("gemm", set_) if 2e-9 * c.m * c.n * c.k <= most][::every]
    results = []
    for case in cases:
        results.append(measure(arena, case, backend))
        last = results[-1]
        print(f"{last['case']:>16}  {100 * last['regret']:5.1f}%  {last['best']}", flush=True)
    regrets = [r["regret"] for r in results]
    print(f"mean {100 * sum(regrets) / len(regrets):.1f}%, worst {100 * max(regrets):.1f}%")
    document = header("regret", set_, threads, describe()) | {
        "mean": sum(regrets) / len(regrets),
        "worst": max(regrets),
        "cases": results,
    }
    save(document, results_here() / f"regret-{set_}-t{threads}.json")


if __name__ == "__main__":
    typer.run(main)
