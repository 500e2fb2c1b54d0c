"""Timing of `ftuner bench`: `python -m ftuner.cli.measure REQUEST` prints one JSON document.

It runs in a child process (`cli/child.py`). Engines are timed in interleaved rounds, in an order
that rotates, so that other load on the machine affects all of them equally. The least time of each
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np
from rich.console import Console
from rich.progress import track

from ftuner.cli.child import answer
from ftuner.cli.peers import ENGINES, SUBJECT, Array, Operands, version_of

ROUNDS = 9
BURST_S = 3e-3
"""Duration of a burst of calls; its mean is one sample."""
SETTLE_S = 0.06
"""Sleep between engines on several threads, whose idle workers spin for up to 50 ms after a call
(ONNX Runtime 1.31 on two cores)."""
UNIT_ROUNDOFF = 2.0**-24

Samples = dict[str, list[float]]
"""For each engine, the mean seconds of a call in each burst."""


class Case(TypedDict):
    """One product: `kind` is `gemm` (b constant) or `bmm`."""

    kind: str
    batch: int
    m: int
    n: int
    k: int


class Request(TypedDict):
    """What to measure, all in one process."""

    cases: list[Case]
    engines: list[str]
    threads: int


def operands_of(case: Case, seed: int = 0) -> Operands:
    """Random operands, the same for every engine."""
    rng = np.random.default_rng(seed)
    constant = case["kind"] == "gemm"
    batch: tuple[int, ...] = () if constant else (case["batch"],)
    right = (case["n"], case["k"]) if constant else (*batch, case["k"], case["n"])
    a = rng.standard_normal((*batch, case["m"], case["k"]), dtype=np.float32)
    return Operands(a, rng.standard_normal(right, dtype=np.float32), constant)


def is_right(out: Array, operands: Operands) -> bool:
    """Whether the error of each element is at most `(k + 1) u |a||b|`, which holds for any order of
    summation (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1)."""
    a, b = operands.a.astype(np.float64), operands.right().astype(np.float64)
    bound = (a.shape[-1] + 1) * UNIT_ROUNDOFF * (np.abs(a) @ np.abs(b))
    return bool((np.abs(out - a @ b) <= bound).all())


def time_calls(calls: Mapping[str, Callable[[], object]], settle_s: float) -> Samples:
    """Seconds of one call of each engine, in interleaved rounds."""
    bursts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        bursts[name] = max(1, round(BURST_S / max(time.perf_counter() - began, 1e-9)))
    samples: Samples = {name: [] for name in calls}
    order = list(calls)
    for index in range(ROUNDS):
        shift = index % len(order)
        for name in order[shift:] + order[:shift]:
            call = calls[name]
            time.sleep(settle_s)
            call()
            began = time.perf_counter()
            for _ in range(bursts[name]):
                call()
            samples[name].append((time.perf_counter() - began) / bursts[name])
    return samples


def measure(request: Request) -> dict[str, Any]:
    """Check and time all cases. An engine whose output is wrong is listed and not timed."""
    results = []
    threads = request["threads"]
    progress = Console(stderr=True)
    for case in track(request["cases"], "measuring", console=progress, transient=True):
        operands = operands_of(case)
        prepared = {name: ENGINES[name].prepare(operands, threads) for name in request["engines"]}
        calls = {name: call for name, call in prepared.items() if is_right(call(), operands)}
        samples = time_calls(calls, SETTLE_S if threads > 1 else 0.0)
        seconds = {name: min(found) for name, found in samples.items()}
        own = seconds.get(SUBJECT)
        results.append(
            {
                "case": case,
                "seconds": seconds,
                "ratios": {n: s / own for n, s in seconds.items() if own and n != SUBJECT},
                "wrong": [name for name in prepared if name not in calls],
            }
        )
    versions = {name: version_of(name) for name in request["engines"]}
    return {"threads": threads, "versions": versions, "results": results}


if __name__ == "__main__":
    answer(measure)
