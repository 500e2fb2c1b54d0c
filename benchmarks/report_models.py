"""The tables of one CPU's results that are about whole models."""

from collections.abc import Iterator, Sequence

from benchmarks.markdown import both, number
from benchmarks.results import Document
from ftuner.core.units import count
from ftuner_tools.timing import SUBJECT


def by_length(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: batch and length, then for each document the ratio to the best peer, the
    share of peak, and the first call over the tenth. The first row is the head."""
    head = ["batch x length"]
    cells: dict[str, list[str]] = {}
    for document in documents:
        threads = count(document["threads"], "thread")
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


def by_windows(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: a file with the sounds and windows of a call, then for each document the
    ratio to the best peer, that of paired rounds, and the share of peak. The first row is the
    head."""
    head = ["file, sounds x windows"]
    cells: dict[str, dict[int, tuple[str, ...]]] = {}
    for column, document in enumerate(documents):
        threads = count(document["threads"], "thread")
        head += [f"ratio, {threads}", "best peer", "paired", "share of peak"]
        for result in document["cases"]:
            own = result["engines"].get(SUBJECT, {})
            cells.setdefault(result["label"], {})[column] = (
                number(result["ratio"]),
                result["best_peer"] or "–",
                number(result["ratio_paired"]),
                both(own.get("fraction_of_peak"), own.get("fraction_of_peak_paired")),
            )
    yield tuple(head)
    empty = ("–",) * 4
    for label, row in cells.items():
        yield (label, *(cell for c in range(len(documents)) for cell in row.get(c, empty)))


def unprepared(documents: Sequence[Document]) -> Iterator[str]:
    """A line for each reason for which engines cannot prepare files."""
    files: dict[tuple[str, str], dict[str, None]] = {}
    for document in documents:
        for file, engines in document["unprepared"].items():
            for engine, why in engines.items():
                files.setdefault((engine, why), {})[file] = None
    for (engine, why), own in files.items():
        yield f"- {engine} cannot prepare {', '.join(own)}: {why}"


def starts(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table about loading; the first is the head."""
    yield ("engine", "import and load", "resident after one run of 1x128")
    for document in documents:
        for name, entry in document["engines"].items():
            resident = f"{entry['resident_bytes'] / 2**20:.0f} MiB"
            yield (name, f"{entry['load_s']:.2f} s", resident)
