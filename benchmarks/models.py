"""`python -m benchmarks.models`: a whole model at many lengths, against the peers.

Every engine runs the same sentence encoder in float32 with equal threads, interleaved, on inputs
that rotate. What the first call of a shape costs is measured apart: see `first_calls`.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from benchmarks import machine
from benchmarks.engines import SUBJECT
from benchmarks.first_calls import first_calls
from benchmarks.measure import fractions, header
from benchmarks.minilm import (
    EMBEDDING,
    Feeds,
    Shape,
    flops,
    inputs,
    model_path,
    shapes_in_disorder,
    torch_encoder,
)
from benchmarks.results import compare, load, save
from benchmarks.run import console, environment, results_here, table
from benchmarks.timing import MULTIPLY_ADDS, Call, Settings, measure

if TYPE_CHECKING:
    from benchmarks.limits import Limits

Array = npt.NDArray[Any]
COPIES = 4
"""Inputs that calls rotate through."""
RTOL, ATOL = 1e-3, 1e-4
"""What outputs may differ by from ONNX Runtime's."""
PEERS = ("onnxruntime", "openvino", "torch-compile")

Prepare = Callable[[int], Callable[[Feeds], Callable[[], Array]]]
"""From a thread count to a function that binds inputs to a call, which gives the embedding."""


def prepare_ftuner(threads: int) -> Callable[[Feeds], Callable[[], Array]]:
    ftuner = importlib.import_module("ftuner")
    model = ftuner.load(model_path(), threads=threads)
    at = [output.name for output in model.outputs].index(EMBEDDING)

    def bind(feeds: Feeds) -> Callable[[], Array]:
        return lambda: model.run(feeds)[at]  # type: ignore[no-any-return]

    return bind


def prepare_onnxruntime(threads: int) -> Callable[[Feeds], Callable[[], Array]]:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(model_path()), options, providers=["CPUExecutionProvider"])
    at = [output.name for output in session.get_outputs()].index(EMBEDDING)

    def bind(feeds: Feeds) -> Callable[[], Array]:
        return lambda: session.run(None, feeds)[at]  # type: ignore[no-any-return]

    return bind


def prepare_openvino(threads: int) -> Callable[[Feeds], Callable[[], Array]]:
    openvino = importlib.import_module("openvino")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = openvino.Core().compile_model(str(model_path()), "CPU", settings)
    request = compiled.create_infer_request()

    def bind(feeds: Feeds) -> Callable[[], Array]:
        def call() -> Array:
            for name, array in feeds.items():
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
            request.infer()
            return np.array(request.get_output_tensor(3).data)

        return call

    return bind


def prepare_torch(threads: int) -> Callable[[Feeds], Callable[[], Array]]:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    encoder = torch.compile(torch_encoder(model_path()), dynamic=True)

    def bind(feeds: Feeds) -> Callable[[], Array]:
        tensors = [torch.from_numpy(feeds[name]) for name in ("input_ids", "attention_mask")]

        def call() -> Array:
            with torch.inference_mode():
                return encoder(*tensors).numpy()  # type: ignore[no-any-return]

        return call

    return bind


ENGINES: Mapping[str, Prepare] = {
    SUBJECT: prepare_ftuner,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "torch-compile": prepare_torch,
}


def run_shape(
    shape: Shape, bound: Mapping[str, Callable[[Feeds], Callable[[], Array]]],
    settings: Settings, limits: Limits,
) -> dict[str, Any]:  # fmt: skip
    """Check and time one shape; the result as JSON."""
    rng = np.random.default_rng([shape.batch, shape.length])
    feeds = [inputs(shape, rng) for _ in range(COPIES)]
    calls: dict[str, Sequence[Call]] = {n: [bind(f) for f in feeds] for n, bind in bound.items()}
    wanted = calls["onnxruntime"][0]()
    engines: dict[str, dict[str, Any]] = {}
    right: dict[str, Sequence[Call]] = {}
    for name, own in calls.items():
        difference = np.abs(np.asarray(own[0]()) - np.asarray(wanted))
        if np.all(difference <= ATOL + RTOL * np.abs(np.asarray(wanted))):
            right[name] = own
        else:
            engines[name] = {"refused": f"differs by {difference.max():.2g}"}
    operations = flops(shape.batch, shape.length)
    right[MULTIPLY_ADDS] = limits.multiply_adds(operations)
    timings = measure(right, settings, random.Random(shape.label))
    peak = timings.pop(MULTIPLY_ADDS)
    for name, timing in timings.items():
        engines[name] = timing.to_json(timings.get(SUBJECT)) | fractions("peak", timing, peak)
    result = {"case": asdict(shape), "label": shape.label, "flops": operations, "engines": engines}
    result["limits"] = {MULTIPLY_ADDS: peak.to_json()}
    return result | compare(engines, SUBJECT)


def run_here(threads: int, names: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Measure all shapes in this process, and before that their first calls in others; the
    document."""
    firsts = first_calls(threads)
    bound = {name: ENGINES[name](threads) for name in names}
    # Imported by name: it needs the internals of the present ftuner, which other users of this
    # module may not have.
    limits = importlib.import_module("benchmarks.limits").Limits(threads)
    results = []
    for shape in shapes_in_disorder(0):
        result = run_shape(shape, bound, settings, limits)
        results.append(result | asdict(firsts[shape.label]))
        ratio = results[-1]["ratio"]
        console.print(f"{shape.label:>8}  {ratio:.3f}  {results[-1]['best_peer']}")
    results.sort(key=lambda r: (r["case"]["batch"], r["case"]["length"]))
    return header("model", "minilm", threads, machine.describe()) | {
        "engines": list(names),
        "unavailable": [],
        "settings": asdict(settings),
        "cases": results,
    }


_START = """
import resource, sys, time
import numpy as np
began = time.perf_counter()
if sys.argv[1] == "ftuner":
    import ftuner
    model = ftuner.load(sys.argv[2])
    run = model.run
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
    run = lambda feeds: session.run(None, feeds)
loaded = time.perf_counter() - began
ones = np.ones((1, 128), np.int64)
run({"input_ids": ones, "attention_mask": ones})
with open("/proc/self/status") as status:
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
print(loaded, resident * 1024)
"""


def start_here(folder: Path) -> dict[str, Any]:
    """Seconds to import and load, and bytes resident after one run, in processes of their own.
    `folder`: an empty one for ftuner's cache."""

    def start(engine: str) -> dict[str, float]:
        command = [sys.executable, "-c", _START, engine, str(model_path())]
        environment_ = {**os.environ, "FTUNER_CACHE_DIR": str(folder)}
        done = subprocess.run(command, env=environment_, capture_output=True, text=True, check=True)
        seconds, resident = map(float, done.stdout.split())
        return {"load_s": seconds, "resident_bytes": resident}

    return {
        "ftuner, empty cache": start("ftuner"),
        "ftuner": min((start("ftuner") for _ in range(3)), key=lambda r: r["load_s"]),
        "onnxruntime": min((start("onnxruntime") for _ in range(3)), key=lambda r: r["load_s"]),
    }


def main(
    threads: Annotated[str, typer.Option(help="Thread counts; a process each.")] = "1,2",
    peers: Annotated[str, typer.Option(help="Peers, by name.")] = ",".join(PEERS),
    budget: Annotated[float, typer.Option(help="Seconds for each shape and engine.")] = 0.4,
    start: Annotated[bool, typer.Option(help="Measure loading and memory too.")] = True,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure the encoder and save the results as JSON."""
    names = (SUBJECT, *(name for name in peers.split(",") if name))
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"unknown peers {unknown}; one of {', '.join(ENGINES)}")
    if worker:
        save(run_here(int(threads), names, Settings(budget_s_per_engine=budget)), Path(worker))
        return
    for count in (int(part) for part in threads.split(",")):
        path = results_here() / f"model-minilm-t{count}.json"
        command = [sys.executable, "-m", "benchmarks.models", "--worker", str(path), "--threads",
                   str(count), "--peers", peers, "--budget", str(budget)]  # fmt: skip
        root = Path(__file__).parent.parent
        subprocess.run(command, env=environment(count), cwd=root, check=True)
        console.print(table(load(path)))
    if start:
        with tempfile.TemporaryDirectory() as folder:
            document = header("start", "minilm", 0, machine.describe())
            document["engines"] = start_here(Path(folder))
        save(document, results_here() / "start-minilm.json")
        console.print_json(json.dumps(document["engines"]))


if __name__ == "__main__":
    typer.run(main)
