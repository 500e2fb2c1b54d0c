"""Whole models on a GPU, as the report shows them."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.markdown import number, paragraphs, table
from benchmarks.results import Document, ratio_of
from ftuner_tools.timing import geomean

SUBJECT, LAUNCHES = "ftuner", "ftuner, launches"
EAGER, COMPILED, GRAPH = "torch", "torch.compile", ", CUDA graph"
PADDED, STATIC = "torch, padded to ", "torch.compile for a bucket"
"""Engines, by the names in results."""

Case = Mapping[str, Any]


def models(document: Document) -> Iterator[str]:
    """All tables of the section."""
    shapes = [case for case in document["cases"] if "bucket" not in case]
    buckets = [case for case in document["cases"] if "bucket" in case]
    yield from paragraphs(
        "## Models",
        "Times are what the caller waits for. Launches of ours, with nothing recorded, are beside "
        "the best of eager PyTorch and `torch.compile(dynamic=True)` without CUDA graphs. ftuner "
        "as users get it, which by itself records shapes that come again, is beside the best of "
        "these two in a CUDA graph captured for the shape, and of PyTorch padded to buckets with a "
        "CUDA graph each. All graphs are timed with the copy of the inputs, ours also with that of "
        "the outputs. Both of ours read after each run whether an index was out of range.",
    )
    yield from _tables(shapes)
    yield from _buckets(buckets)
    yield from refused(document["cases"])


def networks(document: Document) -> Iterator[str]:
    """All tables of the section of vision networks."""
    yield from paragraphs(
        "## Vision networks",
        "As models; shapes are batches and sides of square pictures, channels last in PyTorch.",
    )
    yield from _tables(document["cases"])
    yield from refused(document["cases"])


def recurrent(document: Document) -> Iterator[str]:
    """All tables of the section of recurrent layers."""
    yield from paragraphs(
        "### Recurrent layers",
        "As models, each of one layer; PyTorch's are cuDNN's. Shapes are batches and lengths.",
    )
    yield from _tables(document["cases"])
    yield from refused(document["cases"])


def _tables(shapes: Sequence[Case]) -> Iterator[str]:
    by_model: dict[str, list[Case]] = {}
    for case in shapes:
        by_model.setdefault(f"{case['model']}, {case['dtype']}", []).append(case)
    yield from _overview(by_model)
    yield from _starts(by_model)
    yield from _by_shape(shapes)


def _plain(case: Case) -> float | None:
    return _best(case, (EAGER, COMPILED), LAUNCHES)


def _graph(case: Case) -> float | None:
    return _best(case, (EAGER + GRAPH, COMPILED + GRAPH), SUBJECT)


def _padded(case: Case) -> float | None:
    names = [n for n in case["engines"] if n.startswith(PADDED) and n.endswith(GRAPH)]
    return _best(case, names, SUBJECT)


def _best(case: Case, peers: Iterable[str], own: str) -> float | None:
    """The least median of some engines over that of another."""
    ratios = (ratio_of(case["engines"], peer, own) for peer in peers)
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _mean(ratios: Iterable[float | None]) -> str:
    """The geometric mean of those that there are, and the least."""
    found = [ratio for ratio in ratios if ratio is not None]
    return f"{geomean(found):.2f} ({min(found):.2f})" if found else number(None)


def _overview(by_model: Mapping[str, list[Case]]) -> Iterator[str]:
    head = ("model", "shapes", "launches, against eager and compiled",
            "recorded, against the same in CUDA graphs",
            "recorded, against padding and CUDA graphs")  # fmt: skip
    yield from paragraphs("Geometric means, and the least:")
    yield from table(
        head,
        (
            (name, str(len(cases)), *(_mean(map(f, cases)) for f in (_plain, _graph, _padded)))
            for name, cases in by_model.items()
        ),
    )


def _starts(by_model: Mapping[str, list[Case]]) -> Iterator[str]:
    """What new shapes take and have compiled. The first of a process is not a new shape: all is
    compiled then."""
    rows = []
    for name, cases in by_model.items():
        later = [case["first_calls"] for case in cases if case["number"] > 0]
        for engine in (SUBJECT, EAGER, COMPILED):
            found = [first[engine] for first in later if engine in first]
            if found:
                first_ms, *later_ms = (
                    f"{1e3 * statistics.median(entry[key] for entry in found):.2f}"
                    for key in ("first_s", "second_s", "third_s", "last_s")
                )
                compiled = sum(entry["compiled"] for entry in found)
                rows.append(
                    (
                        name, engine, str(len(found)), first_ms,
                        f"{1e3 * max(entry['first_s'] for entry in found):.2f}", *later_ms,
                        str(compiled),
                    )
                )  # fmt: skip
    head = ("model", "engine", "new shapes", "first call, ms", "longest", "second call, ms",
            "third", "tenth", "compiled for them")  # fmt: skip
    if rows:
        yield from table(head, rows)


def _by_shape(cases: Iterable[Case]) -> Iterator[str]:
    rows = []
    for case in sorted(cases, key=lambda case: (case["model"], case["shape"])):
        own = [case["engines"].get(name, {}).get("median_s") for name in (LAUNCHES, SUBJECT)]
        milliseconds = [number(seconds and 1e3 * seconds) for seconds in own]
        rows.append(
            (
                case["label"], milliseconds[0], number(_plain(case)), milliseconds[1],
                number(_graph(case)), number(_padded(case)),
            )
        )  # fmt: skip
    head = ("model and shape", "ms, launches", "against eager and compiled", "ms, recorded",
            "against the same in CUDA graphs", "against padding and CUDA graphs")  # fmt: skip
    yield from table(head, rows)


def _buckets(cases: Iterable[Case]) -> Iterator[str]:
    """What was compiled for one bucket alone."""
    rows = []
    for case in cases:
        engine = next((n for n in (STATIC + GRAPH, STATIC) if n in case["engines"]), STATIC)
        own = [ratio_of(case["engines"], engine, name) for name in (SUBJECT, LAUNCHES)]
        rows.append(
            (
                case["label"].removesuffix(", bucket"), str(case["bucket"]),
                f"{case['compile_s']:.1f} s", *map(number, own),
            )
        )  # fmt: skip
    head = ("model and shape", "padded to", "its compile time", f"its time over {SUBJECT}'s",
            "over that of its launches")  # fmt: skip
    if rows:
        yield from paragraphs("Compiled by PyTorch for one bucket alone, in a CUDA graph:")
        yield from table(head, rows)


def refused(cases: Iterable[Case]) -> Iterator[str]:
    """Each reason once, with the shapes that it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for name, entry in case["engines"].items():
            if "refused" in entry:
                found.setdefault((name, entry["refused"]), []).append(case["label"])
    for (name, why), labels in found.items():
        first = why.splitlines()[0]
        yield f"- refused: {name} on {_listed(labels)}: {first}"
    if found:
        yield ""


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{len(labels)} cases ({labels[0]}, ...)"
