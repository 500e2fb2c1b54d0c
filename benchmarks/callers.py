"""`python -m benchmarks.callers`: throughput of several callers of one model, against one caller.

Each caller is a thread of this process whose calls use one thread each. One caller and N callers
take turns, window by window, so that what the machine's neighbours do falls on both. The share is
the calls a second of N callers over N times those of one: 1 is perfect scaling. ONNX Runtime is
measured in the same rounds.
"""

import importlib
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks import machine
from benchmarks.measure import header
from benchmarks.minilm import Shape, inputs
from benchmarks.models import COPIES, prepare_ftuner, prepare_onnxruntime
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner_tools.timing import SUBJECT, Call

WINDOW_S = 0.2
ROUNDS = 15
LENGTHS = (1, 16, 77, 256)
DENSE = ((1, 768, 768), (16, 768, 768), (128, 768, 3072))
"""Rows, columns and k of layers."""


@dataclass(frozen=True)
class Scaling:
    """Calls a second of one caller, of all callers together, and the share of perfect scaling."""

    label: str
    engine: str
    callers: int
    alone_per_s: float
    together_per_s: float
    share: float
    """Median over the rounds of the share within a round."""


def window(bodies: Sequence[Sequence[Call]], seconds: float = WINDOW_S) -> float:
    """Calls a second of one thread for each body, which repeats its calls."""
    counts = [0] * len(bodies)
    barrier = threading.Barrier(len(bodies) + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        calls, done = bodies[number], 0
        barrier.wait()
        while not stop.is_set():
            calls[done % len(calls)]()
            done += 1
        counts[number] = done

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def scaling(label: str, engine: str, bodies: Sequence[Sequence[Call]], rounds: int) -> Scaling:
    """One caller against all, in alternating windows."""
    for body in bodies:
        for call in body:
            call()
    alone, together = [], []
    for _ in range(rounds):
        alone.append(window(bodies[:1]))
        together.append(window(bodies))
    shares = [t / (len(bodies) * a) for a, t in zip(alone, together, strict=True)]
    return Scaling(
        label, engine, len(bodies), statistics.median(alone), statistics.median(together),
        statistics.median(shares),
    )  # fmt: skip


def _model_bodies(
    bind: Callable[[Any], Call], length: int, callers: int
) -> Sequence[Sequence[Call]]:
    rng = np.random.default_rng(length)
    return [[bind(inputs(Shape(1, length), rng)) for _ in range(COPIES)] for _ in range(callers)]


def _dense_bodies(m: int, n: int, k: int, callers: int) -> Sequence[Sequence[Call]]:
    """Calls of one layer."""
    ftuner: Any = importlib.import_module("ftuner")
    ftuner.set_num_threads(1)
    rng = np.random.default_rng(0)
    layer = ftuner.Dense(rng.standard_normal((n, k), dtype=np.float32))

    def call() -> Call:
        x = rng.standard_normal((m, k), dtype=np.float32)
        out = np.empty((m, n), np.float32)
        return lambda: layer(x, out=out)

    return [[call()] for _ in range(callers)]


def main(
    callers: Annotated[int, typer.Option(help="Callers; by default one a core.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of two windows each.")] = ROUNDS,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Measure, print and save."""
    here = machine.describe()
    count = callers or here.cores
    found: list[Scaling] = []
    prepared = {SUBJECT: prepare_ftuner(1), "onnxruntime": prepare_onnxruntime(1)}
    for length in LENGTHS:
        for name, bind in prepared.items():
            bodies = _model_bodies(bind, length, count)
            found.append(scaling(f"encoder 1x{length}", name, bodies, rounds))
    for m, n, k in DENSE:
        found.append(scaling(f"Dense {m}x{n}x{k}", SUBJECT, _dense_bodies(m, n, k, count), rounds))
    table = Table(title=f"{count} callers of one thread each")
    for column in ("case", "engine", "one caller, calls/s", "together, calls/s", "share"):
        table.add_column(column, justify="left" if column in ("case", "engine") else "right")
    for s in found:
        table.add_row(
            s.label, s.engine, f"{s.alone_per_s:.0f}", f"{s.together_per_s:.0f}", f"{s.share:.3f}"
        )
    console.print(table)
    document = header("callers", "minilm", 1, here) | {"cases": [asdict(s) for s in found]}
    save(document, out or results_here() / "callers.json")


if __name__ == "__main__":
    typer.run(main)
