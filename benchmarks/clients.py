"""`python -m benchmarks.clients`: requests of many clients at once, by a batcher and one by one.

Clients are threads of a process of their own. Each sends a request and waits for its answer before
it sends the next one. A thread for each client receives its requests in the process of the engine,
which has one core and one thread. All ways take turns; the round with the least seconds counts.
"""

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import ftuner
from benchmarks import machine, minilm, report_batches
from benchmarks.comparisons import BATCHES
from benchmarks.measure import header
from benchmarks.ragged import Run, drawn
from benchmarks.report_batches import CLIENTS
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner.core.operating_system import own_affinity, pin_thread
from ftuner_tools.onnx_engines import ONNX_ENGINES
from ftuner_tools.timing import SUBJECT


class Answered(NamedTuple):
    """A stream as its clients saw it, in seconds."""

    all_s: float
    p50_s: float
    p99_s: float


def ask(
    cpu: int, control: Connection, links: Sequence[Connection], stream: Sequence[bytes]
) -> None:
    """The process of the clients, which sends a stream each time that `control` says so, and
    returns an `Answered`."""
    pin_thread(cpu)

    def client(number: int) -> list[float]:
        seconds, link = [], links[number]
        for message in stream[number :: len(links)]:
            began = time.perf_counter()
            link.send_bytes(message)
            link.recv_bytes()
            seconds.append(time.perf_counter() - began)
        return seconds

    with ThreadPoolExecutor(len(links)) as pool:
        while control.recv():
            began = time.perf_counter()
            latencies = [s for seconds in pool.map(client, range(len(links))) for s in seconds]
            taken = time.perf_counter() - began
            control.send(Answered(taken, *np.quantile(latencies, (0.5, 0.99)).tolist()))


def answer(run: Run, link: Connection, count: int) -> None:
    """Answer the requests of one client, which are tokens, by their vector."""
    for _ in range(count):
        tokens = np.frombuffer(link.recv_bytes(), np.int64)[None]
        found: Any = run({"input_ids": tokens, "attention_mask": np.ones_like(tokens)})
        link.send_bytes(found[-1].tobytes())


def measured(
    ways: Mapping[str, Run], cpu: int, stream: Sequence[bytes], clients: int, rounds: int
) -> dict[str, Answered]:
    """A stream by each way; `cpu`: that of the clients."""
    context = multiprocessing.get_context("spawn")
    control, theirs = context.Pipe()
    here, there = zip(*(context.Pipe() for _ in range(clients)), strict=True)
    process = context.Process(target=ask, args=(cpu, theirs, there, stream), daemon=True)
    process.start()
    counts = [len(stream[n::clients]) for n in range(clients)]
    found: dict[str, list[Answered]] = {name: [] for name in ways}
    with ThreadPoolExecutor(clients) as pool:
        for _ in range(rounds + 1):
            for name, run in ways.items():
                control.send(True)
                list(pool.map(partial(answer, run), here, counts))
                found[name].append(control.recv())
    control.send(False)
    process.join()
    # Shapes are new in the first round.
    return {name: min(answered[1:]) for name, answered in found.items()}


def main(
    sets: Annotated[str, typer.Option(help="Sets of lengths.")] = "cola,mnli",
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 64,
    requests: Annotated[int, typer.Option(help="Of a stream.")] = 2048,
    rounds: Annotated[int, typer.Option(help="Rounds of all ways.")] = 5,
) -> None:
    """Measure MiniLM of three layers, print and save."""
    # Before this process is on one core alone, of which the folder would be named.
    here, path, out = machine.describe(), minilm.model_path(), results_here() / f"{CLIENTS}.json"
    model = ftuner.load(path, threads=1)
    session = ONNX_ENGINES["onnxruntime"].prepare(path, 1, None)
    cpus = sorted(own_affinity())
    pin_thread(cpus[0])
    cases = []
    for name in sets.split(","):
        rng = np.random.default_rng(0)
        lengths = drawn(name, requests, rng)
        stream = [rng.integers(0, minilm.VOCABULARY, n).tobytes() for n in lengths]
        with ftuner.Batcher(model) as batcher:
            ways: dict[str, Run] = {
                BATCHES: batcher.run,
                SUBJECT: model.run,
                "onnxruntime": lambda feeds: session(feeds)(),
            }
            found = measured(ways, cpus[-1], stream, clients, rounds)
        case = {"lengths": name, "clients": clients, "tokens": sum(lengths)}
        cases.append(case | {"ways": {way: x._asdict() for way, x in found.items()}})
    document = header(CLIENTS, path.stem, 1, here) | {"cases": cases}
    save(document, out)
    console.print(*report_batches.clients(document), sep="\n", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
