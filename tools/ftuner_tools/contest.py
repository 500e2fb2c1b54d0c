"""What all benches share: choosing peers, measuring in a child process, averaging ratios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ftuner import errors
from ftuner.core.child_processes import python_child
from ftuner_tools.timing import SUBJECT, geomean

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner_tools.measuring import Request

MEASURING = "ftuner_tools.measuring"
"""The module of the measuring process: its request is its argument."""
Document = dict[str, Any]


class Peer(Protocol):
    """An engine, which may be installed."""

    def available(self) -> bool: ...


class Contest(NamedTuple):
    """The engines to time: ftuner, and the requested peers that are installed."""

    peers: tuple[str, ...]
    not_installed: tuple[str, ...]
    threads: int

    @property
    def engines(self) -> list[str]:
        return [SUBJECT, *self.peers]


def contest(peers: Mapping[str, Peer], wanted: str | None, threads: int | None) -> Contest:
    """The contest of the peers with the names `wanted`, separated by commas, or of all. `threads`
    is by default the number that ftuner uses.

    Raises:
        ConfigurationError: a name that `peers` lacks.
    """
    from ftuner import api

    asked = [*peers] if wanted is None else [p.strip() for p in wanted.split(",") if p.strip()]
    unknown = [name for name in asked if name not in peers]
    if unknown:
        raise errors.ConfigurationError(
            f"unknown peers {', '.join(unknown)}; known are {', '.join(peers)}"
        )
    here = tuple(name for name in asked if peers[name].available())
    missing = tuple(name for name in asked if name not in here)
    return Contest(here, missing, threads or api.get_num_threads())


def measured(request: Request, found: Contest) -> Document:
    """The document of the measuring process, with the geometric mean of each peer's ratios. Its
    progress goes to stderr.

    Raises:
        ConfigurationError: there is no Python interpreter to start, as in a frozen program.
        FTunerError: the process raised it, or ended without a document.
    """
    document = _answered(request)
    document["not_installed"] = list(found.not_installed)
    failed = document.get("failed", ())
    document["geomean"] = {
        name: mean(r["ratios"][name] for r in document["results"] if name in r["ratios"])
        for name in found.peers
        if name not in failed
    }
    return document


def _answered(request: Request) -> Document:
    count = str(request["threads"])
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    child = python_child("measure", {**os.environ, **dict.fromkeys(names, count)})
    if child is None:
        raise errors.ConfigurationError(
            f"measuring needs a Python interpreter to start; sys.executable is {sys.executable!r}"
        )
    # A session of its own: Ctrl-C interrupts this process alone, which then ends the other one.
    done = subprocess.run(
        [*child.command, "-m", MEASURING, json.dumps(request)], env=child.environment,
        stdout=subprocess.PIPE, check=False, start_new_session=True,
    )  # fmt: skip
    if done.returncode:
        raise errors.FTunerError(f"the measuring process ended with exit code {done.returncode}")
    document: Document = json.loads(done.stdout)
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"])
    return document


def mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean, or None if there are no ratios."""
    known = list(ratios)
    return geomean(known) if known else None


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def ratio_table(
    subject: str, document: Document, ratio: str, head: Sequence[str],
    rows: Iterable[Sequence[str] | None],
) -> Table:  # fmt: skip
    """A table as `ftuner.report.tables.table`. Its title has the subject and the number of threads,
    its caption the meaning of `ratio` and the versions."""
    from ftuner.core.units import count
    from ftuner.report.tables import table

    versions = ", ".join(f"{name} {v}" for name, v in document["versions"].items())
    title = f"{subject} on {count(document['threads'], 'thread')}"
    caption = f"ratio: {ratio}; {versions}"
    return table(title, head, rows, caption=caption, caption_justify="left")
