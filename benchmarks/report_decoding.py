"""The part of docs/zoo.md about decoders: a new token after texts of several lengths."""

from collections.abc import Iterator, Sequence

from benchmarks.markdown import number, paragraphs, table
from benchmarks.results import Document
from ftuner_tools.timing import geomean

KIND = "decoding"
EXPLAINED = (
    "`python -m benchmarks.decoding` generates 14 tokens after a text of random keys and values, "
    "and times the last 12: each step's keys and values are inputs of the next one. ftuner appends "
    "in place (`append_in_place=True`). A ratio is the time of the fastest peer over ftuner's. The "
    "peers are ONNX Runtime with arrays and with bound values, and OpenVINO with the file as it is "
    "and with its stateful transformation. *Copied* is the time of ftuner without appending in "
    "place over its time with it, at the longest past. All these are times of a generation over "
    "lengths that an engine has met before; *new lengths* is the mean ratio of the first "
    "generation, in which an engine prepares itself for each length. A network with a sliding "
    "window of 512 tokens keeps no more than 511 rows of a longer past."
)


def section(documents: Sequence[Document]) -> Iterator[str]:
    """A table of documents of `KIND` of one machine and size; nothing without any."""
    ordered = sorted(documents, key=lambda document: document["threads"])
    rows = [
        (document["threads"], result["label"], batch, cases)
        for document in ordered for result in document["results"]
        for batch, cases in _by_batch(result["cases"]).items()
    ]  # fmt: skip
    if not rows:
        return
    lengths = sorted({length for *_, cases in rows for length in cases})
    yield from paragraphs("#### Decoding, token by token", EXPLAINED)
    head = ["architecture", "threads", "batch", *(f"past {n}" for n in lengths), "copied",
            "new lengths"]  # fmt: skip
    yield from table(head, (_row(*row, lengths) for row in rows))


def _by_batch(cases: Sequence[Document]) -> dict[int, dict[int, Document]]:
    """The cases by batch and length of the past."""
    found: dict[int, dict[int, Document]] = {}
    for case in cases:
        found.setdefault(case["batch"], {})[case["past"]] = case
    return found


def _row(
    threads: int, label: str, batch: int, cases: dict[int, Document], lengths: Sequence[int]
) -> list[str]:
    ratios = [cases[length]["ratio"] if length in cases else None for length in lengths]
    first = [case["ratio_first"] for case in cases.values() if case["ratio_first"] is not None]
    return [label, str(threads), str(batch), *map(number, ratios),
            number(cases[max(cases)]["ratio_copied"]), number(geomean(first))]  # fmt: skip
