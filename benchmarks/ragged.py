"""`python -m benchmarks.ragged`: tokens per second on requests of real lengths, as batches.

ftuner runs requests of unequal length as they are, together (`Model.run_batch`) or one by one. ONNX
Runtime, OpenVINO and PyTorch run them one by one, or pad each batch to its longest: in the order of
arrival, or with all requests of the stream sorted by length, which a server that answers in order
cannot do. All ways take turns; seconds are the least of the rounds.
"""

import ast
import importlib
import json
import re
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, minilm, report_batches
from benchmarks.comparisons import BATCHES
from benchmarks.measure import header
from benchmarks.onnx_models import (
    BERT_BASE,
    MINILM,
    SMOLLM2,
    Decoder,
    Encoder,
    write_decoder,
    write_encoder,
)
from benchmarks.report_batches import ONE_BY_ONE, PADDED, SORTED
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner_tools.onnx_engines import ONNX_ENGINES
from ftuner_tools.timing import SUBJECT, settle

KIND = "ragged"
WORKLOADS = Path(__file__).parent / "workloads" / "lengths.json"
DOCSTRINGS = "docstrings"
MOST_TOKENS = 256
"""Of a docstring: `max_seq_length` of all-MiniLM-L6-v2."""
PEERS = ("onnxruntime", "openvino")
"""Those that read the model's file."""
Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], object]
Way = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A model, and the requests of its stream, unless others are asked for."""

    shape: Encoder | Decoder
    requests: int = 32
    packaged: bool = False
    """Whether it is the encoder of `minilm`, which also pools; others have seeded weights."""

    def made(self, folder: Path) -> tuple[Path, Any]:
        """The ONNX file, and the same network in PyTorch."""
        if self.packaged:
            return minilm.model_path(), minilm.torch_encoder(minilm.model_path())
        models, torch = map(importlib.import_module, ("benchmarks.torch_models", "torch"))
        module = models.made(self.shape, torch.device("cpu"))
        write: Any = write_encoder if isinstance(self.shape, Encoder) else write_decoder
        return write(folder, self.shape, models.weights_of(module)), module

    def request(self, length: int, rng: np.random.Generator) -> Feeds:
        """The inputs of one text, without padding."""
        if isinstance(self.shape, Decoder):
            size = 1, length, self.shape.width
            return {"hidden_states": rng.standard_normal(size, np.float32)}
        tokens = rng.integers(0, self.shape.vocabulary, (1, length))
        return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


SUBJECTS = {
    "paraphrase-MiniLM-L3-v2": Subject(MINILM, 128, packaged=True),
    "all-MiniLM-L6-v2": Subject(replace(MINILM, layers=6)),
    "bert-base-2-layers": Subject(replace(BERT_BASE, layers=2)),
    "smollm2-135m-4-layers": Subject(replace(SMOLLM2, layers=4)),
}
"""By name. Of twelve and of thirty equal layers a few are measured."""


@cache
def docstrings() -> Sequence[int]:
    """The words and marks of each docstring of the standard library, as tokens between two others;
    at most as many as sentence-transformers gives all-MiniLM-L6-v2."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words = re.findall(r"\w+|[^\w\s]", ast.get_docstring(node) or "")
                found += [min(len(words) + 2, MOST_TOKENS)] if words else []
    return found


def drawn(name: str, count: int, rng: np.random.Generator) -> list[int]:
    """Lengths of a corpus; those of which quantiles are known are drawn by interpolation."""
    if name == DOCSTRINGS:
        return [int(n) for n in rng.choice(docstrings(), count)]
    workloads = json.loads(WORKLOADS.read_text(encoding="utf-8"))
    levels, found = [0.0, *workloads["quantiles"]], workloads["sets"][name]
    # What is below the first quantile is taken to be as long as that.
    return [round(n) for n in np.interp(rng.random(count), levels, [found[0], *found]).tolist()]


def length(feeds: Feeds) -> int:
    """The tokens of each text of a request."""
    return int(next(iter(feeds.values())).shape[1])


def padded(batch: Sequence[Feeds]) -> Feeds:
    """Requests as the rows of one, filled with zeros that the mask hides."""
    longest = max(map(length, batch))
    return {
        name: np.concatenate([
            np.pad(f[name], [(0, 0), (0, longest - length(f)), *[(0, 0)] * (x.ndim - 2)])
            for f in batch
        ])
        for name, x in batch[0].items()
    }  # fmt: skip


def batches(stream: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [stream[i : i + size] for i in range(0, len(stream), size)]


def with_padding(lengths: Sequence[int], size: int) -> int:
    """The tokens of padded batches."""
    return sum(len(batch) * max(batch) for batch in batches(lengths, size))


def engines(subject: Subject, folder: Path, threads: int) -> tuple[Any, dict[str, Run]]:
    """ftuner's model, and what runs a request by each peer."""
    path, module = subject.made(folder)
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)

    def by_torch(feeds: Feeds) -> object:
        x, *masks = map(torch.from_numpy, feeds.values())
        with torch.inference_mode():
            return module(x, *[m for m in masks if not m.all()]).numpy()

    peers: dict[str, Run] = {"torch": by_torch}
    for name in PEERS:
        peers[name] = partial(_bound, ONNX_ENGINES[name].prepare(path, threads, None))
    return importlib.import_module(SUBJECT).load(path, threads=threads), peers


def _bound(bind: Any, feeds: Feeds) -> object:
    return bind(feeds)()


def ways(
    model: Any, peers: Mapping[str, Run], stream: Sequence[Feeds], sizes: Sequence[int]
) -> dict[tuple[str, int], Way]:
    """What runs all requests of a stream, by name and size of a batch. Peers get padded batches
    ready made."""
    in_order = sorted(stream, key=length)
    alone = {SUBJECT: model.run, **peers}
    found: dict[tuple[str, int], Way] = {}
    for name, run in alone.items():
        found[f"{name}, {ONE_BY_ONE}", 1] = partial(_all, run, stream)
    for size in sizes:
        found[BATCHES, size] = partial(_all, model.run_batch, batches(stream, size))
        orders = {PADDED: stream, SORTED: in_order}
        if size >= len(stream):
            # One batch has the same requests in any order.
            del orders[SORTED]
        for how, requests in orders.items():
            parts = [padded(batch) for batch in batches(requests, size)]
            for name, run in peers.items():
                found[f"{name}, {how}", size] = partial(_all, run, parts)
    return found


def _all(run: Callable[[Any], object], parts: Sequence[Any]) -> None:
    for part in parts:
        run(part)


def least_seconds(compared: Mapping[Any, Way], budget_s: float) -> dict[Any, float]:
    """The least seconds of each way, which take turns: in one round after one that is not counted,
    and in more until all rounds have taken `budget_s`."""
    rounds: list[dict[Any, float]] = []
    ends = time.perf_counter() + budget_s
    while len(rounds) < 2 or time.perf_counter() < ends:
        rounds.append({name: _seconds(way) for name, way in compared.items()})
    return {name: min(seconds[name] for seconds in rounds[1:]) for name in compared}


def _seconds(way: Way) -> float:
    settle()
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def measured(
    subject: Subject, model: Any, peers: Mapping[str, Run], name: str, sizes: Sequence[int],
    count: int, budget_s: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """A stream of lengths of a set, as JSON: a case for each size of a batch."""
    rng = np.random.default_rng(0)
    lengths = drawn(name, count, rng)
    stream = [subject.request(n, rng) for n in lengths]
    seconds = least_seconds(ways(model, peers, stream, sizes), budget_s)
    return [
        {
            "lengths": name, "batch": size, "tokens": sum(lengths),
            "padded": with_padding(lengths, size),
            "sorted": with_padding(sorted(lengths), size),
            "seconds": {way: s for (way, of), s in seconds.items() if of in (1, size)},
        }
        for size in sizes
    ]  # fmt: skip


def main(
    models: Annotated[str, typer.Option(help="Models, by name.")] = ",".join(SUBJECTS),
    sets: Annotated[str, typer.Option(help="Sets of lengths.")] = f"cola,mnli,squad2,{DOCSTRINGS}",
    sizes: Annotated[str, typer.Option(help="Requests of a batch.")] = "8,32,128",
    requests: Annotated[int, typer.Option(help="Of a stream; by default the model's.")] = 0,
    threads: Annotated[int, typer.Option(help="Workers; by default one a core.")] = 0,
    budget: Annotated[float, typer.Option(help="Seconds for the ways of a set.")] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
) -> None:
    """Measure, print and save. A batch that a stream has not the requests for is left out."""
    here = machine.describe()
    workers = threads or here.cores
    for name in models.split(","):
        count = requests or SUBJECTS[name].requests
        fitting = [size for size in map(int, sizes.split(",")) if size <= count]
        cases: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            model, peers = engines(SUBJECTS[name], Path(folder), workers)
            for of in sets.split(","):
                cases += measured(SUBJECTS[name], model, peers, of, fitting, count, budget)
        document = header(KIND, name, workers, here) | {"cases": cases}
        save(document, (out or results_here()) / f"{KIND}-{name}-{workers}.json")
        console.print(*report_batches.rows([document]), sep="\n", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
