"""`python -m benchmarks.zoo`: published architectures as exporters write them, against the peers.

Files are made by torch's exporter from configurations of `transformers` and kept in the user's
cache. Each architecture has a process of its own. `--check` compares outputs and times nothing.
`--variant` takes another file of each architecture (another opset, float16, an optimiser's output).
A line says what passes recognise in a file, and what they leave written out.
"""

import json
import resource
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine
from benchmarks.measure import header
from benchmarks.results import Document, load, save
from benchmarks.run import CrashedError, command_of, console, result_apart, results_here
from benchmarks.zoo.architecture import SIZES
from benchmarks.zoo.checking import RIGHT, UNCOUNTED, checked
from benchmarks.zoo.exporting import ExportError
from benchmarks.zoo.measuring import measured
from benchmarks.zoo.recognised import summary
from benchmarks.zoo.table import ARCHITECTURES
from benchmarks.zoo.variants import VARIANTS, variant_of
from ftuner_tools.timing import Settings

PEERS = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Job:
    """Which file of each architecture is checked or measured, and how."""

    size: str
    variant: str
    """Empty for the plain file."""
    threads: int
    budget_s: float
    check: bool


def _one(name: str, job: Job) -> dict[str, Any]:
    """The result of one architecture, found in this process."""
    row = ARCHITECTURES[name]
    found: dict[str, Any] = {"label": name, "kind": row.kind, "held_out": row.held_out}
    try:
        files = variant_of(row, SIZES[job.size], VARIANTS[job.variant] if job.variant else None)
    except ExportError as error:
        return found | {"verdict": UNCOUNTED[0], "why": str(error)}
    found |= checked(files, job.threads)
    if job.check or found["verdict"] != RIGHT:
        return found
    settings = Settings(budget_s_per_engine=job.budget_s)
    return found | measured(name, files, job.threads, settings, PEERS)


def _within_memory() -> None:
    """Let an engine that asks for more memory than the machine has free get an error; otherwise the
    system may end any process."""
    if sys.platform == "linux":
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        resource.setrlimit(resource.RLIMIT_AS, (free_kib * 1024, resource.RLIM_INFINITY))


def _apart(name: str, job: Job) -> dict[str, Any]:
    """The result of one architecture, found in a process of its own."""
    command = command_of(
        "benchmarks.zoo", worker=name, size=job.size, variant=job.variant, threads=job.threads,
        budget=job.budget_s, check=job.check,
    )  # fmt: skip
    try:
        found: dict[str, Any] = result_apart(command, job.threads)
        return found
    except CrashedError as error:
        row = ARCHITECTURES[name]
        return {"label": name, "kind": row.kind, "held_out": row.held_out, "verdict": "crashed",
                "why": str(error)}  # fmt: skip


def _summary(document: Document) -> str:
    counts = Counter(result["verdict"] for result in document["results"])
    counted = sum(count for verdict, count in counts.items() if verdict not in UNCOUNTED)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return f"{counted} architectures count: {parts}"


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "small",
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")] = "",
    check: Annotated[bool, typer.Option(help="Load and compare outputs; time nothing.")] = False,
    only: Annotated[str, typer.Option(help="Architectures to keep, by name.")] = "",
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    budget: Annotated[float, typer.Option(help="Seconds for each shape and engine.")] = 0.2,
    resume: Annotated[bool, typer.Option(help="Keep what the results have already.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Check or measure all architectures, print and save the results as JSON."""
    names = only.split(",") if only else list(ARCHITECTURES)
    unknown = {*names} - {*ARCHITECTURES}
    unknown |= {size} - {*SIZES} | {variant} - {*VARIANTS, ""}
    if unknown:
        raise typer.BadParameter(f"unknown {sorted(unknown)}")
    if worker:
        _within_memory()
        print(json.dumps(_one(worker, Job(size, variant, int(threads), budget, check))))
        return
    for count in [1] if check else [int(part) for part in threads.split(",")]:
        job = Job(size, variant, count, budget, check)
        kind = "-".join(["zoo", *["check"] * check, *filter(None, [variant])])
        path = (results or results_here()).resolve() / f"{kind}-{size}-t{count}.json"
        document = header(kind, size, count, machine.describe()) | {"results": []}
        if resume and path.exists():
            document["results"] = load(path)["results"]
        kept = {result["label"] for result in document["results"]}
        for name in names:
            if name in kept:
                continue
            found = _apart(name, job)
            line = f"{name:>24} {found['verdict']:>8} {summary(found.get('recognised', {}))}"
            console.print(f"{line} {found['why']}", highlight=False, markup=False, soft_wrap=True)
            document["results"].append(found)
            save(document, path)
        console.print(_summary(document))


if __name__ == "__main__":
    typer.run(main)
