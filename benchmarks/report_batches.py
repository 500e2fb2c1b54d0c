"""Tokens per second of batches of unequal length, as docs/batches.md shows them."""

from collections.abc import Iterator, Sequence

from benchmarks.markdown import table
from benchmarks.recorded import Recorded


def speed(machines: Sequence[Recorded]) -> Iterator[str]:
    """The lines of docs/batches.md between its markers: thousands of tokens per second by each
    engine, for each set of lengths and size of batch."""
    for machine in machines:
        for document in machine.of_kind("ragged"):
            threads = "1 thread" if document["threads"] == 1 else f"{document['threads']} threads"
            yield f"{machine.title}, {document['set']}, {threads}, thousands of tokens a second:"
            yield ""
            engines = list(document["cases"][0]["seconds"])
            yield from table(
                ("lengths", "batch", *engines),
                (
                    (
                        case["lengths"], str(case["batch"]),
                        *(f"{case['tokens'] / s / 1e3:.1f}" for s in case["seconds"].values()),
                    )
                    for case in document["cases"]
                ),
            )  # fmt: skip
