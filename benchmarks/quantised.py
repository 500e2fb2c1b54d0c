"""`python -m benchmarks.quantised`: models whose files ONNX Runtime's tools have quantised or
rounded to float16, against ONNX Runtime and OpenVINO on the same file, and our own float32.

The engines take turns (`ftuner_tools.timing`), with equal threads and inputs that rotate. Each form
of each model has a process of its own for each thread count.
"""

import importlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnxruntime import quantization

from benchmarks import machine
from benchmarks.measure import header
from benchmarks.recurrent import Layer
from benchmarks.results import compared, save
from benchmarks.run import CrashedError, command_of, console, result_apart, results_here
from benchmarks.unseen import STREAMS, Feeds, Shape
from benchmarks.vision.writing import Size
from benchmarks.vision.zoo import NETWORKS, Picture
from ftuner_tools.onnx_engines import ONNX_ENGINES, Bind
from ftuner_tools.timing import SUBJECT, Settings, geomean, measure

KIND = "quantised"
FLOAT32 = f"{SUBJECT}, float32"
"""ftuner on the file that was quantised."""
PEERS = ("onnxruntime", "openvino")
LIMIT_S = 1800.0
"""Of the process of one form of a model."""
LOSS = 0.3
"""How far results may be from those of ONNX Runtime, over the norm of them all. Networks of random
weights amplify what is rounded in another order: by ONNX Runtime without its optimisations a text
detector differs by 0.1."""
COPIES = 3
"""Inputs that calls take in turns."""


@dataclass(frozen=True)
class Case:
    """A model, and the shapes that it is measured at."""

    write: Callable[[Path], Path]
    feeds: Callable[[Shape, np.random.Generator], Feeds]
    shapes: tuple[Shape, ...]
    forms: tuple[str, ...] = ("dynamic", "qdq", "qoperator", "float16")


def _network(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        onnx.save(NETWORKS[name].write(Size()), folder / "model.onnx")
        return folder / "model.onnx"

    return write


def _pixels(shape: Shape, rng: np.random.Generator) -> Feeds:
    return Picture(*shape).feeds(rng)


LSTM = Layer("LSTM", 256, 256, 1)


def _recurrent(folder: Path) -> Path:
    onnx.save(LSTM.model(LSTM.parameters(np.random.default_rng(0))), folder / "model.onnx")
    return folder / "model.onnx"


def _sequences(shape: Shape, rng: np.random.Generator) -> Feeds:
    return {"X": rng.standard_normal((*shape, LSTM.width), np.float32)}


TEXTS = ((1, 16), (1, 77), (1, 256), (8, 64))
SQUARES = ((1, 96, 96), (1, 160, 160), (1, 224, 224))
STATIC = ("qdq", "qoperator", "float16")
CASES: Mapping[str, Case] = {
    **{
        name: Case(STREAMS[name].write, STREAMS[name].feeds, TEXTS)
        for name in ("minilm", "bert-base")
    },
    **{
        name: Case(_network(name), _pixels, SQUARES, STATIC)
        for name in ("resnet50", "mobilenet-v2")
    },
    "ppocr-det": Case(_network("ppocr-det"), _pixels, ((1, 320, 320), (1, 640, 640))),
    "ppocr-rec": Case(_network("ppocr-rec"), _pixels, ((1, 48, 160), (1, 48, 320), (6, 48, 320))),
    "lstm": Case(_recurrent, _sequences, ((8, 1), (77, 1), (77, 4)), ("dynamic",)),
}


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Iterator[Feeds]) -> None:
        self._samples = samples

    def get_next(self) -> Feeds | None:
        return next(self._samples, None)


def _dynamic(source: Path, target: Path, samples: Iterator[Feeds]) -> None:
    quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8)


def _static(form: quantization.QuantFormat) -> Callable[[Path, Path, Iterator[Feeds]], None]:
    def make(source: Path, target: Path, samples: Iterator[Feeds]) -> None:
        quantization.quantize_static(source, target, _Samples(samples), quant_format=form)

    return make


def _half(source: Path, target: Path, samples: Iterator[Feeds]) -> None:
    float16 = importlib.import_module("onnxruntime.transformers.float16")
    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


FORMS: Mapping[str, Callable[[Path, Path, Iterator[Feeds]], None]] = {
    "dynamic": _dynamic,
    "qdq": _static(quantization.QuantFormat.QDQ),
    "qoperator": _static(quantization.QuantFormat.QOperator),
    "float16": _half,
}


def measured(
    case: Case, form: str, threads: int, settings: Settings, peers: Sequence[str] = PEERS
) -> dict[str, Any]:
    """The times of a form of a model, as JSON, at each shape; and which engines refuse it."""
    refused: dict[str, str] = {}
    bound: dict[str, Bind] = {}
    with tempfile.TemporaryDirectory() as place:
        source, target = case.write(Path(place)), Path(place) / f"{form}.onnx"
        samples = (case.feeds(shape, np.random.default_rng(9)) for shape in case.shapes)
        FORMS[form](source, target, samples)
        for name in (SUBJECT, *peers, FLOAT32):
            engine = ONNX_ENGINES[SUBJECT if name == FLOAT32 else name]
            try:
                bound[name] = engine.one(source if name == FLOAT32 else target, threads)
            except Exception as error:  # Engines raise whatever they meet.
                refused[name] = f"{type(error).__name__}: {error}"[:300]
        found = [_at(case, shape, bound, settings) for shape in case.shapes]
    return {"refused": refused, "cases": found}


def _at(case: Case, shape: Shape, bound: Mapping[str, Bind], settings: Settings) -> dict[str, Any]:
    """The times at one shape."""
    inputs = [case.feeds(shape, np.random.default_rng(copy)) for copy in range(COPIES)]
    engines: dict[str, Any] = {}
    results = {}
    for name, bind in bound.items():
        try:
            results[name] = np.asarray(bind(inputs[0])(), np.float64)
        except Exception as error:
            engines[name] = {"refused": f"{type(error).__name__}: {error}"[:300]}
    wanted = results.get("onnxruntime", results[SUBJECT])
    calls: dict[str, list[Callable[[], object]]] = {}
    for name, found in results.items():
        loss = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        # Float32 is another result.
        if name != FLOAT32 and not loss <= LOSS:
            engines[name] = {"refused": f"wrong output: {loss:.2g}"}
            continue
        calls[name] = [bound[name](feeds) for feeds in inputs]
    timings = measure(calls, settings, random.Random(0))
    engines |= {name: timing.to_json(timings.get(SUBJECT)) for name, timing in timings.items()}
    own = {FLOAT32: engines.pop(FLOAT32)}
    times = compared(engines, SUBJECT)
    return {"label": "x".join(map(str, shape)), **times, "engines": times["engines"] | own}


def main(
    only: Annotated[str, typer.Option(help="Models to keep, by name.")] = ",".join(CASES),
    forms: Annotated[str, typer.Option(help=f"Among {', '.join(FORMS)}.")] = ",".join(FORMS),
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    budget: Annotated[float, typer.Option(help="Seconds for each shape and engine.")] = 0.2,
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    peers: Annotated[str, typer.Option(help="Peers, by name.")] = ",".join(PEERS),
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure, print and save the results as JSON."""
    names, wanted = only.split(","), forms.split(",")
    unknown = {*names} - {*CASES} | {*wanted} - {*FORMS}
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}")
    settings = Settings(budget_s_per_engine=budget)
    if worker:
        print(json.dumps(measured(CASES[worker], forms, int(threads), settings, peers.split(","))))
        return
    for count in map(int, threads.split(",")):
        for form in wanted:
            path = (results or results_here()).resolve() / f"{KIND}-{form}-t{count}.json"
            document = header(KIND, form, count, machine.describe())
            document |= {"settings": asdict(settings), "results": []}
            for name in names:
                if form in CASES[name].forms:
                    found = {"label": name} | _apart(name, form, count, budget, peers)
                    document["results"].append(found)
                    save(document, path)
                    _show(found, form, count)


def _apart(name: str, form: str, threads: int, budget: float, peers: str) -> dict[str, Any]:
    """The result of one form of a model, found in a process of its own; without the last peer where
    a signal has ended that."""
    command = command_of(
        "benchmarks.quantised", worker=name, forms=form, threads=threads, budget=budget, peers=peers
    )
    fewer, _, last = peers.rpartition(",")
    try:
        found: dict[str, Any] = result_apart(command, threads, LIMIT_S)
    except CrashedError as error:
        if error.status >= 0 or not fewer:
            return {"crashed": str(error)}
        found = _apart(name, form, threads, budget, fewer)
        why = f"signal {-error.status} ended a process with this engine"
        return found | {"refused": {last: why} | found.get("refused", {})}
    return found


def _show(found: Mapping[str, Any], form: str, threads: int) -> None:
    """Print the ratios of a model: an engine's time over ftuner's, geometric mean and least."""
    parts = []
    for name in (*PEERS, FLOAT32):
        pairs = [case["engines"] for case in found.get("cases", ())]
        ratios = [
            e[name]["min_s"] / e[SUBJECT]["min_s"] for e in pairs
            if "min_s" in e.get(name, {}) and "min_s" in e.get(SUBJECT, {})
        ]  # fmt: skip
        if ratios:
            parts.append(f"{name} {geomean(ratios):.2f} (least {min(ratios):.2f})")
    text = "; ".join(parts) or str(found)
    console.print(f"{found['label']} {form} t{threads}: {text}", highlight=False, markup=False)


if __name__ == "__main__":
    typer.run(main)
