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
from ftuner.learn.checked import shown

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
                header = _header(checked.parsed(line, where), where)
                continue
            try:
                document = checked.parsed(line, where)
            except DatasetError:
                # A system that failed may have extended the file before it wrote the content.
                if file.read(1):
                    raise
                _warn_cut_off(where)
                break
            samples.append(_sample(document, header.hardware, where))
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
            found = _header(checked.parsed(first, f"{path}:1"), f"{path}:1")
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


def _header(document: Any, where: str) -> Header:
    entries = checked.table(document, where)
    if entries.get("kind") != KIND:
        raise DatasetError(f"{where}: kind is {shown(entries.get('kind'))}; expected {KIND!r}")
    if entries.get("schema") != SCHEMA:
        raise DatasetError(
            f"{where}: schema is {shown(entries.get('schema'))}; this version reads {SCHEMA}"
        )
    checked.expect_names(entries, _HEADER_NAMES, where)
    try:
        hardware = from_document(entries["hardware"])
    except (FTunerError, RecursionError) as error:
        raise DatasetError(f"{where}: {error}") from error
    if not isinstance(hardware, CpuHardware):
        raise DatasetError(f"{where}: hardware is of kind {hardware.kind}; expected cpu")
    if entries["fingerprint"] != hardware.fingerprint:
        raise DatasetError(
            f"{where}: fingerprint is {shown(entries['fingerprint'])}; the hardware has "
            f"{hardware.fingerprint}"
        )
    versions = checked.table(entries["versions"], f"{where}: versions")
    named = {
        name: checked.text(value, f"{where}: versions.{name}") for name, value in versions.items()
    }
    return Header(hardware, named, checked.text(entries["date"], f"{where}: date"))


def _sample(document: Any, hardware: CpuHardware, where: str) -> Sample:
    entries = checked.table(document, where)
    checked.expect_names(entries, _SAMPLE_NAMES, where)
    isa = checked.one_of(entries["isa"], [i.name for i in hardware.isas], f"{where}: isa")
    dtype = checked.one_of(entries["dtype"], list(DTYPES), f"{where}: dtype")
    level = checked.one_of(
        entries["level"], [level.name for level in hardware.levels], f"{where}: level"
    )
    workers = checked.integer(entries["workers"], f"{where}: workers")
    if workers > MAX_WORKERS:
        raise DatasetError(f"{where}: workers is {workers}; expected at most {MAX_WORKERS}")
    extents = checked.table(entries["problem"], f"{where}: problem")
    checked.expect_names(extents, SampleProblem._fields, f"{where}: problem")
    problem = SampleProblem(
        **{name: checked.integer(extents[name], f"{where}: problem.{name}") for name in extents}
    )
    plan = _plan(entries["plan"], f"{where}: plan")
    if math.prod(plan.grid) > workers:
        raise DatasetError(f"{where}: grid {list(plan.grid)} has more than {workers} workers")
    rows = sum(mr * tiles for mr, tiles in plan.segments)
    if rows > problem.m or (plan.grid[1] == 1 and rows != problem.m):
        raise DatasetError(f"{where}: segments have {rows} rows, the problem {problem.m}")
    seconds = checked.table(entries["terms"], f"{where}: terms")
    unknown = [name for name in seconds if name not in TERMS]
    if unknown:
        raise DatasetError(f"{where}: terms has the unknown entries {unknown}")
    terms = Estimate(
        **{
            name: checked.number(x, f"{where}: terms.{name}", zero=True)
            for name, x in seconds.items()
        }
    )
    if not 0.0 < terms.seconds < math.inf:
        raise DatasetError(f"{where}: terms are {terms.seconds} s together; expected more than 0")
    if not isinstance(entries["chosen"], bool):
        raise DatasetError(f"{where}: chosen is {shown(entries['chosen'])}; expected a boolean")
    return Sample(
        isa=isa, dtype=dtype, workers=workers, level=level, problem=problem, plan=plan,
        chosen=entries["chosen"], terms=terms,
        seconds=checked.number(entries["seconds"], f"{where}: seconds"),
        spread=checked.number(entries["spread"], f"{where}: spread", zero=True),
        rounds=checked.integer(entries["rounds"], f"{where}: rounds"),
    )  # fmt: skip


def _plan(document: Any, where: str) -> SamplePlan:
    entries = checked.table(document, where)
    checked.expect_names(entries, SamplePlan._fields, where)
    batch, m, n, k = checked.integers(entries["grid"], 4, f"{where}.grid")
    segments = entries["segments"]
    if not isinstance(segments, list) or not 0 < len(segments) <= MAX_SEGMENTS:
        raise DatasetError(
            f"{where}.segments is {shown(segments)}; expected 1 to {MAX_SEGMENTS} pairs [mr, tiles]"
        )
    pairs = [checked.integers(pair, 2, f"{where}.segments[{i}]") for i, pair in enumerate(segments)]
    return SamplePlan(
        grid=(batch, m, n, k),
        width=checked.integer(entries["width"], f"{where}.width"),
        kc=checked.integer(entries["kc"], f"{where}.kc"),
        segments=tuple((mr, tiles) for mr, tiles in pairs),
    )


_HEADER_NAMES = ("kind", "schema", "fingerprint", "hardware", "versions", "date")
_SAMPLE_NAMES = tuple(f.name for f in fields(Sample))
