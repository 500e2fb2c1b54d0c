"""`python -m benchmarks.ragged`: tokens per second on sentences of real lengths, as batches.

ftuner runs requests of unequal length as they are, together (`Model.run_batch`) or one by one. ONNX
Runtime and OpenVINO run them one by one, or pad each batch to its longest: in the order of arrival,
or with all requests of the stream sorted by length, which a server that answers in order cannot do.
All ways take turns; seconds are the least of the rounds.
"""

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks import machine, minilm
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner_tools.onnx_engines import ONNX_ENGINES, BindAll
from ftuner_tools.timing import settle

KIND = "ragged"
WORKLOADS = Path(__file__).parent / "workloads" / "lengths.json"
TOGETHER = "ftuner, batches"
ONE_BY_ONE = "ftuner, one by one"
PEERS = ("onnxruntime", "openvino")
Feeds = Mapping[str, np.ndarray]
Way = Callable[[], object]


def drawn(name: str, count: int, rng: np.random.Generator) -> list[int]:
    """Lengths of a corpus, drawn by interpolation between its quantiles."""
    workloads = json.loads(WORKLOADS.read_text(encoding="utf-8"))
    levels, found = [0.0, *workloads["quantiles"]], workloads["sets"][name]
    # What is below the first quantile is taken to be as long as that.
    return np.interp(rng.random(count), levels, [found[0], *found]).round().astype(int).tolist()


def requests(lengths: Sequence[int], rng: np.random.Generator) -> list[Feeds]:
    """A sentence of each length, without padding."""
    tokens = [rng.integers(0, minilm.VOCABULARY, (1, n)) for n in lengths]
    return [{"input_ids": x, "attention_mask": np.ones_like(x)} for x in tokens]


def padded(batch: Sequence[Feeds]) -> Feeds:
    """Requests as the rows of one, filled with zeros that the mask hides."""
    longest = max(feeds["input_ids"].shape[1] for feeds in batch)
    return {
        name: np.concatenate([np.pad(f[name], ((0, 0), (0, longest - f[name].shape[1])))
                              for f in batch])
        for name in batch[0]
    }  # fmt: skip


def batches(stream: Sequence[Feeds], size: int) -> list[Sequence[Feeds]]:
    return [stream[i : i + size] for i in range(0, len(stream), size)]


def from_clients(
    run: Callable[[Feeds], object], stream: Sequence[Feeds], clients: ThreadPoolExecutor
) -> Way:
    """Callers, each of which waits for the answer to a request before it sends the next one."""
    return lambda: [*clients.map(run, stream)]


def ways(
    path: Path, stream: Sequence[Feeds], size: int, threads: int, clients: ThreadPoolExecutor | None
) -> dict[str, Way]:
    """What runs all requests of a stream, by name; with `clients` also one by one from these."""
    ftuner: Any = importlib.import_module("ftuner")
    model = ftuner.load(path, threads=threads)
    in_order = sorted(stream, key=lambda feeds: feeds["input_ids"].shape[1])
    found: dict[str, Way] = {
        TOGETHER: lambda: [model.run_batch(part) for part in batches(stream, size)],
        ONE_BY_ONE: lambda: [model.run(feeds) for feeds in stream],
    }
    if clients is not None:
        # Closed when nothing refers to it.
        batcher = ftuner.Batcher(model)
        found["ftuner, Batcher"] = from_clients(batcher.run, stream, clients)
        found["ftuner, clients"] = from_clients(model.run, stream, clients)
    for name in PEERS:
        run = _runner(ONNX_ENGINES[name].prepare(path, threads, None))
        for how, parts in (
            ("padded", batches(stream, size)),
            ("padded, sorted", batches(in_order, size)),
            ("one by one", [[feeds] for feeds in stream]),
        ):
            found[f"{name}, {how}"] = partial(_all, run, parts)
        if clients is not None and name == "onnxruntime":
            found[f"{name}, clients"] = from_clients(run, stream, clients)
    return found


def _runner(bind: BindAll) -> Callable[[Feeds], object]:
    return lambda feeds: bind(feeds)()


def _all(run: Callable[[Feeds], object], parts: Sequence[Sequence[Feeds]]) -> None:
    for part in parts:
        run(part[0] if len(part) == 1 else padded(part))


def least_seconds(compared: Mapping[str, Way], rounds: int) -> dict[str, float]:
    """The least seconds of each way, which take turns after a round that is not counted."""
    found: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, way in compared.items():
            settle()
            began = time.perf_counter()
            way()
            taken = time.perf_counter() - began
            if number:
                found[name] = min(taken, found.get(name, taken))
    return found


def main(
    model: Annotated[Path | None, typer.Option(help="ONNX file; by default MiniLM's.")] = None,
    lengths: Annotated[str, typer.Option(help="Sets of lengths.")] = "cola,mnli,squad2",
    sizes: Annotated[str, typer.Option(help="Requests of a batch.")] = "8,32,128",
    count: Annotated[int, typer.Option(help="Requests of a stream.")] = 128,
    threads: Annotated[int, typer.Option(help="Workers; by default one a core.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of each stream.")] = 5,
    clients: Annotated[int, typer.Option(help="Callers at once, also behind a Batcher.")] = 0,
) -> None:
    """Measure, print and save."""
    here = machine.describe()
    workers, path = threads or here.cores, model or minilm.model_path()
    cases: list[dict[str, Any]] = []
    pool = ThreadPoolExecutor(clients) if clients else None
    for name in lengths.split(","):
        for size in map(int, sizes.split(",")):
            rng = np.random.default_rng(0)
            drawn_lengths = drawn(name, count, rng)
            stream = requests(drawn_lengths, rng)
            seconds = least_seconds(ways(path, stream, size, workers, pool), rounds)
            tokens = sum(drawn_lengths)
            cases.append({"lengths": name, "batch": size, "tokens": tokens, "seconds": seconds})
            shown = Table(title=f"{name}, batches of {size}, {workers} threads")
            for column in ("way", "tokens/s", f"{TOGETHER}: times as fast"):
                shown.add_column(column, justify="left" if column == "way" else "right")
            for way, taken in seconds.items():
                ratio = taken / seconds[TOGETHER]
                shown.add_row(way, f"{tokens / taken:,.0f}", f"{ratio:.2f}")
            console.print(shown)
    document = header(KIND, path.stem, workers, here) | {"cases": cases}
    save(document, results_here() / f"{KIND}-{path.stem}-{workers}.json")


if __name__ == "__main__":
    typer.run(main)
