"""`python -m benchmarks.unseen`: streams of shapes that never repeat, against the peers.

Each engine runs a stream of distinct shapes, and then the same stream again. What a new shape costs
is the difference. The engines take turns shape by shape, in an order drawn anew, so that what the
machine's neighbours do falls on all. Each model has a process of its own for each thread count.
"""

from __future__ import annotations

import gc
import importlib
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import run as run_process
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import typer

from benchmarks import machine, minilm
from benchmarks.measure import header
from benchmarks.onnx_models import BERT_BASE, LLAMA_BLOCK, write_decoder, write_encoder
from benchmarks.results import load, save
from benchmarks.run import ROOT, command_of, console, environment, results_here
from benchmarks.vision.reading import ppocr
from benchmarks.vision.writing import Size
from benchmarks.vision.zoo import NETWORKS, Picture
from ftuner_tools.onnx_engines import ONNX_ENGINES, Bind
from ftuner_tools.timing import SUBJECT, settle

KIND = "unseen"
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter, "cpu": time.process_time
}  # fmt: skip
"""CPU time has no part in which the machine's neighbours have the core."""
PEERS = ("onnxruntime", "openvino")
Shape = tuple[int, ...]
Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Stream:
    """A model, and the shapes that are drawn for it."""

    write: Callable[[Path], Path]
    """Writes the file to a folder, if there is none yet; returns its path."""
    draw: Callable[[random.Random], Shape]
    feeds: Callable[[Shape, np.random.Generator], Feeds]
    shapes: int = 200
    """Of the stream, unless fewer are asked for."""


def _saved(made: Callable[[Size], onnx.ModelProto]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.onnx"
        onnx.save(made(Size()), path)
        return path

    return write


def _network(name: str) -> Callable[[Path], Path]:
    return _saved(NETWORKS[name].write)


def _written(shape: Any, writer: Callable[..., Path]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        models = importlib.import_module("benchmarks.torch_models")
        module = models.made(shape, importlib.import_module("torch").device("cpu"))
        return writer(folder, shape, models.weights_of(module))

    return write


def _pictures(batches: Sequence[int], step: int, sides: tuple[int, int], height: int = 0) -> Any:
    """Draws pictures: a batch, a height if none is given, and a width, multiples of `step`."""
    low, high = (side // step for side in sides)

    def draw(rng: random.Random) -> Shape:
        tall = height or step * rng.randint(low, high)
        return rng.choice(batches), tall, step * rng.randint(low, high)

    return draw


def _texts(batches: Sequence[int], longest: int) -> Callable[[random.Random], Shape]:
    return lambda rng: (rng.choice(batches), rng.randint(1, longest))


def _tokens(shape: Shape, rng: np.random.Generator) -> Feeds:
    return minilm.inputs(minilm.Shape(*shape), rng)


def _states(shape: Shape, rng: np.random.Generator) -> Feeds:
    return {"hidden_states": rng.standard_normal((*shape, LLAMA_BLOCK.width), np.float32)}


def _pixels(shape: Shape, rng: np.random.Generator) -> Feeds:
    return Picture(*shape).feeds(rng)


_PAGES, _LINES = _pictures((1,), 32, (32, 640)), _pictures((1, 1, 2, 6), 1, (32, 800), 48)
STREAMS: Mapping[str, Stream] = {
    "minilm": Stream(lambda _: minilm.model_path(), _texts((1, 1, 2, 4, 8), 256), _tokens),
    "bert-base": Stream(_written(BERT_BASE, write_encoder), _texts((1,), 128), _tokens, 100),
    "llama-block": Stream(_written(LLAMA_BLOCK, write_decoder), _texts((1,), 128), _states, 60),
    "ppocr-det": Stream(_network("ppocr-det"), _PAGES, _pixels),
    "ppocr-rec": Stream(_network("ppocr-rec"), _LINES, _pixels),
    "ppocr-v4-det": Stream(_saved(ppocr("det", 4)), _PAGES, _pixels),
    "ppocr-v4-rec": Stream(_saved(ppocr("rec", 4)), _LINES, _pixels),
    "mobilenet-v2": Stream(_network("mobilenet-v2"), _pictures((1,), 1, (64, 384)), _pixels),
    "unet": Stream(_network("unet"), _pictures((1,), 16, (64, 256)), _pixels, 60),
}


def drawn(stream: Stream, count: int, seed: int) -> list[Shape]:
    """Distinct shapes, in random order."""
    rng = random.Random(seed)
    found: dict[Shape, None] = {}
    while len(found) < count:
        found[stream.draw(rng)] = None
    return list(found)


@dataclass(frozen=True)
class Unseen:
    """What one engine takes for a stream, in seconds."""

    first_s: float
    """The whole stream of new shapes."""
    again_s: float
    """The same shapes again."""
    ratio: float
    extra_median_s: float
    """For a new shape, as are the next ones."""
    extra_p99_s: float
    extra_worst_s: float
    extra_worst_after_largest_s: float
    """The worst after the largest shape was seen."""

    @classmethod
    def of(cls, first: Sequence[float], again: Sequence[float], largest: int) -> Unseen:
        """`first`, `again`: seconds by shape; `largest`: the number of the largest one."""
        extra = [one - other for one, other in zip(first, again, strict=True)]
        later = extra[largest + 1 :] or [0.0]
        p99 = sorted(extra)[math.ceil(0.99 * len(extra)) - 1]
        return cls(
            sum(first), sum(again), sum(first) / sum(again), statistics.median(extra), p99,
            max(extra), max(later),
        )  # fmt: skip


def timed(
    engines: Mapping[str, Bind], feeds: Callable[[int], Feeds], count: int, rng: random.Random,
    clock: Callable[[], float],
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of each engine for each of `count` inputs, made one at a time by their number."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for number in range(count):
        given = feeds(number)
        rng.shuffle(order)
        for name in order:
            call = engines[name](given)
            settle()
            began = clock()
            call()
            found[name].append(clock() - began)
    return found


def measured(
    stream: Stream, path: Path, names: Sequence[str], threads: int, count: int, seed: int,
    clock: str = "wall",
) -> dict[str, Any]:  # fmt: skip
    """What each engine takes for a stream, as JSON."""
    shapes = drawn(stream, count, seed)
    engines = {name: ONNX_ENGINES[name].one(path, threads) for name in names}

    def feeds(number: int) -> Feeds:
        return stream.feeds(shapes[number], np.random.default_rng([seed, number]))

    rng = random.Random(seed)
    gc.collect()
    gc.disable()
    try:
        first = timed(engines, feeds, count, rng, CLOCKS[clock])
        again = timed(engines, feeds, count, rng, CLOCKS[clock])
    finally:
        gc.enable()
    largest = max(range(count), key=lambda number: math.prod(shapes[number]))
    return {
        "shapes": count, "seed": seed, "clock": clock,
        "cases": [
            {"label": name} | asdict(Unseen.of(first[name], again[name], largest))
            for name in names
        ],
    }  # fmt: skip


def _line(name: str, threads: int, case: Mapping[str, Any]) -> str:
    extras = ", ".join(
        f"{what} {1e3 * case[f'extra_{key}_s']:.2f}"
        for what, key in (("median", "median"), ("p99", "p99"), ("worst", "worst"),
                          ("after the largest", "worst_after_largest"))
    )  # fmt: skip
    return f"{name:>14} t{threads} {case['label']:>12} {case['ratio']:.3f}  extra ms: {extras}"


def main(
    models: Annotated[str, typer.Option(help="Models, by name.")] = ",".join(STREAMS),
    threads: Annotated[str, typer.Option(help="Thread counts; a process each.")] = "1,2",
    peers: Annotated[str, typer.Option(help="Peers, by name.")] = ",".join(PEERS),
    shapes: Annotated[int, typer.Option(help="Shapes of a stream; by default the model's.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of shapes and inputs.")] = 0,
    clock: Annotated[str, typer.Option(help=f"One of {', '.join(CLOCKS)}.")] = "wall",
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    worker: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, print and save the results as JSON."""
    names = (SUBJECT, *(name for name in peers.split(",") if name))
    wanted = models.split(",")
    unknown = {*wanted} - {*STREAMS} | {*names} - {*ONNX_ENGINES} | {clock} - {*CLOCKS}
    if unknown:
        raise typer.BadParameter(f"unknown {sorted(unknown)}; models are {', '.join(STREAMS)}")
    if worker is not None:
        (name,) = wanted
        stream = STREAMS[name]
        count = shapes or stream.shapes
        document = header(KIND, name, int(threads), machine.describe())
        with tempfile.TemporaryDirectory() as folder:
            path = stream.write(Path(folder))
            document |= measured(stream, path, names, int(threads), count, seed, clock)
        save(document, worker)
        return
    for name in wanted:
        for number in (int(part) for part in threads.split(",")):
            out = (results or results_here()).resolve() / f"{KIND}-{name}-t{number}.json"
            command = command_of(
                "benchmarks.unseen", worker=out, models=name, threads=number, peers=peers,
                shapes=shapes, seed=seed, clock=clock,
            )  # fmt: skip
            run_process(command, env=environment(number), cwd=ROOT, check=True)
            for case in load(out)["cases"]:
                console.print(_line(name, number, case), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
