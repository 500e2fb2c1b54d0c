"""`python -m benchmarks.overhead`: what ftuner costs besides multiplying.

Tuning from an empty cache, a warm start in a fresh process, planning a shape never seen before, and
the part of a call that is not its kernel. Absolute times, because there is no peer to divide by;
each is the least of many (planning: the least of several medians).
"""

import ctypes
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice

import numpy as np

import ftuner
from benchmarks.machine import describe
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import results_here
from ftuner.runtime.cpu.arrays import DATA_WORD
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.plan_records import Strides

PAUSE_S = 0.3
"""Between two tries of what takes some milliseconds: neighbours come and go."""
TUNE = "import ftuner; print(ftuner.tune({!r}).seconds)"
START = """
import time; began = time.perf_counter()
import ftuner; imported = time.perf_counter()
import numpy as np
a = np.ones((64, 64), np.float32); ftuner.matmul(a, a)
print(imported - began, time.perf_counter() - began)
"""


def _run(code: str, folder: str) -> list[float]:
    environment = {**os.environ, "FTUNER_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def tuning(dtype: str, tries: int = 3) -> float:
    """Seconds from an empty cache to ready, probe included."""
    found = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            found += _run(TUNE.format(dtype), folder)
    return min(found)


def warm_start(tries: int = 5) -> tuple[float, float]:
    """Seconds to import, and to import, load the library and multiply for the first time."""
    with tempfile.TemporaryDirectory() as folder:
        _run(START, folder)
        runs = [_run(START, folder) for _ in range(tries)]
    return min(r[0] for r in runs), min(r[1] for r in runs)


def planning(layer: Dense, shapes: int = 400, tries: int = 8) -> dict[str, float]:
    """Median seconds to plan a number of rows never seen before, and to write the plan down: of the
    try, each with rows of its own, in which that took least."""
    rows = iter(random.Random(0).sample(range(1, 4096), shapes * tries))
    k, n = layer.in_features, layer.out_features
    strides = Strides(4 * k, 4, 0, 0, 4 * n, (), (0,), False)
    found = []
    for _ in range(tries):
        plans, writes = [], []
        for m in islice(rows, shapes):
            problem = layer.problem(m)
            began = time.perf_counter()
            plan = layer.products.planner.plan(problem)
            planned = time.perf_counter()
            layer.products.encode(plan, strides)
            writes.append(time.perf_counter() - planned)
            plans.append(planned - began)
        found.append((statistics.median(plans), statistics.median(writes)))
        time.sleep(PAUSE_S)
    plan_s, write_s = min(found)
    return {"plan_s": plan_s, "write_s": write_s}


def call(threads: int, repeats: int = 60, calls: int = 300) -> dict[str, float]:
    """Seconds of a layer's call (512 x 512, one row) and of its native part, entered directly."""
    ftuner.set_num_threads(threads)
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((512, 512), dtype=np.float32)
    layer = ftuner.Dense(weight, generator.standard_normal(512, dtype=np.float32))
    x = generator.standard_normal((1, 512), dtype=np.float32)
    y = layer(x)
    products = layer.products
    strides = Strides(2048, 4, 0, 0, 2048, (), (0,), False)
    encoded = products.ready(layer.problem(1), strides).encoded
    pool = products.kernels.runtime.pool
    arguments = (
        encoded.address,
        pool.address if encoded.workers > 1 else None,
        None,
        *(id(array) + DATA_WORD for array in (x, layer.panels.packed, y)),
        layer.bias_words.address,
    )
    entry = products.kernels.runtime.entries[products.compiled.library.types.a]
    # What ctypes takes to pass as many arguments to a function that does next to nothing.
    nothing = type(entry)(ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value)
    best = {"call_s": 1.0, "native_s": 1.0, "ctypes_s": 1.0}
    for _ in range(repeats):
        for name, run in (
            ("call_s", lambda: layer(x)),
            ("native_s", lambda: entry(*arguments)),
            ("ctypes_s", lambda: nothing(*arguments)),
        ):
            began = time.perf_counter()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.perf_counter() - began) / calls)
    best["overhead_s"] = best["call_s"] - best["native_s"] + best["ctypes_s"]
    return best


def main() -> None:
    """Measure, print and save."""
    document = header("overhead", "all", 2, describe())
    document["tune_s"] = {dtype: tuning(dtype) for dtype in ("float32", "float64")}
    imported, first = warm_start()
    document["warm_start"] = {"import_s": imported, "first_product_s": first}
    generator = np.random.default_rng(0)
    layer = ftuner.Dense(
        generator.standard_normal((768, 768), dtype=np.float32), np.zeros(768, "f4")
    )
    document["planning"] = planning(layer)
    document["call"] = {threads: call(threads) for threads in (1, 2)}
    save(document, results_here() / "overhead.json")
    for name, value in document.items():
        if name not in ("machine", "versions"):
            print(name, value)


if __name__ == "__main__":
    main()
