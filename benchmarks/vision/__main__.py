"""`python -m benchmarks.vision`: convolutions and networks that see, against the peers.

Every engine computes float32 with equal threads, interleaved, on inputs that rotate; convolutions
rotate their weights, too. A network or a kind of convolution has a process for each thread count.
"""

import importlib
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer

from benchmarks import machine
from benchmarks.agreeing import run_agreeing
from benchmarks.cases import rotation_copies
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import command_of, console, environment, results_here, run_apart
from benchmarks.vision.convolutions import (
    FIRST,
    KINDS,
    LAST,
    Array,
    Convolution,
    Layer,
    cases,
    torch_layer,
)
from benchmarks.vision.first_pictures import first_pictures
from benchmarks.vision.memory import resident
from benchmarks.vision.writing import Size
from benchmarks.vision.zoo import NETWORKS, counted
from ftuner_tools.engines import onnxruntime_session
from ftuner_tools.onnx_engines import ONNX_ENGINES, Bind
from ftuner_tools.timing import SUBJECT, Settings

COPIES = 3
"""Inputs that calls of networks rotate through."""
REFERENCE = "onnxruntime"
TORCH, TORCH_LAST = "torch", "torch, channels last"
PEERS = ("onnxruntime", "openvino", TORCH)
"""PyTorch computes convolutions alone: of networks there is no module."""
OPTIONAL_PEERS = ("mnn",)
"""Peers of the extra `bench-mnn`."""


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    kind: str
    """`conv` or `vision`."""
    name: str
    """A kind of convolution, or a network."""
    threads: int
    peers: tuple[str, ...]
    layout: str
    budget_s: float
    only: tuple[str, ...]
    """Labels of the cases to keep; all if empty."""
    results: Path
    """A folder."""

    @property
    def settings(self) -> Settings:
        return Settings(budget_s_per_engine=self.budget_s)

    def kept(self, label: str) -> bool:
        return not self.only or label in self.only

    def document(self, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return header(self.kind, self.set_name, self.threads, machine.describe()) | {
            "engines": list(dict.fromkeys(name for r in results for name in r["engines"])),
            "unavailable": [],
            "settings": asdict(self.settings),
            "cases": list(results),
        }

    @property
    def set_name(self) -> str:
        ends = "-channels-last" if self.kind == "conv" and self.layout == LAST else ""
        return f"{self.name}{ends}"

    @property
    def out(self) -> Path:
        return self.results / f"{self.kind}-{self.set_name}-t{self.threads}.json"


def _limits(threads: int) -> Any:
    # Imported by name: it needs the internals of the present ftuner.
    return importlib.import_module("benchmarks.limits").Limits(threads)


def bound_layer(
    layer: Layer, engines: Sequence[str], layout: str, threads: int, seed: int, folder: Path
) -> Mapping[str, Callable[[Array], Callable[[], Array]]]:
    """One layer with weights of its own, prepared by each engine."""
    weight, bias = layer.parameters(np.random.default_rng(seed))
    path = folder / "layer.onnx"
    onnx.save(layer.model(weight, bias, layout), path)
    found: dict[str, Callable[[Array], Callable[[], Array]]] = {}
    for name in engines:
        if name == TORCH:
            found[TORCH] = torch_layer(layer, weight, bias, layout, False)
            found[TORCH_LAST] = torch_layer(layer, weight, bias, layout, True)
        else:
            bind: Bind = ONNX_ENGINES[name].one(path, threads)
            found[name] = lambda x, bind=bind: bind({"x": x})  # type: ignore[misc]
    return found


def run_convolutions(job: Job, chosen: Sequence[Convolution], folder: Path) -> dict[str, Any]:
    """Measure convolutions in this process; the document."""
    if TORCH not in job.peers:
        return _convolutions(job, chosen, folder)
    torch = importlib.import_module("torch")
    torch.set_num_threads(job.threads)
    # Entered once: it costs a microsecond, which a model pays once and not once a layer.
    with torch.inference_mode():
        return _convolutions(job, chosen, folder)


def _convolutions(job: Job, chosen: Sequence[Convolution], folder: Path) -> dict[str, Any]:
    engines = (SUBJECT, *job.peers)
    limits, l2_bytes = _limits(job.threads), machine.describe().l2_bytes
    results = []
    kept = (case for case in chosen if job.kept(case.label))
    for layer, members in groupby(kept, key=lambda case: case.layer):
        bound: list[Mapping[str, Callable[[Array], Callable[[], Array]]]] = []
        for case in members:
            copies = rotation_copies(case.rotated_bytes, l2_bytes)
            while len(bound) < copies:
                made = bound_layer(layer, engines, job.layout, job.threads, len(bound), folder)
                bound.append(made)
            rng = np.random.default_rng(list(case.given))
            inputs = [case.inputs(rng, job.layout) for _ in range(copies)]
            calls = {
                name: [b[name](x) for b, x in zip(bound, inputs, strict=False)] for name in bound[0]
            }
            found = run_agreeing(calls, REFERENCE, case.flops, job.settings, case.label, limits)
            results.append({"case": asdict(case), "label": case.label, "copies": copies} | found)
            _show(results[-1])
    return job.document(results)


def run_network(job: Job, path: Path) -> dict[str, Any]:
    """Measure a network in this process; the document. `path`: its file."""
    engines = (SUBJECT, *(peer for peer in job.peers if peer != TORCH))
    bound = {name: ONNX_ENGINES[name].one(path, job.threads) for name in engines}
    limits, network = _limits(job.threads), NETWORKS[job.name]
    count = counted(onnx.load(path), lambda model: onnxruntime_session(model, job.threads))
    results = []
    for picture in random.Random(0).sample(network.pictures, len(network.pictures)):
        if not job.kept(picture.label):
            continue
        rng = np.random.default_rng([picture.batch, picture.height])
        feeds = [picture.feeds(rng) for _ in range(COPIES)]
        calls = {name: [bind(f) for f in feeds] for name, bind in bound.items()}
        found = run_agreeing(calls, REFERENCE, count(feeds[0]), job.settings, picture.label, limits)
        results.append({"case": asdict(picture), "label": picture.label} | found)
        _show(results[-1])
    results.sort(key=lambda r: (r["case"]["batch"], r["case"]["height"], r["case"]["width"]))
    return job.document(results)


def _show(result: Mapping[str, Any]) -> None:
    ratio = "refused" if result["ratio"] is None else f"{result['ratio']:.3f}"
    console.print(f"{result['label']:>40}  {ratio}  {result['best_peer']}", highlight=False)


def run_job(job: Job, model: str) -> None:
    """Measure in this process and save. `model`: the file of a network."""
    if job.kind == "conv":
        with tempfile.TemporaryDirectory() as folder:
            document = run_convolutions(job, cases(job.name), Path(folder))
    else:
        document = run_network(job, Path(model))
    save(document, job.out)


def _started(job: Job, model: str = "") -> None:
    command = command_of(
        "benchmarks.vision", worker=f"{job.kind}:{job.name}", threads=job.threads,
        peers=",".join(job.peers), layout=job.layout, budget=job.budget_s, only=",".join(job.only),
        model=model, results=job.results,
    )  # fmt: skip
    run_apart(command, job.threads, job.out)


def _first(path: Path, name: str, threads: int, results: Path) -> None:
    """Measure the first calls of a network, print and save them."""
    found = first_pictures(path, name, threads)
    document = header("first", name, threads, machine.describe())
    document["cases"] = [{"label": label} | asdict(calls) for label, calls in found.items()]
    save(document, results / f"first-{name}-t{threads}.json")
    for label, calls in found.items():
        ratio = calls.first_s / calls.tenth_s
        console.print(f"{name:>16} {label:>14}  first / tenth {ratio:.2f}", highlight=False)


def _memory(path: Path, name: str, engines: Sequence[str], threads: int, results: Path) -> None:
    """Measure the resident memory of each engine at a picture of 224 x 224, or the network's first
    one, print and save it."""
    pictures = [p for p in NETWORKS[name].pictures if p.batch == 1]
    picture = next((p for p in pictures if p.height == p.width == 224), pictures[0])
    feeds = picture.feeds(np.random.default_rng(0))
    found = {e: resident(path, feeds, e, threads, environment(threads)) for e in engines}
    document = header("memory", name, threads, machine.describe())
    document["cases"] = [{"label": e, "picture": picture.label} | asdict(found[e]) for e in found]
    save(document, results / f"memory-{name}-t{threads}.json")
    for engine, memory in found.items():
        console.print(f"{name:>16} {engine:>12} {memory.text}", highlight=False)


def main(
    convs: Annotated[bool, typer.Option(help="Convolutions one by one.")] = False,
    models: Annotated[bool, typer.Option(help="Networks.")] = False,
    first: Annotated[bool, typer.Option(help="First calls of resolutions.")] = False,
    memory: Annotated[bool, typer.Option(help="Resident memory of each engine.")] = False,
    threads: Annotated[str, typer.Option(help="Thread counts; a process each.")] = "1,2",
    sets: Annotated[str, typer.Option(help="Kinds of convolutions, and networks, to keep.")] = "",
    only: Annotated[str, typer.Option(help="Labels of cases to keep.")] = "",
    layout: Annotated[str, typer.Option(help="Channels of layers: first, last.")] = FIRST,
    peers: Annotated[str, typer.Option(help="Peers, by name.")] = ",".join(PEERS),
    budget: Annotated[float, typer.Option(help="Seconds for each case and engine.")] = 0.3,
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
    model: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure, print and save the results as JSON."""
    names = tuple(name for name in peers.split(",") if name)
    wanted = sets.split(",") if sets else [*KINDS, *NETWORKS]
    known = {"sets": (*KINDS, *NETWORKS), "peers": (*PEERS, *OPTIONAL_PEERS)}
    unknown = {*names} - {*known["peers"]} | {*wanted} - {*known["sets"]} | {layout} - {FIRST, LAST}
    if unknown or REFERENCE not in names:
        raise typer.BadParameter(
            f"unknown {sorted(unknown)}; sets are {', '.join(known['sets'])}, peers "
            f"{', '.join(known['peers'])} with {REFERENCE}, which outputs are compared with"
        )
    labels = tuple(label for label in only.split(",") if label)
    counts = [int(part) for part in threads.split(",")]
    folder = (results or results_here()).resolve()

    def job(kind: str, name: str, count: int) -> Job:
        return Job(kind, name, count, names, layout, budget, labels, folder)

    if worker:
        kind, name = worker.split(":")
        run_job(job(kind, name, counts[0]), model)
        return

    for name in wanted if convs else ():
        for count in counts if name in KINDS else ():
            _started(job("conv", name, count))
    for name in wanted if models or first or memory else ():
        if name not in NETWORKS:
            continue
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / f"{name}.onnx"
            onnx.save(NETWORKS[name].write(Size()), path)
            for count in counts:
                if models:
                    _started(job("vision", name, count), str(path))
                if first:
                    _first(path, name, count, folder)
                if memory:
                    engines = (SUBJECT, *(peer for peer in names if peer != TORCH))
                    _memory(path, name, engines, count, folder)


if __name__ == "__main__":
    typer.run(main)
