"""`python -m benchmarks.revisions against REV`: the working tree against an earlier revision.

Each revision runs in a process of its own, from its own sources, with one cache folder and so one
hardware model for both. They take turns, one burst at a time, in a random order in each round, so
that a busy neighbour slows both. A ratio is the earlier revision's time over the present one's:
above one, the present is faster.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track
from rich.table import Table

from benchmarks import machine
from benchmarks.cases import BatchMatmul, Gemm, rotation_copies, select
from benchmarks.measure import BatchMatmulGroup, GemmGroup, header
from benchmarks.minilm import Shape, inputs, shapes_in_disorder
from benchmarks.models import COPIES, prepare_ftuner
from benchmarks.results import save
from benchmarks.run import ROOT, command_of, console, environment
from ftuner_tools.engines import FTuner
from ftuner_tools.timing import Call, Runner, Settings, geomean, settle

KINDS = ("gemm", "bmm", "model")
BEFORE, PRESENT = "before", "present"

AnyCase = Gemm | BatchMatmul | Shape


def cases_of(kind: str, set_name: str) -> Sequence[AnyCase]:
    """The cases of a kind: of a set of operators, or all shapes of the sentence encoder."""
    if kind != "model":
        return select(kind, set_name)
    return sorted(shapes_in_disorder(0), key=lambda s: (s.batch, s.length))


class Subject:
    """What a measuring process keeps between cases: the layers of one weight, and the model."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._l2_bytes = machine.describe().l2_bytes
        self._model: Any = None
        self._gemm: tuple[tuple[int, int], GemmGroup] | None = None

    def calls(self, case: AnyCase) -> Sequence[Call]:
        """A call for each copy of the operands."""
        if isinstance(case, Shape):
            if self._model is None:
                self._model = prepare_ftuner(self._threads)
            rng = np.random.default_rng([case.batch, case.length])
            return [self._model(inputs(case, rng)) for _ in range(COPIES)]
        engines = (FTuner(),)
        copies = rotation_copies(case.rotated_bytes, self._l2_bytes)
        if isinstance(case, BatchMatmul):
            group = BatchMatmulGroup(case, engines, self._threads, 0)
            return group.bind(case, copies)[1][FTuner.name]
        if self._gemm is None or self._gemm[0] != case.prepared_by:
            self._gemm = case.prepared_by, GemmGroup(case, engines, self._threads, copies, 0)
        return self._gemm[1].bind(case)[1][FTuner.name]


def serve(kind: str, set_name: str, threads: int) -> None:
    """Answer requests on standard input, a line of JSON each: the number of a case to prepare, or
    null for one burst of the present case. An answer is the seconds of a call."""
    cases = cases_of(kind, set_name)
    subject = Subject(threads)
    runner: Runner | None = None
    for line in sys.stdin:
        number = json.loads(line)
        if number is not None:
            runner = Runner(subject.calls(cases[number]), Settings(), time.perf_counter)
        assert runner is not None
        settle()
        runner.run(runner.warm_up_calls)
        print(json.dumps(runner.burst(runner.calls_per_burst)), flush=True)


class Server:
    """A process that serves one revision."""

    def __init__(self, tree: Path, cache: Path, arguments: Sequence[str], threads: int) -> None:
        variables = environment(threads) | {
            "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(ROOT / "tools"))),
            "FTUNER_CACHE_DIR": str(cache),
        }
        command = command_of("benchmarks.revisions", "serve", *arguments)
        self._process = subprocess.Popen(
            command, env=variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def ask(self, number: int | None) -> float:
        """Seconds of a call of one burst, after preparing a case if its number is given."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(number)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the measuring process ended with {self._process.wait()}")
        return float(json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """The sources of a revision, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "src.tar"
        command = ["git", "archive", "--output", str(archive), revision, "src"]
        subprocess.run(command, cwd=ROOT, check=True)
        subprocess.run(["tar", "-xf", str(archive), "-C", folder], check=True)
        yield Path(folder)


@dataclass(frozen=True)
class Ratio:
    """The earlier revision's seconds over the present one's, on one case."""

    label: str
    by_minima: float
    paired: float
    """Median over the rounds of the ratio within a round."""
    rounds: int


def compare_case(number: int, label: str, servers: dict[str, Server], budget_s: float) -> Ratio:
    """Rounds of one burst of each revision, until the budget is spent."""
    for server in servers.values():
        server.ask(number)
    samples: dict[str, list[float]] = {name: [] for name in servers}
    rng = random.Random(label)
    order = list(servers)
    settings = Settings()
    began = time.perf_counter()
    rounds = 0
    while rounds < settings.min_rounds or (
        rounds < settings.max_rounds and time.perf_counter() - began < budget_s
    ):
        rng.shuffle(order)
        for name in order:
            samples[name].append(servers[name].ask(None))
        rounds += 1
    pairs = zip(samples[BEFORE], samples[PRESENT], strict=True)
    by_minima = min(samples[BEFORE]) / min(samples[PRESENT])
    return Ratio(label, by_minima, statistics.median(b / p for b, p in pairs), rounds)


def shown(kind: str, threads: int, ratios: Sequence[Ratio]) -> Table:
    """Geometric mean and least case, by minima and by paired rounds."""
    table = Table(title=f"{kind}, threads: {threads}: time before / time now")
    for column in ("", "geomean", "least", "at"):
        table.add_column(column)
    for name in ("by_minima", "paired"):
        least = min(ratios, key=lambda r: float(getattr(r, name)))
        mean = geomean(getattr(r, name) for r in ratios)
        table.add_row(name, f"{mean:.3f}", f"{getattr(least, name):.3f}", least.label)
    return table


app = typer.Typer(add_completion=False, help=__doc__)


app.command(hidden=True)(serve)


@app.command()
def against(
    revision: Annotated[str, typer.Argument(help="The earlier revision, as git names it.")],
    kinds: Annotated[str, typer.Option(help="gemm, bmm, model, separated by commas.")] = ",".join(
        KINDS
    ),
    set_name: Annotated[str, typer.Option("--set", help="Set of operators, or all.")] = "all",
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    budget: Annotated[float, typer.Option(help="Seconds for each case.")] = 0.5,
    every: Annotated[int, typer.Option(help="Measure every n-th case.", min=1)] = 1,
    only: Annotated[str, typer.Option(help="Labels of cases, separated by commas.")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Measure and print the ratios."""
    documents: list[dict[str, Any]] = []
    labels = {label for label in only.split(",") if label}
    with tree_of(revision) as tree, tempfile.TemporaryDirectory() as cache:
        for kind in kinds.split(","):
            numbered = list(enumerate(cases_of(kind, set_name)))[::every]
            wanted = [(i, c) for i, c in numbered if not labels or c.label in labels]
            for count in map(int, threads.split(",")):
                with ExitStack() as stack:
                    servers = {}
                    for name, root in ((BEFORE, tree), (PRESENT, ROOT)):
                        server = Server(root, Path(cache), (kind, set_name, str(count)), count)
                        stack.callback(server.close)
                        servers[name] = server
                    ratios = [
                        compare_case(i, case.label, servers, budget)
                        for i, case in track(wanted, f"{kind}, threads: {count}")
                    ]
                console.print(shown(kind, count, ratios))
                document = header(kind, set_name, count, machine.describe())
                documents.append(document | {"ratios": [asdict(r) for r in ratios]})
    if out is not None:
        save({"schema": 1, "kind": "revisions", "before": revision, "runs": documents}, out)


if __name__ == "__main__":
    app()
