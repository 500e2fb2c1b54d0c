"""`python -m benchmarks.models`: a whole model at many lengths, against the peers.

Every engine runs the same sentence encoder in float32 with equal threads, interleaved, on inputs
that rotate. What the first call of a shape costs is measured apart: see `first_calls`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from benchmarks import machine
from benchmarks.agreeing import run_agreeing
from benchmarks.first_calls import first_calls
from benchmarks.measure import header
from benchmarks.minilm import (
    EMBEDDING,
    Shape,
    flops,
    inputs,
    model_path,
    shapes_in_disorder,
    torch_encoder,
)
from benchmarks.results import save
from benchmarks.run import command_of, console, results_here, run_apart
from ftuner_tools.onnx_engines import ONNX_ENGINES, Array, Bind, Feeds
from ftuner_tools.timing import SUBJECT, Settings

if TYPE_CHECKING:
    from benchmarks.limits import Limits

COPIES = 4
"""Inputs that calls rotate through."""
PEERS = ("onnxruntime", "openvino", "torch-compile")

Prepare = Callable[[int], Bind]
"""From a thread count to a function that binds inputs to a call, which gives the embedding."""


def prepare_ftuner(threads: int) -> Bind:
    return ONNX_ENGINES[SUBJECT].one(model_path(), threads, EMBEDDING)


def prepare_onnxruntime(threads: int) -> Bind:
    return ONNX_ENGINES["onnxruntime"].one(model_path(), threads, EMBEDDING)


def prepare_openvino(threads: int) -> Bind:
    return ONNX_ENGINES["openvino"].one(model_path(), threads, EMBEDDING)


def prepare_torch(threads: int) -> Bind:
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
    shape: Shape, bound: Mapping[str, Bind], settings: Settings, limits: Limits
) -> dict[str, Any]:
    """Check and time one shape; the result as JSON."""
    rng = np.random.default_rng([shape.batch, shape.length])
    feeds = [inputs(shape, rng) for _ in range(COPIES)]
    calls = {name: [bind(f) for f in feeds] for name, bind in bound.items()}
    operations = flops(shape.batch, shape.length)
    found = run_agreeing(calls, "onnxruntime", operations, settings, shape.label, limits)
    return {"case": asdict(shape), "label": shape.label} | found


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
        command = command_of(
            "benchmarks.models", worker=path, threads=count, peers=peers, budget=budget
        )
        run_apart(command, count, path)
    if start:
        with tempfile.TemporaryDirectory() as folder:
            document = header("start", "minilm", 0, machine.describe())
            document["engines"] = start_here(Path(folder))
        save(document, results_here() / "start-minilm.json")
        console.print_json(json.dumps(document["engines"]))


if __name__ == "__main__":
    typer.run(main)
