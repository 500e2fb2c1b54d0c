"""Datasets of measured samples: one machine's plans, what the estimate said and what they took.

A dataset is a file of JSON lines. The first line describes the machine, each other line one sample.
`append` adds whole lines under a lock, so that processes which append at once lose nothing and an
interrupted one loses its last line at most. Datasets come from other machines, so `read` checks
every value, and nothing in one is executed.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from ftuner.core.cpu.tile import MAX_SEGMENTS
from ftuner.core.dtype import DTYPES
from ftuner.core.frozen import dataclass
from ftuner.cost.step import TERMS, Estimate
from ftuner.errors import DatasetError, DatasetWarning, FTunerError
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, to_document
from ftuner.learn import checked
from ftuner.learn.checked import Entry

KIND = "ftuner-samples"
SCHEMA = 1
"""Changes when the meaning of an entry does; files of other schemas are refused."""
SUFFIX = ".jsonl"
MAX_BYTES = 256 << 20
"""Of a file: half a million samples."""
MAX_LINE_BYTES = 1 << 20
"""Of a line. A sample takes about 600 bytes, a header some kilobytes."""
MAX_WORKERS = 1 << 12
"""Assumed: no machine has more cores. What is made of a plan grows with them."""
_LOCK_TIMEOUT_S = 60.0


class SampleProblem(NamedTuple):
    """Extents of the measured product."""

    m: int
    n: int
    k: int


class SamplePlan(NamedTuple):
    """How the product was computed."""

    grid: tuple[int, int, int, int]
    """Workers along batch, m, n and k."""
    width: int
    """Vectors of a panel."""
    kc: int
    """k steps of a block."""
    segments: tuple[tuple[int, int], ...]
    """(mr, tiles) of the worker that has the most rows, in the order in which they run."""


@dataclass(frozen=True)
class Sample:
    """One plan, measured."""

    isa: str
    dtype: str
    workers: int
    """Workers that the planner had; the grid may use fewer."""
    level: str
    """The memory level that the weight came from."""
    problem: SampleProblem
    plan: SamplePlan
    chosen: bool
    """Whether the planner takes this plan."""
    terms: Estimate
    """What the planner estimated."""
    seconds: float
    """Median of the rounds."""
    spread: float
    """Relative spread of the median."""
    rounds: int

    @property
    def log_ratio(self) -> float:
        """log(measured / estimated)."""
        return math.log(self.seconds) - math.log(self.terms.seconds)


@dataclass(frozen=True)
class Header:
    """The machine that samples were measured on."""

    hardware: CpuHardware
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that the measured times depend on."""
    date: str = ""

    @property
    def fingerprint(self) -> str:
        return self.hardware.fingerprint


@dataclass(frozen=True)
class Dataset:
    """The samples of one machine."""

    header: Header
    samples: tuple[Sample, ...]

    @property
    def hardware(self) -> CpuHardware:
        return self.header.hardware


def read(path: Path) -> Dataset:
    """The dataset in a file. A last line that was not written whole is left out, with a
    DatasetWarning.

    Raises:
        DatasetError: the file cannot be read, is too large, is of another schema, or has a line
            that is not a valid sample; the message names the line.
    """
    header: Header | None = None
    samples: list[Sample] = []
    number = 0
    with checked.opened(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise DatasetError(f"{path} has more than {MAX_BYTES} bytes")
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                raise DatasetError(f"{where} has more than {MAX_LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                _warn_cut_off(where)
                break
            if header is None:
                header = _header(checked.parsed(line, where))
                continue
            try:
                document = checked.parsed(line, where)
            except DatasetError:
                # A system that failed may have extended the file before it wrote the content.
                if file.read(1):
                    raise
                _warn_cut_off(where)
                break
            samples.append(_sample(document, header.hardware))
    if header is None:
        raise DatasetError(f"{path} has no header; expected a dataset of samples")
    return Dataset(header, tuple(samples))


def append(path: Path, header: Header, samples: Sequence[Sample]) -> None:
    """Add samples to a dataset; a file that is missing begins with `header`. Processes may append
    at once.

    Raises:
        DatasetError: the file is of another machine or schema, or cannot be written.
    """
    lines = b"".join(_line(_sample_document(sample)) for sample in samples)
    try:
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
            _append_locked(path, header, lines)
    except OSError as error:  # A lock that is not given in time is a TimeoutError.
        raise DatasetError(f"cannot write {path}: {error.strerror or error}") from error


def _append_locked(path: Path, header: Header, lines: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        checked.expect_file(path, file.fileno())
        first = file.readline(MAX_LINE_BYTES + 1)
        if first.endswith(b"\n"):
            found = _header(checked.parsed(first, f"{path}:1"))
            if found.fingerprint != header.fingerprint:
                raise DatasetError(
                    f"{path} has samples of {found.hardware.name} ({found.fingerprint}); these are "
                    f"of {header.hardware.name} ({header.fingerprint}): write to another file"
                )
            end = _end_of_lines(file, path)
        elif len(first) > MAX_LINE_BYTES:
            raise DatasetError(f"{path} is no dataset of samples: its first line is too long")
        else:
            # Empty, or a first append was interrupted while it wrote the header.
            if first:
                _warn_cut_off(f"{path}:1")
            lines = _line(_header_document(header)) + lines
            end = 0
        file.truncate(end)
        file.seek(end)
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(end)
            raise


def _end_of_lines(file: Any, path: Path) -> int:
    """The position after the last whole line. What follows was left by an interrupted process."""
    size = int(file.seek(0, os.SEEK_END))
    begin = max(size - MAX_LINE_BYTES, 0)
    file.seek(begin)
    end = begin + _read_all(file, size - begin).rfind(b"\n") + 1
    if end < size:
        _warn_cut_off(str(path))
    return end


def _read_all(file: Any, size: int) -> bytes:
    pieces = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _warn_cut_off(where: str) -> None:
    warnings.warn(
        f"{where}: the last line was not written whole; it is left out",
        DatasetWarning,
        stacklevel=4,
    )


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def _header_document(header: Header) -> dict[str, Any]:
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "fingerprint": header.fingerprint,
        "hardware": to_document(header.hardware),
        "versions": dict(header.versions),
        "date": header.date,
    }


def _sample_document(sample: Sample) -> dict[str, Any]:
    terms = sample.terms.terms()
    parts = {"problem": sample.problem._asdict(), "plan": sample.plan._asdict(), "terms": terms}
    return {name: parts.get(name, getattr(sample, name)) for name in _SAMPLE_NAMES}


def _header(found: Entry) -> Header:
    found.at("kind").one_of((KIND,))
    if found.at("schema").value != SCHEMA:
        found.at("schema").refuse(f"{SCHEMA}, which this version reads")
    found.having(_HEADER_NAMES)
    try:
        hardware = from_document(found.value["hardware"])
    except (FTunerError, RecursionError) as error:
        raise DatasetError(f"{found}: {error}") from error
    if not isinstance(hardware, CpuHardware):
        raise DatasetError(f"{found}: hardware is of kind {hardware.kind}; expected cpu")
    if found.value["fingerprint"] != hardware.fingerprint:
        found.at("fingerprint").refuse(f"{hardware.fingerprint}, that of its hardware")
    versions = found.at("versions")
    named = {name: versions.at(name).text() for name in versions.table()}
    return Header(hardware, named, found.at("date").text())


def _sample(found: Entry, hardware: CpuHardware) -> Sample:
    found.having(_SAMPLE_NAMES)
    workers = found.at("workers").integer(1, MAX_WORKERS)
    extents = found.at("problem").having(SampleProblem._fields)
    problem = SampleProblem(*(extents.at(name).integer() for name in SampleProblem._fields))
    plan = _plan(found.at("plan"))
    if math.prod(plan.grid) > workers:
        raise DatasetError(f"{found}: grid {list(plan.grid)} has more than {workers} workers")
    rows = sum(mr * tiles for mr, tiles in plan.segments)
    if rows > problem.m or (plan.grid[1] == 1 and rows != problem.m):
        raise DatasetError(f"{found}: segments have {rows} rows, the problem {problem.m}")
    seconds = found.at("terms")
    unknown = [name for name in seconds.table() if name not in TERMS]
    if unknown:
        raise DatasetError(f"{seconds} has the unknown entries {unknown}")
    terms = Estimate(**{name: seconds.at(name).number(zero=True) for name in seconds.value})
    if not 0.0 < terms.seconds < math.inf:
        raise DatasetError(f"{seconds} are {terms.seconds} s together; expected more than 0")
    if not isinstance(found.value["chosen"], bool):
        found.at("chosen").refuse("a boolean")
    return Sample(
        isa=found.at("isa").one_of([isa.name for isa in hardware.isas]),
        dtype=found.at("dtype").one_of(list(DTYPES)), workers=workers,
        level=found.at("level").one_of([level.name for level in hardware.levels]),
        problem=problem, plan=plan, chosen=found.value["chosen"], terms=terms,
        seconds=found.at("seconds").number(), spread=found.at("spread").number(zero=True),
        rounds=found.at("rounds").integer(),
    )  # fmt: skip


def _plan(found: Entry) -> SamplePlan:
    found.having(SamplePlan._fields)
    batch, m, n, k = found.at("grid").integers(4)
    segments = found.at("segments")
    if not isinstance(segments.value, list) or not 0 < len(segments.value) <= MAX_SEGMENTS:
        segments.refuse(f"1 to {MAX_SEGMENTS} pairs [mr, tiles]")
    pairs = (pair.integers(2) for pair in segments.each())
    return SamplePlan(
        (batch, m, n, k), found.at("width").integer(), found.at("kc").integer(),
        tuple((mr, tiles) for mr, tiles in pairs),
    )  # fmt: skip


_HEADER_NAMES = ("kind", "schema", "fingerprint", "hardware", "versions", "date")
_SAMPLE_NAMES = tuple(f.name for f in fields(Sample))
