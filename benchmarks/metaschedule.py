"""`python -m benchmarks.metaschedule`: what tuning one static shape costs with TVM's MetaSchedule.

ftuner tunes once for all shapes; MetaSchedule searches, measuring, for each. Runs in a virtual
environment of its own: `pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post0 xgboost
cloudpickle psutil tornado` and ftuner. Kernels are compared in one process, interleaved.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine
from benchmarks.cases import Gemm, rotation_copies
from benchmarks.measure import GemmGroup, header, run_case
from benchmarks.overhead import tuning
from benchmarks.results import save
from benchmarks.run import command_of, environment, results_here
from ftuner_tools.engines import Array, Call, Engine, FTuner, Layer, NumPy, Product, output
from ftuner_tools.timing import Settings

DEFAULT_SHAPES = "128x768x768"
TVM_THREADS = "TVM_NUM_THREADS"
MEASURING = "FTUNER_BENCHMARK_MEASURING"
"""Set in the process that measures, whose thread pools the environment has sized."""


def dense_module(tvm: Any, case: Gemm) -> Any:
    """`y[m, n] = x[m, k] @ w[n, k].T + b[n]` of one static shape as a TensorIR module."""
    te = importlib.import_module("tvm.te")
    x = te.placeholder((case.m, case.k), "float32", name="x")
    w = te.placeholder((case.n, case.k), "float32", name="w")
    b = te.placeholder((case.n,), "float32", name="b")
    k = te.reduce_axis((0, case.k), name="k")
    product = te.compute(
        (case.m, case.n), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="product"
    )
    y = te.compute((case.m, case.n), lambda i, j: product[i, j] + b[j], name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, w, b, y])})


def build_candidate(module: Any, target: Any, _params: Any) -> Any:
    """MetaSchedule's default build step less its import of every tensor intrinsic.

    A CPU kernel without matrix instructions needs none of them, and parsing them takes a fresh
    builder process about as long as its default time limit of 30 s (TVM 0.27).
    """
    transform: Any = importlib.import_module("tvm.s_tir.transform")
    driver: Any = importlib.import_module("tvm.driver")
    skip_layouts = transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)
    return driver.build(skip_layouts(module), target=target)


class MetaSchedule(Engine):
    """The best kernel that the search found for one shape."""

    name = "metaschedule"
    modules = ("tvm",)

    def __init__(self, case: Gemm, threads: int, trials: int, seed: int) -> None:
        self._tvm: Any = importlib.import_module("tvm")
        search: Any = importlib.import_module("tvm.s_tir.meta_schedule")
        # The search imports these when it first needs them: most of a minute that is no tuning.
        importlib.import_module("tvm.s_tir.tensor_intrin")
        cpu = importlib.import_module("tvm.target.codegen").llvm_get_system_cpu()
        target = self._tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
        module = dense_module(self._tvm, case)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            database = search.tune_tir(
                module,
                target,
                folder,
                max_trials_global=trials,
                num_trials_per_iter=min(trials, 64),
                num_tuning_cores=os.cpu_count() or 1,
                builder=search.builder.LocalBuilder(f_build=build_candidate),
                seed=seed,
            )
            schedule = search.tir_integration.compile_tir(database, module, target)
            if schedule is None:
                raise RuntimeError(f"no valid schedule in {trials} trials for {case.label}")
            self._main = self._tvm.compile(schedule.mod, target=target)["main"]
            self.tuning_s = time.perf_counter() - start
        self.target = str(target)

    def prepare_gemm(self, weight: Array, bias: Array, threads: int) -> Layer:
        # TVM's tensors are aligned as its kernels want them; so these copy, NumPy's view does not.
        tensor, main = self._tvm.runtime.tensor, self._main
        w, b = tensor(weight), tensor(bias)

        def bind(x: Array) -> Call:
            left, right = tensor(x), tensor(output(x.shape[0], weight.shape[0]))
            result: Array = np.asarray(np.from_dlpack(right), dtype=np.float32)

            def call() -> Array:
                main(left, w, b, right)
                return result

            return call

        return bind

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        raise NotImplementedError("only dense layers are searched for")


def ftuner_tuning_s() -> float | None:
    """Seconds of ftuner's tuning from an empty cache, which serves every shape; None without
    ftuner."""
    if not FTuner().available():
        return None
    return tuning("float32")


def measure_shape(case: Gemm, threads: int, trials: int, seed: int) -> dict[str, Any]:
    """Search for one shape, then time its best kernel beside NumPy's and ftuner's."""
    here = machine.describe()
    searched = MetaSchedule(case, threads, trials, seed)
    engines: Sequence[Engine] = [
        searched, *(engine for engine in (NumPy(), FTuner()) if engine.available())
    ]  # fmt: skip
    copies = rotation_copies(case.rotated_bytes, here.l2_bytes)
    operands, calls = GemmGroup(case, engines, threads, copies, seed).bind(case)
    result = run_case(case, operands, calls, Settings(), seed)
    return result | {
        "copies": copies,
        "operands_level": here.level_holding(copies * case.rotated_bytes),
        "tuning_s": searched.tuning_s,
        "target": searched.target,
    }


def main(
    shapes: Annotated[str, typer.Option(help="MxNxK, separated by commas.")] = DEFAULT_SHAPES,
    threads: Annotated[int, typer.Option(help="Threads of the kernels.")] = 1,
    trials: Annotated[int, typer.Option(help="Candidates measured for each shape.")] = 64,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
) -> None:
    """Tune dense float32 layers, shape by shape, and save seconds and ratios."""
    if MEASURING not in os.environ:
        variables = environment(threads) | {TVM_THREADS: str(threads), MEASURING: "1"}
        command = command_of("benchmarks.metaschedule", *sys.argv[1:])
        raise typer.Exit(subprocess.run(command, env=variables, check=False).returncode)
    cases = [
        Gemm("metaschedule", *(int(extent) for extent in shape.split("x")))
        for shape in shapes.split(",")
    ]
    results = [measure_shape(case, threads, trials, seed) for case in cases]
    document = header("metaschedule", "dense", threads, machine.describe()) | {
        "settings": asdict(Settings()) | {"seed": seed, "trials": trials},
        "ftuner_tuning_s": ftuner_tuning_s(),
        "cases": results,
    }
    save(document, out or results_here() / f"metaschedule-t{threads}.json")
    for result in results:
        kernel = result["engines"]["metaschedule"].get("min_s")
        others = {n: e["min_s"] for n, e in result["engines"].items() if "min_s" in e}
        ratios = {n: round(kernel / s, 2) for n, s in others.items() if kernel}
        print(f"{result['label']}: searched for {result['tuning_s']:.1f} s; its time / {ratios}")


if __name__ == "__main__":
    typer.run(main)
