"""What `python -m benchmarks.machines` found: regret, rank correlation, transfer, times over m."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ftuner.errors import DatasetError
from ftuner.learn import checked
from ftuner.learn.checked import Entry
from ftuner_tools.compact import whole

SCHEMA = 1
MAX_BYTES = 16 << 20
"""Largest file that is read: a hundred times what a run writes."""
STAGES = ("prior", "calibrated", "thorough")
"""What plans were chosen by: the constants of the source, those of this machine, and these after a
thorough calibration, which may learn a correction."""
MAX_SECONDS, MIN_SECONDS = 1e6, 1e-10
"""Range of measured times: a tenth of a nanosecond is less than one cycle."""
MAX_SHARE = 1e6
"""Largest relative value, such as a regret or an error."""
_THREADS = re.compile(r"t([1-9]\d{0,3})")


class RegretCase(NamedTuple):
    """One shape: the chosen plan beside the best measured one."""

    case: str
    level: str
    """The memory level that the weight came from."""
    chosen_s: float
    best_s: float
    best: str
    regret: float
    """How much longer the chosen plan takes, relatively."""
    noise: float
    """Relative, of the regret's measurement."""


@dataclass(frozen=True)
class Regret:
    """The regret of one stage with one number of threads."""

    mean: float
    worst: float
    cases: tuple[RegretCase, ...]


class Transfer(NamedTuple):
    """The error of one way to predict a machine from others and a few of its own measurements."""

    target: str
    method: str
    measurements: int
    error: float
    """Mean of |log(measured / predicted)|."""
    picked: str = ""
    """How the measured plans were picked, where several ways are compared."""


@dataclass(frozen=True)
class Cliffs:
    """Measured time of products with one weight over the number of rows, on one worker."""

    n: int
    k: int
    level: str
    m: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Findings:
    """All that a file says; what it does not have is empty."""

    regret: Mapping[str, Mapping[int, Regret]] = field(default_factory=dict)
    """By stage and threads."""
    rank: Mapping[str, float] = field(default_factory=dict)
    """Kendall's tau between estimated and measured times of the plans of a problem, by estimate."""
    transfer: tuple[Transfer, ...] = ()
    cliffs: tuple[Cliffs, ...] = ()


def read_findings(path: Path, fingerprint: str | None) -> Findings:
    """The findings in a file. `fingerprint`: of the machine that they must be of, if the file names
    one.

    Raises:
        DatasetError: the file cannot be read, is too large, of another schema or machine, or has a
            value that is not valid; the message names the place.
    """
    found = read_document(path, MAX_BYTES)
    if found.at("schema", SCHEMA).value != SCHEMA:
        found.at("schema").refuse(f"{SCHEMA}, which this version reads")
    given = found.at("fingerprint", fingerprint)
    if given.value != fingerprint:
        other = f"another machine, {given.shown}"
        raise DatasetError(f"{path} is of {other}; this one is {fingerprint}")
    if not found.table().keys() & {"regret", "rank", "transfer", "cliffs"}:
        raise DatasetError(f"{path} has none of regret, rank, transfer and cliffs")
    regret, rank = found.at("regret", {}), found.at("rank", {})
    return Findings(
        {
            Entry(stage, str(regret)).one_of(STAGES): _by_threads(regret.at(stage))
            for stage in regret.table()
        },
        {name: _correlation(rank.at(name)) for name in rank.table()},
        tuple(map(_transfer, found.at("transfer", []).each())),
        tuple(map(_cliffs, found.at("cliffs", []).each())),
    )


def read_document(path: Path, most_bytes: int) -> Entry:
    """The document in a file of results, which may be in its small form.

    Raises:
        DatasetError: the file cannot be read, is larger than `most_bytes`, or is no document.
    """
    found = checked.document(path, most_bytes)
    try:
        return found._replace(value=whole(found.table()))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {error}") from error


def _by_threads(found: Entry) -> dict[int, Regret]:
    regrets = {}
    for name in found.table():
        threads = _THREADS.fullmatch(name)
        if threads is None:
            raise DatasetError(f"{found} has {name!r:.60}; expected t1, t2, ...")
        regrets[int(threads[1])] = _regret(found.at(name))
    return regrets


def _regret(found: Entry) -> Regret:
    mean, worst = (_share(found.at(name)) for name in ("mean", "worst"))
    return Regret(mean, worst, tuple(map(_case, found.at("cases").each())))


def _case(found: Entry) -> RegretCase:
    return RegretCase(
        found.at("case").text(), found.at("level").text(), seconds_within(found.at("chosen_s")),
        seconds_within(found.at("best_s")), found.at("best").text(), _share(found.at("regret")),
        _share(found.at("noise")),
    )  # fmt: skip


def seconds_within(value: Entry) -> float:
    """A measured time in the range that charts can draw."""
    found = value.number()
    if not MIN_SECONDS <= found <= MAX_SECONDS:
        raise DatasetError(f"{value} is {found} s; expected {MIN_SECONDS:g} to {MAX_SECONDS:g}")
    return found


def _share(value: Entry) -> float:
    found = value.number(zero=True)
    if found > MAX_SHARE:
        raise DatasetError(f"{value} is {found}; expected at most {MAX_SHARE:g}")
    return found


def _correlation(found: Entry) -> float:
    value = found.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= 1:
        found.refuse("a number from -1 to 1")
    return float(value)


def _transfer(found: Entry) -> Transfer:
    return Transfer(
        found.at("target").text(), found.at("method").text(), found.at("measurements").integer(0),
        _share(found.at("error")), found.at("picked", "").text(),
    )  # fmt: skip


def _cliffs(found: Entry) -> Cliffs:
    rows, seconds = found.at("m").each(), found.at("seconds").each()
    if len(rows) != len(seconds):
        raise DatasetError(f"{found} has {len(rows)} values of m and {len(seconds)} of seconds")
    return Cliffs(
        found.at("n").integer(), found.at("k").integer(), found.at("level").text(),
        tuple(m.integer() for m in rows), tuple(map(seconds_within, seconds)),
    )  # fmt: skip
