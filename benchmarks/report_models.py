"""The tables of one CPU's results that are about whole models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.engines import SUBJECT
from benchmarks.markdown import both
from benchmarks.results import Document


def by_length(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: batch and length, then for each document the ratio to the best peer, the
    share of peak, and the first call over the tenth. The first row is the head."""
    head = ["batch x length"]
    cells: dict[str, list[str]] = {}
    for document in documents:
        threads = f"{document['threads']} thread{'s' if document['threads'] > 1 else ''}"
        head += [f"ratio, {threads}", "best peer", "share of peak", "first call / tenth"]
        for result in document["cases"]:
            own = result["engines"][SUBJECT]
            row = cells.setdefault(result["label"], [])
            row += [
                f"{result['ratio']:.2f}",
                result["best_peer"],
                both(own.get("fraction_of_peak"), own.get("fraction_of_peak_paired")),
                f"{result['first_s'] / result['tenth_s']:.2f}",
            ]
    yield tuple(head)
    for label, row in cells.items():
        yield (label, *row)


def starts(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table about loading; the first is the head."""
    yield ("engine", "import and load", "resident after one run of 1x128")
    for document in documents:
        for name, entry in document["engines"].items():
            resident = f"{entry['resident_bytes'] / 2**20:.0f} MiB"
            yield (name, f"{entry['load_s']:.2f} s", resident)
