"""Graphs of seed after seed in child processes, and a summary of what was found."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.isolation import Done, Limits, Result, Workers
from tests.random_graphs.checking import CPU, GPU, GUARDED, PASSES, checked
from tests.random_graphs.generating import seeded
from tests.random_graphs.reports import Report, crashed_in_peer
from tests.random_graphs.shrinking import Shrinker, signature
from tests.random_graphs.table import named

LIMITS = Limits(seconds=240.0, grown_bytes=2 << 30)
"""Of one graph: compiling a library that no graph before had takes ten seconds, and longer on a
busy machine."""
RECYCLE = 400
"""Graphs after which a process is replaced: libraries stay loaded for as long as it lives."""
SHARED_MEMORY = Path("/dev/shm")
PROGRESS_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    """What a run of the bench does."""

    seconds: float | None = None
    graphs: int | None = None
    seed: int = 0
    jobs: int = 1
    guard: bool = False
    """Whether pages that fault lie around all memory."""
    gpu_share: float = 0.0
    """Of graphs that run by the kernels for a GPU, interpreted."""
    compiled_share: float = 1.0
    """Of the others, those that are compiled; the rest run by references after all passes."""
    cache: Path | None = None
    """Folder of compiled objects that stays; by default one of the run's own."""
    row: str = ""
    """The row that graphs begin with; any if it is empty."""
    stop: int = 50
    """Findings after which it ends."""
    shrunk: int = 10
    """Findings that are made smaller and saved, at most."""
    folder: Path | None = None
    """Where they are saved; None to save none."""

    def place(self, seed: int) -> str:
        """Where the graph of a seed runs."""
        number = (seed * 0x9E3779B1 >> 8) % 1000
        if number < 1000 * self.gpu_share:
            return GPU
        if (seed * 0x85EBCA6B >> 8) % 1000 >= 1000 * self.compiled_share:
            return PASSES
        return GUARDED if self.guard else CPU


@dataclass(frozen=True)
class Finding:
    seed: int
    place: str
    kind: str
    """Its signature."""
    what: str


@dataclass
class Summary:
    """What came of all graphs."""

    graphs: int = 0
    gpu_graphs: int = 0
    runs: int = 0
    refused_runs: int = 0
    unstable_runs: int = 0
    compared: int = 0
    elements: int = 0
    late_runs: int = 0
    batches: int = 0
    outvoted: int = 0
    seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    peers: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)
    """What peers did that says nothing of ftuner."""
    findings: list[Finding] = field(default_factory=list)

    def add(self, report: Report, rows: tuple[str, ...]) -> None:
        self.runs += report.runs
        self.refused_runs += report.refused_runs
        self.unstable_runs += report.unstable_runs
        self.compared += report.elements[0]
        self.elements += report.elements[1]
        self.operators.update(report.operators)
        self.rows.update(rows)
        self.peers[report.peer or "none"] += 1
        self.late_runs += report.late_runs
        self.batches += report.batches
        self.outvoted += report.outvoted
        self.apart.update(report.apart)
        if report.refused:
            # Names and numbers differ from graph to graph.
            self.refused[re.sub(r"'[^']*'|\d+|\[[^\]]*\]", "_", report.refused)[:160]] += 1

    def text(self) -> str:
        kinds = Counter(finding.kind for finding in self.findings)
        share = self.compared / max(self.elements, 1)
        lines = [
            f"{self.graphs} graphs, {self.gpu_graphs} of them interpreted; {self.runs} runs of a "
            f"graph at a shape, {self.refused_runs} calls refused on both sides, "
            f"{self.unstable_runs} runs that rounding decides",
            f"{self.compared} elements compared, {share:.1%} of all; {self.seconds:.0f} s, "
            f"{self.graphs / max(self.seconds, 1e-9):.2f} graphs a second",
            f"{self.late_runs} runs with constants as inputs",
            f"{self.batches} graphs of which steps ran once for several inputs",
            f"peers: {dict(self.peers)}; onnxruntime alone on {self.outvoted} runs",
            f"of peers, no findings: {dict(self.apart.most_common())}",
            f"graphs refused by name: {sum(self.refused.values())}",
            *(f"  {n}: {what}" for what, n in self.refused.most_common(20)),
            f"operators: {dict(self.operators.most_common())}",
            f"findings: {dict(kinds) if kinds else 'none'}",
            *(f"  seed {f.seed} ({f.place}): {f.kind}: {f.what[:300]}" for f in self.findings[:50]),
        ]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        counters = {k: dict(v) for k, v in self.__dict__.items() if isinstance(v, Counter)}
        findings = [finding.__dict__ for finding in self.findings]
        return {**self.__dict__, **counters, "findings": findings}


Payload = tuple[int, str, bool, str]


def attempt(payload: Payload) -> tuple[Report, tuple[str, ...]]:
    """Make and check the graph of a seed: what the child processes do. The last of the payload:
    whether peers run it too, and the row that it begins with."""
    seed, place, peers, row = payload
    made = seeded(seed, named(row), small=place == GPU)
    return checked(made.case, place, peers), made.rows


def variables(cache: Path) -> dict[str, str]:
    """Of child processes: a cache, one thread for NumPy, and Triton's interpreter."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    ones = dict.fromkeys(threads, "1")
    return {"FTUNER_CACHE_DIR": str(cache), "TRITON_INTERPRET": "1", **ones}


@contextmanager
def temporary_cache(kept: Path | None = None) -> Iterator[dict[str, str]]:
    """Variables of child processes with a folder for temporary files, in memory where there is such
    a folder; and with a cache there, or one that is kept."""
    shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="ftuner-graphs-", dir=shared)
    try:
        yield {**variables(kept or Path(folder)), "TMPDIR": folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Show = Callable[[str], object]


def run(options: Options, show: Show = print) -> Summary:
    """Run graphs for as long, or as many, as asked for. `show` is given lines of text."""
    summary = Summary()
    began = last = time.monotonic()

    crashed: list[int] = []
    """Seeds of graphs that ended a peer: they are run again without it."""

    def again() -> Iterator[Payload]:
        return ((seed, options.place(seed), False, options.row) for seed in crashed)

    def payloads() -> Iterator[Payload]:
        number = 0
        while options.graphs is None or number < options.graphs:
            late = options.seconds is not None and time.monotonic() - began > options.seconds
            if late or len(summary.findings) >= options.stop:
                return
            seed = options.seed + number
            yield seed, options.place(seed), True, options.row
            number += 1

    with ExitStack() as stack:
        environment = stack.enter_context(temporary_cache(options.cache))
        function = f"{__name__}:{attempt.__name__}"
        workers = stack.enter_context(
            Workers(function, options.jobs, LIMITS, RECYCLE, environment, LIMITS.seconds)
        )
        for number, result in workers.run(payloads()):
            seed = options.seed + number
            if crashed_in_peer(result):
                crashed.append(seed)
                continue
            _enter(summary, seed, options.place(seed), result, show)
            now = time.monotonic()
            summary.seconds = now - began
            if now - last > PROGRESS_SECONDS:
                last = now
                show(f"{summary.graphs} graphs, {summary.runs} runs, {len(summary.findings)} "
                     f"findings, {summary.seconds:.0f} s")  # fmt: skip
        if crashed:
            summary.apart["onnxruntime crashed"] = len(crashed)
        for number, result in workers.run(again()):
            seed = crashed[number]
            _enter(summary, seed, options.place(seed), result, show)
            summary.seconds = time.monotonic() - began
        if options.folder is not None:
            _save(summary, options, options.folder, environment, show)
    return summary


def _enter(summary: Summary, seed: int, place: str, result: Result, show: Show) -> None:
    summary.graphs += 1
    summary.gpu_graphs += place == GPU
    if isinstance(result, Done):
        summary.add(*result.value)
        findings = result.value[0].findings
        what = "; ".join(f"{kind}: {text}" for kind, text in findings)
    else:
        text = str(getattr(result, "stderr", "") or getattr(result, "trace", ""))
        what = f"{getattr(result, 'text', '')} {text[-1500:]}"
    kind = signature(result)
    if kind:
        summary.findings.append(Finding(seed, place, kind, what))
        show(f"seed {seed} ({place}): {kind}: {what[:600]}")


def _save(
    summary: Summary, options: Options, folder: Path, environment: dict[str, str], show: Show
) -> None:
    """Make some findings of different signatures smaller, and save them."""
    first = {finding.kind: finding for finding in reversed(summary.findings)}
    for finding in list(first.values())[: options.shrunk]:
        made = seeded(finding.seed, named(options.row), small=finding.place == GPU)
        with Shrinker(finding.kind, finding.place, environment, LIMITS) as shrinker:
            case = shrinker.shrunk(made.script, made.case)
        name = re.sub(r"\W+", "-", f"{finding.kind}-{finding.seed}").lower()
        path = case.write(folder, name, f"{finding.kind}: {finding.what[:300]}")
        show(f"seed {finding.seed} ({finding.place}): {finding.kind}, saved as {path}")


def write(summary: Summary, path: Path) -> None:
    path.write_text(json.dumps(summary.document(), indent=1))
