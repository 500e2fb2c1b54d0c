"""What all benches share: choosing peers, measuring in a child process, averaging ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ftuner.cli.child import Document, measured_in_child
from ftuner.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cli.model_peers import ModelEngine
    from ftuner.cli.peers import Engine


class Contest(NamedTuple):
    """The engines to time: ftuner, and the requested peers that are installed."""

    peers: tuple[str, ...]
    not_installed: tuple[str, ...]
    threads: int

    @property
    def engines(self) -> list[str]:
        from ftuner.cli.peers import SUBJECT

        return [SUBJECT, *self.peers]


def contest(
    engines: Mapping[str, Engine] | Mapping[str, ModelEngine],
    peers: str | None,
    threads: int | None,
) -> Contest:
    """The contest of the peers with the given names, separated by commas, or of all `engines`.
    `threads` is by default the number that ftuner uses.

    Raises:
        ConfigurationError: a name that `engines` lacks.
    """
    from ftuner import api
    from ftuner.cli.peers import SUBJECT

    known = [name for name in engines if name != SUBJECT]
    asked = known if peers is None else [p.strip() for p in peers.split(",") if p.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ConfigurationError(
            f"unknown peers {', '.join(unknown)}; known are {', '.join(known)}"
        )
    here = tuple(name for name in asked if engines[name].available())
    missing = tuple(name for name in asked if name not in here)
    return Contest(here, missing, threads or api.get_num_threads())


def measured(module: str, request: Mapping[str, Any], found: Contest) -> Document:
    """The document of the measuring process, with the geometric mean of each peer's ratios."""
    document = measured_in_child(module, request, found.threads)
    document["not_installed"] = list(found.not_installed)
    failed = document.get("failed", ())
    document["geomean"] = {
        name: geomean([r["ratios"][name] for r in document["results"] if name in r["ratios"]])
        for name in found.peers
        if name not in failed
    }
    return document


def geomean(ratios: Sequence[float]) -> float | None:
    """The geometric mean, or None if there are no ratios."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def ratio_table(subject: str, document: Document, ratio: str) -> Table:
    """A table without columns. Its title has the subject and the number of threads, its caption
    the meaning of `ratio` and the versions."""
    from rich.table import Table

    from ftuner.core.units import count

    versions = ", ".join(f"{name} {v}" for name, v in document["versions"].items())
    return Table(
        title=f"{subject} on {count(document['threads'], 'thread')}",
        title_justify="left",
        caption=f"ratio: {ratio}; {versions}",
        caption_justify="left",
    )
