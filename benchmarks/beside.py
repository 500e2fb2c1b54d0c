"""`python -m benchmarks.beside`: ftuner in a process in which another library's workers spin.

Each timed call follows a call of ONNX Runtime, whose idle workers keep spinning on the cores that
ftuner's workers want. All ways take turns: ftuner with one worker and with all, ONNX Runtime
itself, and multiply-adds that wait for nothing (`benchmarks.limits`), which show what the spinning
workers leave. Rates are medians, in GFLOP/s.
"""

import importlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks import machine
from benchmarks.limits import Limits
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner_tools.engines import OnnxRuntime
from ftuner_tools.timing import MULTIPLY_ADDS, SUBJECT, Call

KIND = "beside"
SHAPES = ((512, 1000, 1280), (64, 768, 3072), (256, 1024, 1024), (24, 1536, 1536))
"""Rows, columns and k of layers."""
ROUNDS = 300
COPIES = 4
"""Weights that take turns, so that caches do not flatter."""
ALONE = f"{SUBJECT}, 1 worker"


def _layers(threads: int, weights: Sequence[np.ndarray], x: np.ndarray) -> list[Call]:
    """Calls of ftuner with a number of threads of their own."""
    ftuner: Any = importlib.import_module("ftuner")
    out = np.empty((len(x), len(weights[0])), np.float32)

    def call(layer: Any) -> Call:
        def timed() -> object:
            ftuner.set_num_threads(threads)
            return layer(x, out=out)

        return timed

    return [call(ftuner.Dense(weight)) for weight in weights]


def _calls(m: int, n: int, k: int, threads: int) -> dict[str, list[Call]]:
    """The ways that compete, by name; the first is the one that leaves workers spinning."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((n, k), np.float32) for _ in range(COPIES)]
    x = rng.standard_normal((m, k), np.float32)
    bias = np.zeros(n, np.float32)
    other = OnnxRuntime()
    limits = Limits(threads).multiply_adds(2 * m * n * k)
    return {
        OnnxRuntime.name: [other.prepare_gemm(w, bias, threads)(x) for w in weights],
        ALONE: _layers(1, weights, x),
        SUBJECT: _layers(threads, weights, x),
        MULTIPLY_ADDS: limits * COPIES,
    }


def rates(calls: Mapping[str, Sequence[Call]], flops: int, rounds: int) -> dict[str, float]:
    """GFLOP/s of each way, in the median of the rounds; before each call ONNX Runtime runs."""
    spinning = next(iter(calls.values()))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for done in range(rounds):
        for name, own in calls.items():
            spinning[done % len(spinning)]()
            began = time.perf_counter()
            own[done % len(own)]()
            samples[name].append(time.perf_counter() - began)
    return {name: flops / statistics.median(some) / 1e9 for name, some in samples.items()}


def main(
    threads: Annotated[int, typer.Option(help="Workers; by default one a core.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of each shape.")] = ROUNDS,
) -> None:
    """Measure, print and save."""
    here = machine.describe()
    count = threads or here.cores
    cases = []
    shown = Table(title="GFLOP/s beside the spinning workers of ONNX Runtime")
    for m, n, k in SHAPES:
        found = rates(_calls(m, n, k, count), 2 * m * n * k, rounds)
        if not cases:
            for column in ("shape", *found):
                shown.add_column(column)
        shown.add_row(f"{m}x{n}x{k}", *(f"{rate:.0f}" for rate in found.values()))
        cases.append({"label": f"{m}x{n}x{k}", "gflops": found})
    console.print(shown)
    save(header(KIND, "layers", count, here) | {"cases": cases}, results_here() / f"{KIND}.json")


if __name__ == "__main__":
    typer.run(main)
