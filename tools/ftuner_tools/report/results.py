"""Results of benchmarks beside peers, from the folder of a machine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware
from ftuner.learn.checked import Entry
from ftuner_tools.report.findings import read_document

SCHEMA = 1
MAX_BYTES = 64 << 20
"""Largest file that is read: those of a run are below 1 MiB."""
MAX_FILES = 1000
SAMPLES, MACHINES = "samples.jsonl", "machines.json"
"""Measured plans, and what was found with them, in the folder of a machine."""
_GPU_KIND = "gpu"
"""Kind of the results of a GPU; all other kinds are of a CPU."""
_FAMILY = re.compile(r" \(family \d+, model \d+\)$")
"""What benchmarks add to the name of a processor that has none of its own."""


@dataclass(frozen=True)
class Compared:
    """The ratios of one case: the peer's seconds over ftuner's."""

    label: str
    ratio: float
    peer: str


@dataclass(frozen=True)
class Results:
    """One document of results."""

    kind: str
    set: str
    threads: int
    date: str
    cases: tuple[Compared, ...]
    """Those with a ratio to the best peer; none in documents of another form."""

    @property
    def geomean(self) -> float:
        return math.exp(math.fsum(math.log(c.ratio) for c in self.cases) / len(self.cases))

    @property
    def worst(self) -> Compared:
        return min(self.cases, key=lambda c: c.ratio)

    @property
    def wins(self) -> int:
        return sum(c.ratio >= 1.0 for c in self.cases)


def read_results(folder: Path, hardware: CpuHardware | GpuHardware) -> tuple[Results, ...]:
    """The results in the JSON files of a folder, by kind, set and threads.

    Raises:
        ConfigurationError: not a folder, or too many files.
        DatasetError: a file that cannot be read, is too large, is not a document of results of this
            schema, or is of another machine.
    """
    try:
        paths = [p for p in sorted(folder.iterdir()) if p.suffix == ".json" and p.name != MACHINES]
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder}: {error.strerror or error}") from error
    if len(paths) > MAX_FILES:
        raise ConfigurationError(f"{folder} has {len(paths)} files; at most {MAX_FILES} are read")
    on_gpu = isinstance(hardware, GpuHardware)
    found = []
    for path in paths:
        document = read_document(path, MAX_BYTES)
        if document.at("schema").value != SCHEMA:
            document.at("schema").refuse(f"{SCHEMA}, which this version reads")
        kind = document.at("kind").text()
        if (kind == _GPU_KIND) != on_gpu:
            continue
        _expect_machine(document.at("machine"), hardware)
        found.append(_results(document, kind))
    return tuple(sorted(found, key=lambda r: (r.kind, r.set, r.threads)))


def _expect_machine(machine: Entry, hardware: CpuHardware | GpuHardware) -> None:
    """Raises DatasetError if the processor or a cache is another one. Of a GPU the architecture is
    compared: the model has a name of its own."""
    if isinstance(hardware, GpuHardware):
        name, expected = machine.at("architecture").value, hardware.architecture
        differs = name != expected
    else:
        name, expected = machine.at("cpu_model").text(), hardware.model_name
        caches = machine.at("cache_bytes", {}).table()
        own = {level.name: level.capacity_bytes for level in hardware.levels[:-1]}
        others = [level for level in own if caches.get(level, own[level]) != own[level]]
        differs = _FAMILY.sub("", name) != expected or bool(others)
        if others:
            name = f"{name} with another {', '.join(others)}"
    if differs:
        raise DatasetError(
            f"{machine.file} is of another machine, {name!r:.60}; this one is {expected!r}"
        )


def _results(document: Entry, kind: str) -> Results:
    compared = [
        Compared(case.at("label").text(), case.at("ratio").number(), case.at("best_peer").text())
        for case in document.at("cases", []).each()
        if case.at("ratio").value is not None
    ]
    return Results(
        kind, document.at("set", "").text(), document.at("threads", 0).integer(0),
        document.at("date", "").text(), tuple(compared),
    )  # fmt: skip
