"""Batches of requests of unequal length against the peers, as docs/batches.md shows them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.comparisons import BATCHES
from benchmarks.markdown import number, paragraphs, table
from benchmarks.recorded import Recorded
from benchmarks.results import Document
from ftuner.core.units import count
from ftuner_tools.timing import SUBJECT, geomean

CLIENTS = "clients"
"""The kind of document of `benchmarks.clients`."""
PADDED, SORTED, ONE_BY_ONE = "padded", "padded, sorted", "one by one"
WAYS = (PADDED, SORTED, ONE_BY_ONE)
"""How peers run a stream."""
OWN = f"{SUBJECT}, {ONE_BY_ONE}"
HEAD = (
    "model", "lengths", "batch", "padding", "padding, sorted", f"{SUBJECT}, k tokens/s",
    *WAYS, OWN,
)  # fmt: skip


def speed(machines: Sequence[Recorded]) -> Iterator[str]:
    """The lines of docs/batches.md between its markers, for each machine and number of threads."""
    for machine in machines:
        documents = machine.of_kind("ragged")
        for threads in sorted({document["threads"] for document in documents}):
            yield from paragraphs(f"{machine.title}, {count(threads, 'thread')}:")
            yield from rows([d for d in documents if d["threads"] == threads])
        for document in machine.of_kind(CLIENTS):
            yield from paragraphs(
                f"{machine.title}, {document['set']}, clients in a process of their own:"
            )
            yield from clients(document)


def rows(documents: Sequence[Document]) -> Iterator[str]:
    """A table of some documents, and geometric means: the tokens with padding over those without,
    the speed of batches, and the time of the fastest peer in each way over that of batches."""
    cases = [(document["set"], case) for document in documents for case in document["cases"]]
    yield from table(
        HEAD,
        (
            (
                model, case["lengths"], str(case["batch"]),
                *(number(case[kind] / case["tokens"]) for kind in ("padded", "sorted")),
                f"{case['tokens'] / case['seconds'][BATCHES] / 1e3:.1f}",
                *(number(min(_ratios(case, way).values(), default=None)) for way in WAYS),
                number(case["seconds"][OWN] / case["seconds"][BATCHES]),
            )
            for model, case in cases
        ),
    )  # fmt: skip
    for way in WAYS:
        found = [ratios for _, case in cases if (ratios := _ratios(case, way))]
        if not found:
            continue
        best = geomean(min(ratios.values()) for ratios in found)
        peers = dict.fromkeys(name for ratios in found for name in ratios)
        each = (f"{n} {geomean(r[n] for r in found if n in r):.2f}" for n in peers)
        yield f"- {way}, geometric means: {best:.2f}; {', '.join(each)}"
    own = geomean(case["seconds"][OWN] / case["seconds"][BATCHES] for _, case in cases)
    yield from paragraphs(f"- {OWN}: {own:.2f}")


def _ratios(case: Mapping[str, Any], way: str) -> dict[str, float]:
    """The time of each peer in a way, over that of batches; none for a stream of one batch, which
    is the same if it is sorted."""
    seconds = case["seconds"]
    if way == SORTED and case["sorted"] == case["padded"]:
        return {}
    return {
        name: s / seconds[BATCHES]
        for key, s in seconds.items()
        for name, _, how in (key.partition(", "),)
        if how == way and name != SUBJECT
    }


def clients(document: Document) -> Iterator[str]:
    """A table of requests of many clients: the speed of each way, and the latency of a request."""
    yield from table(
        ("lengths", "clients", "way", "k tokens/s", "median, ms", "99th percentile, ms"),
        (
            (
                case["lengths"], str(case["clients"]), way,
                f"{case['tokens'] / found['all_s'] / 1e3:.1f}",
                *(f"{1e3 * found[key]:.0f}" for key in ("p50_s", "p99_s")),
            )
            for case in document["cases"]
            for way, found in case["ways"].items()
        ),
    )  # fmt: skip
