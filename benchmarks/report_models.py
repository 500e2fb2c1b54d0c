"""The part of docs/performance.md that is about whole models, and its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.engines import SUBJECT
from benchmarks.markdown import both, number
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


def by_windows(documents: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: a file with the sounds and windows of a call, then for each document the
    ratio to the best peer, that of paired rounds, and the share of peak. The first row is the
    head."""
    head = ["file, sounds x windows"]
    cells: dict[str, dict[int, tuple[str, ...]]] = {}
    for column, document in enumerate(documents):
        threads = f"{document['threads']} thread{'s' if document['threads'] > 1 else ''}"
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


def draw_latency(documents: Sequence[Document], path: Path) -> None:
    """Latency over length, batch 1, of every engine; a panel for each thread count."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The same results give the same file.
    plt.rcParams["svg.hashsalt"] = "ftuner"
    figure, panels = plt.subplots(
        1, len(documents), figsize=(5 * len(documents), 4), layout="constrained", squeeze=False
    )
    for panel, document in zip(panels[0], documents, strict=True):
        for engine in document["engines"]:
            points = [
                (r["case"]["length"], 1e3 * r["engines"][engine]["min_s"])
                for r in document["cases"]
                if r["case"]["batch"] == 1 and "min_s" in r["engines"].get(engine, {})
            ]
            width = 2.0 if engine == SUBJECT else 1.0
            panel.plot(*zip(*points, strict=True), ".-", label=engine, linewidth=width)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(f"{document['set']}, batch 1, threads: {document['threads']}")
        panel.set_xlabel("tokens")
        panel.set_ylabel("milliseconds")
        panel.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
