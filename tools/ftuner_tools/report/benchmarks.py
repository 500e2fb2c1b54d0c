"""The section of benchmarks: ftuner beside its peers, from saved results."""

from __future__ import annotations

from ftuner.report.html import html, name_text, table
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.section import Section, missing, paragraphs

TITLE = "Benchmarks"
COMMAND, GPU_COMMAND = "python -m benchmarks.run gemm --threads 1,2", "python -m benchmarks.gpu"


def section(measured: Measured, on_gpu: bool) -> Section:
    """A row for each document that has ratios to the best peer; the others are named."""
    if not measured.results:
        return missing(TITLE, "results are", GPU_COMMAND if on_gpu else COMMAND)
    rows, others = [], []
    for results in measured.results:
        name = name_text(f"{results.kind} {results.set}")
        if not results.cases:
            others.append(f"{name} ({results.threads})")
            continue
        worst = results.worst
        rows.append(
            (name, str(results.threads), str(len(results.cases)), f"{results.geomean:.2f}",
             f"{worst.ratio:.2f}", f"{name_text(worst.label)}, {name_text(worst.peer)}",
             str(results.wins), str(len(results.cases) - results.wins),
             name_text(results.date[:10]))
        )  # fmt: skip
    said = (
        "The time of the best peer at each shape over ftuner's, from minima: above 1 ftuner is "
        "faster. Geometric means over the shapes of a set; least: the shape where ftuner compares "
        "worst, with the peer that is best there."
    )
    numbers = ("threads", "shapes", "geomean", "least", "wins", "losses")
    head = ("set", *numbers[:4], "at", *numbers[4:], "date")
    parts = [paragraphs(said), table(head, rows, (*numbers, "date"))]
    if others:
        parts.append(paragraphs(f"Without ratios to peers (threads): {', '.join(others)}."))
    return Section(TITLE, html(*parts))
