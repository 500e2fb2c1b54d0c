"""Results of benchmarks beside peers, from the folder of a machine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware
from ftuner.learn import checked
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
        where = str(path)
        if document.get("schema") != SCHEMA:
            schema = checked.shown(document.get("schema"))
            raise DatasetError(f"{where}: schema is {schema}; this version reads {SCHEMA}")
        kind = checked.text(document.get("kind"), f"{where}: kind")
        if (kind == _GPU_KIND) != on_gpu:
            continue
        _expect_machine(document.get("machine"), hardware, where)
        found.append(_results(document, kind, where))
    return tuple(sorted(found, key=lambda r: (r.kind, r.set, r.threads)))


def _expect_machine(document: Any, hardware: CpuHardware | GpuHardware, where: str) -> None:
    """Raises DatasetError if the processor or a cache is another one. Of a GPU the architecture is
    compared: the model has a name of its own."""
    machine = checked.table(document, f"{where}: machine")
    if isinstance(hardware, GpuHardware):
        name, expected = machine.get("architecture"), hardware.architecture
        differs = name != expected
    else:
        name = checked.text(machine.get("cpu_model"), f"{where}: machine.cpu_model")
        expected = hardware.model_name
        caches = checked.table(machine.get("cache_bytes", {}), f"{where}: machine.cache_bytes")
        own = {level.name: level.capacity_bytes for level in hardware.levels[:-1]}
        others = [level for level in own if caches.get(level, own[level]) != own[level]]
        differs = _FAMILY.sub("", name) != expected or bool(others)
        if others:
            name = f"{name} with another {', '.join(others)}"
    if differs:
        raise DatasetError(
            f"{where} is of another machine, {checked.shown(name)}; this one is {expected!r}"
        )


def _results(document: dict[str, Any], kind: str, where: str) -> Results:
    cases = checked.items(document.get("cases", []), f"{where}: cases")
    threads = document.get("threads", 0)
    if threads != 0 or isinstance(threads, bool):
        threads = checked.integer(threads, f"{where}: threads")
    compared = []
    for i, entry in enumerate(cases):
        case = checked.table(entry, f"{where}: cases[{i}]")
        if case.get("ratio") is not None:
            compared.append(
                Compared(
                    checked.text(case.get("label"), f"{where}: cases[{i}].label"),
                    checked.number(case["ratio"], f"{where}: cases[{i}].ratio"),
                    checked.text(case.get("best_peer"), f"{where}: cases[{i}].best_peer"),
                )
            )
    return Results(
        kind,
        checked.text(document.get("set", ""), f"{where}: set"),
        int(threads),
        checked.text(document.get("date", ""), f"{where}: date"),
        tuple(compared),
    )
