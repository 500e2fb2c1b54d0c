"""The few numbers of each machine that docs/performance.md and README.md show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import comparisons, report_decoding, report_zoo
from benchmarks.generating import IN_PLACE
from benchmarks.markdown import number, paragraphs, table
from benchmarks.recorded import Recorded
from benchmarks.results import Document, Summary, summarise
from ftuner_tools.timing import SUBJECT, geomean

WORKLOADS = (
    ("streams of shapes that never repeat", "unseen", ()),
    ("sentence encoder, by length", "model", ("minilm",)),
    ("vision networks, by resolution", "vision", ()),
    ("published architectures, hidden 192", report_zoo.KIND, ("small",)),
    ("published architectures, hidden 768", report_zoo.KIND, ("base",)),
    ("decoders, token by token", report_decoding.KIND, ()),
    ("LSTM and GRU layers, by length", "recurrent", ()),
    ("speech detectors, by sounds and windows", "speech", ()),
    ("convolutions, by resolution", "conv", ()),
    ("dense layers, by rows", "gemm", ("mlp",)),
    ("large dense layers", "gemm", ("deepbench", "dietcode", "inductor")),
    ("batched products", "bmm", ()),
    ("batches of sentences of unequal length", "ragged", ()),
    ("dense layers in 8 bits, by rows", "precisions", ("int8-dynamic",)),
    ("dense layers in bfloat16, by rows", "precisions", ("bfloat16",)),
    ("models in 8 bits, by form and size", "quantised", ("dynamic", "qdq", "qoperator")),
    ("models in float16, by size", "quantised", ("float16",)),
    ("modules of PyTorch", "torch-modules", ("cold",)),
)
"""What a row is called, its kind of document, and its sets: all of the kind if none is named."""
FRONT = (
    "unseen", "model", "vision", report_zoo.KIND, report_decoding.KIND, "gemm", *comparisons.FORMS,
)  # fmt: skip
"""Kinds of the rows that README.md shows."""
SUBJECTS = {report_decoding.KIND: IN_PLACE}
"""What is compared with the peers, where it is not `SUBJECT`."""
THREADS = (1, 2)
NONE = "–"


@dataclass(frozen=True)
class Row:
    """One workload on one machine, by its number of threads."""

    workload: str
    kind: str
    by_threads: dict[int, tuple[Summary, ...]]

    def shapes(self) -> int:
        return max(sum(s.cases for s in own) for own in self.by_threads.values())

    def ratio(self, threads: int) -> str:
        """Geometric mean over all shapes."""
        own = self.by_threads.get(threads, ())
        return number(geomean(r for s in own for r in s.ratios)) if own else NONE

    def slower(self) -> str:
        """In how many of all measurements ftuner is slower than the fastest peer."""
        own = [s for summaries in self.by_threads.values() for s in summaries]
        return f"{sum(len(s.losses) for s in own)} of {sum(s.cases for s in own)}"

    def lowest(self) -> str:
        worst = [s.worst for own in self.by_threads.values() for s in own if s.worst]
        label, peer, ratio = min(worst, key=lambda found: found[2])
        return f"{ratio:.2f} ({label}, {peer})"


def rows(machine: Recorded) -> list[Row]:
    """The workloads that were measured on a machine."""
    found = []
    for workload, kind, sets in WORKLOADS:
        own = [d for d in machine.of_kind(kind) if not sets or d["set"] in sets]
        by_threads = {t: _summaries(own, t) for t in THREADS}
        by_threads = {t: summaries for t, summaries in by_threads.items() if summaries}
        if by_threads:
            found.append(Row(workload, kind, by_threads))
    return found


def stream(document: Document) -> Document:
    """The times of a stream of new shapes as a case of other documents."""
    seconds = {case["label"]: case["first_s"] for case in document["cases"]}
    own = seconds.pop(SUBJECT)
    best = min(seconds, key=lambda name: seconds[name])
    engines = {SUBJECT: {"min_s": own}} | {name: {"min_s": s} for name, s in seconds.items()}
    ratio = seconds[best] / own
    return {
        "label": document["set"], "engines": engines, "best_peer": best, "ratio": ratio,
        "ratio_median": ratio,
    }  # fmt: skip


def _summaries(documents: Sequence[Document], threads: int) -> tuple[Summary, ...]:
    own = [document for document in documents if document["threads"] == threads]
    found = (summarise(_flat(d), SUBJECTS.get(d["kind"], SUBJECT)) for d in own)
    return tuple(summary for summary in found if summary.cases)


def _flat(document: Document) -> Document:
    """A document of architectures with the cases of all that its rows count; that of a stream with
    the stream as one case."""
    if document["kind"] == "unseen":
        return document | {"cases": [stream(document)]}
    if "results" not in document:
        return document
    counted = [result for result in document["results"] if not result.get("held_out")]
    cases = [case for result in counted for case in result.get("cases", ())]
    return document | {"cases": cases}


def performance(machines: Sequence[Recorded], pictures: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The lines of docs/performance.md between its markers: a table and pictures for each machine,
    and links to the pages of GPUs and of machines that only an earlier version was measured on.

    `pictures` are the paths of pictures below docs/performance, with their texts.
    """
    listed = []
    for machine in machines:
        found = rows(machine)
        if machine.state or not found:
            listed.append(machine)
            continue
        yield from paragraphs(f"## {machine.title}")
        head = ("workload", "shapes", "1 thread", "2 threads", "slower at", "lowest ratio")
        yield from table(
            head,
            (
                (r.workload, str(r.shapes()), r.ratio(1), r.ratio(2), r.slower(), r.lowest())
                for r in found
            ),
        )
        for path, text in pictures:
            if path.startswith(f"{machine.page}-"):
                yield from paragraphs(f"![{text}](performance/{path})")
        yield from paragraphs(
            f"Measured {machine.newest[:10]}. [All tables](performance/{machine.page}.md)."
        )
    if listed:
        yield from paragraphs("## GPUs, and earlier versions")
        for machine in listed:
            said = machine.state or f"Measured {machine.newest[:10]}."
            yield f"- [{machine.title}](performance/{machine.page}.md): {said}"
        yield ""


def front(machines: Sequence[Recorded]) -> Iterator[str]:
    """The lines of README.md between its markers: each workload on all machines."""
    head = ("workload", "machine", "shapes", "1 thread", "2 threads", "slower at")
    found = [
        (row, machine.title)
        for machine in machines
        if not machine.state
        for row in rows(machine)
        if row.kind in FRONT and not row.workload.startswith("large")
    ]
    order = [workload for workload, _, _ in WORKLOADS]
    found.sort(key=lambda pair: order.index(pair[0].workload))
    yield from table(
        head,
        (
            (row.workload, title, str(row.shapes()), row.ratio(1), row.ratio(2), row.slower())
            for row, title in found
        ),
    )
