"""Result documents: comparison with the peers, summaries, reading and writing."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftuner_tools import compact
from ftuner_tools.timing import geomean

SCHEMA = 1

Document = dict[str, Any]


def compare(engines: Mapping[str, Mapping[str, Any]], subject: str) -> dict[str, Any]:
    """The best peer and the subject's ratios to it, from each engine's seconds.

    A ratio is the peer's seconds over the subject's: above one, the subject is faster. None where
    the subject or every peer is missing or refused. The best peer is the one with the least
    minimum; for the ratio of medians, the one with the least median; for that of paired rounds
    (`Timing.to_json`), the one with the least.
    """
    timed = {name: entry for name, entry in engines.items() if "min_s" in entry}
    own = timed.get(subject)
    peers = {name: entry for name, entry in timed.items() if name != subject}
    best = min(peers, key=lambda name: peers[name]["min_s"], default=None)
    ratio = ratio_median = ratio_paired = None
    if own is not None and best is not None:
        ratio = peers[best]["min_s"] / own["min_s"]
        ratio_median = min(entry["median_s"] for entry in peers.values()) / own["median_s"]
        ratio_paired = min((e["paired"] for e in peers.values() if "paired" in e), default=None)
    return {
        "best_peer": best,
        "ratio": ratio,
        "ratio_median": ratio_median,
        "ratio_paired": ratio_paired,
    }


def compared(engines: Mapping[str, Mapping[str, Any]], subject: str) -> dict[str, Any]:
    """What results keep of engines that were timed in paired rounds: their times, and `compare`."""
    kept = {name: {k: x for k, x in e.items() if k != "paired"} for name, e in engines.items()}
    return {"engines": kept, **compare(engines, subject)}


def ratio_of(engines: Mapping[str, Mapping[str, Any]], peer: str, subject: str) -> float | None:
    """A peer's median over another engine's; None where one of them was not timed."""
    times = [engines.get(name, {}).get("median_s") for name in (peer, subject)]
    return times[0] / times[1] if times[0] and times[1] else None


@dataclass(frozen=True)
class Summary:
    """One document in a few numbers; ratios are from minima unless the name says otherwise."""

    cases: int
    """Cases that have a ratio."""
    geomean: float
    geomean_median: float
    geomean_paired: float
    """NaN where rounds were not paired."""
    least_paired: tuple[str, float] | None
    """Label and ratio."""
    wins: int
    """Cases where the subject beats every peer."""
    losses: tuple[tuple[str, str, float], ...]
    """Label, best peer and ratio of the other cases, worst first."""
    ratios: tuple[float, ...]
    """Of all cases that have one, lowest first."""
    worst: tuple[str, str, float] | None
    per_peer: dict[str, float]
    """Geometric mean of the ratio to each peer."""
    refused: tuple[tuple[str, str, str], ...]
    """Label, engine and reason of the outputs that were wrong."""
    fraction_of_peak: float
    """Geometric mean of the subject's share of the machine's peak; NaN if not known."""
    fraction_of_peak_paired: float
    """The same within rounds; NaN where the peak was not timed beside."""


def summarise(document: Document, subject: str = "ftuner") -> Summary:
    """The summary of one gemm or bmm document."""
    ratios, medians, fractions, fractions_paired = [], [], [], []
    paired: list[tuple[str, float]] = []
    per_peer: dict[str, list[float]] = {}
    refused = []
    for result in document["cases"]:
        engines = result["engines"]
        for name, entry in engines.items():
            if "refused" in entry:
                refused.append((result["label"], name, entry["refused"]))
        if result["ratio"] is None:
            continue
        ratios.append((result["label"], result["best_peer"], result["ratio"]))
        medians.append(result["ratio_median"])
        if result.get("ratio_paired"):
            paired.append((result["label"], result["ratio_paired"]))
        own = engines[subject]
        if own.get("fraction_of_peak"):
            fractions.append(own["fraction_of_peak"])
        if own.get("fraction_of_peak_paired"):
            fractions_paired.append(own["fraction_of_peak_paired"])
        for name, entry in engines.items():
            if name != subject and "min_s" in entry:
                per_peer.setdefault(name, []).append(entry["min_s"] / own["min_s"])
    ratios.sort(key=lambda row: row[2])
    losses = tuple(row for row in ratios if row[2] < 1.0)
    return Summary(
        cases=len(ratios),
        geomean=geomean(row[2] for row in ratios),
        geomean_median=geomean(medians),
        geomean_paired=geomean(ratio for _, ratio in paired),
        least_paired=min(paired, key=lambda row: row[1], default=None),
        wins=len(ratios) - len(losses),
        losses=losses,
        ratios=tuple(ratio for _, _, ratio in ratios),
        worst=ratios[0] if ratios else None,
        per_peer={name: geomean(values) for name, values in per_peer.items()},
        refused=tuple(refused),
        fraction_of_peak=geomean(fractions),
        fraction_of_peak_paired=geomean(fractions_paired),
    )


def save(document: Document, path: Path) -> None:
    """Write a document in its small form, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(compact.text(document))
    partial.replace(path)


def load(path: Path) -> Document:
    """Read a document; raises ValueError if it is not of this suite's schema."""
    document: Document = compact.whole(json.loads(path.read_text()))
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path.name}: schema {document.get('schema')!r}, expected {SCHEMA}")
    return document
