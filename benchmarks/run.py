"""`python -m benchmarks.run`: measure ftuner against its peers and save the results as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.markdown import both
from benchmarks.measure import Request
from benchmarks.results import Document, load, summarise
from ftuner_tools.engines import ENGINES
from ftuner_tools.timing import SUBJECT, Settings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""A folder for each machine."""
DEFAULT_PEERS = "numpy,torch,onnxruntime,openvino"
QUICK_BUDGET_S = 0.1

console = Console()


def results_here() -> Path:
    """The folder for results of this machine."""
    return RESULTS / describe().name


def environment(threads: int) -> dict[str, str]:
    """The environment of a measuring process: every library's thread pool of one size.

    How long idle workers spin is left at each library's default, which is its best between the
    calls of a burst; `timing.settle` waits it out before another engine's turn. OpenBLAS alone is
    held to some 7 ms, still longer than any pause within a burst: its default of over 100 ms would
    be most of the time that a measurement takes.
    """
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OPENBLAS_THREAD_TIMEOUT": "24",
    }


def table(document: Document) -> Table:
    """Ratios of a document: one row a peer, the best peer at each shape on top."""
    summary = summarise(document)
    head = f"{document['kind']} {document['set']}, threads: {document['threads']}"
    shown = Table(title=f"{head}: peer's time / {SUBJECT}'s time, from minima")
    for column in ("against", "geomean", "cases"):
        shown.add_column(column, justify="left" if column == "against" else "right")
    shown.add_row("best peer at each shape", f"{summary.geomean:.3f}", str(summary.cases))
    for name, ratio in sorted(summary.per_peer.items(), key=lambda item: item[1]):
        shown.add_row(name, f"{ratio:.3f}", "")
    if summary.worst:
        label, peer, ratio = summary.worst
        shown.add_row(f"worst shape: {label} ({peer})", f"{ratio:.3f}", "")
    lost = len(summary.losses)
    shown.caption = (
        f"wins {summary.wins}, losses {lost}; by medians {summary.geomean_median:.3f}; "
        f"paired {summary.geomean_paired:.3f}; "
        f"share of peak {both(summary.fraction_of_peak, summary.fraction_of_peak_paired)}"
    )
    return shown


class CrashedError(Exception):
    """A process ended without a result: the last line of its errors, or its exit status."""

    def __init__(self, why: str, status: int = 1) -> None:
        super().__init__(why)
        self.status = status


def command_of(module: str, *arguments: object, **options: object) -> list[str]:
    """The command that runs a module. An option that is True is a flag; one that is False is left
    out."""
    given = {name: value for name, value in options.items() if value is not False}
    flags = (f"--{name}" if x is True else f"--{name}={x}" for name, x in given.items())
    return [sys.executable, "-m", module, *map(str, arguments), *flags]


def result_apart(
    command: Sequence[str], threads: int, limit_s: float | None = None, **variables: str
) -> Any:
    """What a command prints in its last line, as JSON, in a process whose thread pools have one
    size. `variables`: of its environment, besides.

    Raises:
        CrashedError: it failed, or took longer than `limit_s`.
    """
    try:
        done = subprocess.run(
            command, env=environment(threads) | variables, cwd=ROOT, capture_output=True, text=True,
            timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CrashedError(f"more than {limit_s:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CrashedError(lines[-1], done.returncode)
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_apart(command: Sequence[str], threads: int, out: Path) -> Document:
    """Run a command in a process whose thread pools have one size; print the ratios and the refused
    outputs of the document that it writes to `out`, and return it."""
    subprocess.run(command, env=environment(threads), cwd=ROOT, check=True)
    document = load(out)
    console.print(table(document))
    for label, engine, reason in summarise(document).refused:
        console.print(f"[red]refused[/red] {engine} on {label}: {reason}", highlight=False)
    return document


def _run(request: Request) -> bool:
    """Measure in a fresh process; whether every output was right."""
    command = command_of("benchmarks.measure", json.dumps(asdict(request)))
    return not summarise(run_apart(command, request.threads, Path(request.out))).refused


def main(
    kind: Annotated[
        str,
        typer.Argument(
            help="gemm: dense layers with a constant weight and a dynamic m; bmm: batched products "
            "of two inputs with a dynamic length."
        ),
    ],
    set_name: Annotated[str, typer.Option("--set", help="A set of cases; all.")] = "all",
    threads: Annotated[str, typer.Option(help="Thread counts; a process each.")] = "1",
    peers: Annotated[str, typer.Option(help="Peers, by name.")] = DEFAULT_PEERS,
    out: Annotated[
        str | None, typer.Option(help="JSON file; {threads} stands for the count of threads.")
    ] = None,
    only: Annotated[str, typer.Option(help="Labels of cases to keep.")] = "",
    budget: Annotated[float | None, typer.Option(help="Seconds for each case and engine.")] = None,
    quick: Annotated[bool, typer.Option(help=f"A budget of {QUICK_BUDGET_S} s.")] = False,
    seed: Annotated[int, typer.Option(help="Of the operands and of the order of engines.")] = 0,
) -> None:
    """Measure products, print and save the results as JSON."""
    names = (SUBJECT, *(name for name in peers.split(",") if name and name != SUBJECT))
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"unknown peers {unknown}; one of {', '.join(ENGINES)}")
    settings = Settings()
    if quick:
        settings = replace(settings, budget_s_per_engine=QUICK_BUDGET_S)
    if budget is not None:
        settings = replace(settings, budget_s_per_engine=budget)
    right = True
    template = out or str(results_here() / f"{kind}-{set_name}-t{{threads}}.json")
    labels = tuple(label for label in only.split(",") if label)
    for count in (int(part) for part in threads.split(",")):
        path = Path(template.replace("{threads}", str(count))).resolve()
        request = Request(kind, set_name, names, count, str(path), labels, seed, settings)
        try:
            cases = request.cases()
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if not cases:
            raise typer.BadParameter(f"no case of {kind} {set_name} is labelled {only}")
        right = _run(request) and right
    if not right:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
