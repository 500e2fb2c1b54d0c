"""What `python -m benchmarks.machines` found: regret, rank correlation, transfer, times over m."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ftuner.errors import DatasetError
from ftuner.learn import checked
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
    found, where = read_document(path, MAX_BYTES), str(path)
    if found.get("schema", SCHEMA) != SCHEMA:
        schema = checked.shown(found["schema"])
        raise DatasetError(f"{where}: schema is {schema}; this version reads {SCHEMA}")
    given = found.get("fingerprint", fingerprint)
    if given != fingerprint:
        raise DatasetError(
            f"{where} is of another machine, {checked.shown(given)}; this one is {fingerprint}"
        )
    if not found.keys() & {"regret", "rank", "transfer", "cliffs"}:
        raise DatasetError(f"{where} has none of regret, rank, transfer and cliffs")
    regret = checked.table(found.get("regret", {}), f"{where}: regret")
    rank = checked.table(found.get("rank", {}), f"{where}: rank")
    transfer = checked.items(found.get("transfer", []), f"{where}: transfer")
    cliffs = checked.items(found.get("cliffs", []), f"{where}: cliffs")
    return Findings(
        {
            checked.one_of(stage, STAGES, f"{where}: regret"): _by_threads(
                by_threads, f"{where}: regret.{stage}"
            )
            for stage, by_threads in regret.items()
        },
        {name: _correlation(value, f"{where}: rank.{name}") for name, value in rank.items()},
        tuple(_transfer(entry, f"{where}: transfer[{i}]") for i, entry in enumerate(transfer)),
        tuple(_cliffs(entry, f"{where}: cliffs[{i}]") for i, entry in enumerate(cliffs)),
    )


def read_document(path: Path, most_bytes: int) -> dict[str, Any]:
    """The document in a file of results, which may be in its small form.

    Raises:
        DatasetError: the file cannot be read, is larger than `most_bytes`, or is no document.
    """
    found = checked.document(path, most_bytes)
    try:
        return checked.table(whole(found), str(path))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {error}") from error


def _by_threads(document: Any, where: str) -> dict[int, Regret]:
    found = {}
    for name, entry in checked.table(document, where).items():
        threads = _THREADS.fullmatch(name)
        if threads is None:
            raise DatasetError(f"{where} has {checked.shown(name)}; expected t1, t2, ...")
        found[int(threads[1])] = _regret(entry, f"{where}.{name}")
    return found


def _regret(document: Any, where: str) -> Regret:
    entries = _entries(document, ("mean", "worst", "cases"), where)
    cases = checked.items(entries["cases"], f"{where}.cases")
    return Regret(
        _share(entries["mean"], f"{where}.mean"),
        _share(entries["worst"], f"{where}.worst"),
        tuple(_case(entry, f"{where}.cases[{i}]") for i, entry in enumerate(cases)),
    )


def _case(document: Any, where: str) -> RegretCase:
    entries = _entries(document, RegretCase._fields, where)
    case, level, best = (
        checked.text(entries[name], f"{where}.{name}") for name in ("case", "level", "best")
    )
    chosen_s, best_s = (
        seconds_within(entries[name], f"{where}.{name}") for name in ("chosen_s", "best_s")
    )
    regret, noise = (_share(entries[name], f"{where}.{name}") for name in ("regret", "noise"))
    return RegretCase(case, level, chosen_s, best_s, best, regret, noise)


def seconds_within(value: Any, where: str) -> float:
    """A measured time in the range that charts can draw."""
    found = checked.number(value, where)
    if not MIN_SECONDS <= found <= MAX_SECONDS:
        raise DatasetError(f"{where} is {found} s; expected {MIN_SECONDS:g} to {MAX_SECONDS:g}")
    return found


def _share(value: Any, where: str) -> float:
    found = checked.number(value, where, zero=True)
    if found > MAX_SHARE:
        raise DatasetError(f"{where} is {found}; expected at most {MAX_SHARE:g}")
    return found


def _correlation(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= 1:
        raise DatasetError(f"{where} is {checked.shown(value)}; expected a number from -1 to 1")
    return float(value)


def _transfer(document: Any, where: str) -> Transfer:
    entries = _entries(document, ("target", "method", "measurements", "error"), where)
    measurements = entries["measurements"]
    if measurements != 0 or isinstance(measurements, bool):
        measurements = checked.integer(measurements, f"{where}.measurements")
    return Transfer(
        checked.text(entries["target"], f"{where}.target"),
        checked.text(entries["method"], f"{where}.method"),
        int(measurements),
        _share(entries["error"], f"{where}.error"),
        checked.text(entries.get("picked", ""), f"{where}.picked"),
    )


def _cliffs(document: Any, where: str) -> Cliffs:
    entries = _entries(document, ("n", "k", "level", "m", "seconds"), where)
    rows = checked.items(entries["m"], f"{where}.m")
    seconds = checked.items(entries["seconds"], f"{where}.seconds")
    if len(rows) != len(seconds):
        raise DatasetError(f"{where} has {len(rows)} values of m and {len(seconds)} of seconds")
    return Cliffs(
        checked.integer(entries["n"], f"{where}.n"),
        checked.integer(entries["k"], f"{where}.k"),
        checked.text(entries["level"], f"{where}.level"),
        tuple(checked.integer(m, f"{where}.m") for m in rows),
        tuple(seconds_within(s, f"{where}.seconds") for s in seconds),
    )


def _entries(document: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """The entries of an object, with at least these names."""
    entries = checked.table(document, where)
    lacking = [name for name in names if name not in entries]
    if lacking:
        raise DatasetError(f"{where} lacks {', '.join(lacking)}")
    return entries
