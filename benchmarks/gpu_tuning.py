"""What it takes to be ready on a GPU, and to launch: probing, tuning from an empty cache, planning
of shapes that were not seen before, and calls."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_bench import TORCH_TYPES, Attempt, Bench
from ftuner.core.gpu.tile import Multiply
from ftuner.hardware.recorded import to_document
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import ProductPlanner
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.dense import Dense
from ftuner.runtime.gpu.kernels import target_of
from ftuner.runtime.gpu.matmul import Matmul
from ftuner.ukernels.gpu.library import build_gpu_library

LAYER = (4096, 4096)
"""(n, k) of the layer that is prepared for."""
PLANNED_ROWS = range(1, 8192, 17)
SMALL = 256
"""Extents of a product whose kernel is over before it can be launched again."""


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tuning(bench: Bench) -> Iterator[Attempt]:
    """Every figure once; nothing is compared."""
    backend = bench.backend
    multiply: Multiply = "float16" if bench.dry else "bfloat16"
    n, k = (32, 48) if bench.dry else LAYER
    weight = torch.randn((n, k), device=backend.device).to(TORCH_TYPES[multiply])
    dtype = matrix_dtype(weight, "weight")
    began = time.perf_counter()
    library = build_gpu_library.__wrapped__(backend.hardware, dtype, multiply)
    library_s = time.perf_counter() - began
    kernels = len(library.kernels("k", "k"))

    def compiled(on: GpuBackend) -> dict[str, Any]:
        return {"seconds": _seconds(lambda: on.products.ready(weight.mT)), "kernels": kernels}

    def calls() -> dict[str, Any]:
        with torch.inference_mode():
            return _calls(bench, multiply)

    yield Attempt(
        "library",
        lambda: {
            "seconds": library_s, "tiles": len(library.tiles), "pairs": len(library.pairs),
            "hardware": to_document(backend.hardware),
        },
    )  # fmt: skip
    yield Attempt("compile, empty cache", lambda: compiled(backend))
    target = None if bench.dry else target_of(backend.device)
    again = GpuBackend(backend.device, backend.hardware, target)
    yield Attempt("compile, warm cache", lambda: compiled(again))
    yield Attempt("plan", lambda: _planning(ProductPlanner(library), n, k))
    yield Attempt("call", calls)


def _planning(planner: ProductPlanner, n: int, k: int) -> dict[str, Any]:
    first_s = _seconds(lambda: planner.plan(ProductProblem(33, n, k)))
    samples = sorted(
        _seconds(lambda m=m: planner.plan(ProductProblem(m, n, k))) for m in PLANNED_ROWS
    )
    return {
        "first_of_layer_s": first_s,
        "median_s": samples[len(samples) // 2],
        "p99_s": samples[len(samples) * 99 // 100],
        "mean_s": sum(samples) / len(samples),
    }


def _calls(bench: Bench, multiply: Multiply) -> dict[str, Any]:
    """What launching a small product takes, through each entry."""
    size = 16 if bench.dry else SMALL
    (x,), (w,), (y,) = (bench.copies(1, (size, size), multiply) for _ in range(3))
    matmul = Matmul(bench.backend.products)
    layer = Dense(w, session=bench.backend)
    calls: dict[str, Callable[[], object]] = {
        "matmul": lambda: matmul(x, w.mT, out=y),
        "Dense": lambda: layer(x, out=y),
        "torch linear": lambda: torch.nn.functional.linear(x, w),
    }
    found = bench.compare({name: [call] for name, call in calls.items()})
    return {"engines": found["engines"]}
