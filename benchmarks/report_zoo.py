"""docs/zoo.md: published architectures, as exporters write them, against the peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import SUBJECT
from benchmarks.markdown import number, table
from benchmarks.results import Document, geomean, load
from benchmarks.zoo.architecture import SIZES
from benchmarks.zoo.checking import RIGHT, UNCOUNTED

KIND = "zoo"
GOAL, FLOOR = 1.15, 0.95
"""What the geometric mean of an architecture and its slowest shape are compared with."""

Result = Mapping[str, Any]


def recorded(results: Path) -> list[Document]:
    """The documents of `KIND` in the folders of `results`, the latest first."""
    documents = [load(path) for path in sorted(results.glob(f"*/{KIND}-*.json"))]
    own = [document for document in documents if document["kind"] == KIND]
    return sorted(own, key=lambda document: str(document["date"]), reverse=True)


def page(documents: Sequence[Document]) -> str:
    """The page, in Markdown, of documents of `KIND`."""
    lines = [
        "# Architectures",
        "",
        "Networks of the package `transformers` with random weights, written by PyTorch's exporter "
        "with dynamic batch, length or resolution. `python -m benchmarks.zoo` builds, checks and "
        "times them at eight shapes each; `python -m benchmarks.report` writes this page from its "
        "results.",
        "",
        "A ratio is the time of the faster of ONNX Runtime and OpenVINO over ftuner's, measured in "
        "one run with equal threads: above 1, ftuner is faster. *Around* is the share of a run "
        "that is spent outside products, convolutions, attention and recurrence, *first call* by "
        "how much the first call at a shape is longer than a later one (the worst of the eight).",
        "",
    ]
    machines: dict[str, list[Document]] = {}
    for document in documents:
        machines.setdefault(document["machine"]["cpu_model"], []).append(document)
    for machine, own in machines.items():
        lines += [f"## {machine}", ""]
        for size in SIZES:
            lines += _size(size, [d for d in own if d["set"] == size])
    return "\n".join(lines)


def _size(size: str, documents: Sequence[Document]) -> Iterator[str]:
    """The section of one size: a column group for each number of threads."""
    if not documents:
        return
    ordered = sorted(documents, key=lambda document: document["threads"])
    by_name = [{r["label"]: r for r in document["results"]} for document in ordered]
    yield f"### {size}: hidden {SIZES[size].hidden}, {SIZES[size].layers} layers"
    yield ""
    yield _taken(ordered[0])
    yield ""
    yield from _group(ordered, [_part(results, held_out=False) for results in by_name])
    held_out = [_part(results, held_out=True) for results in by_name]
    if any(held_out):
        yield f"#### {size}: held out"
        yield ""
        yield "Architectures that were taken when ftuner was done. Nothing was tuned for them."
        yield ""
        yield from _group(ordered, held_out)


def _part(results: Mapping[str, Result], held_out: bool) -> dict[str, Result]:
    """The results of architectures that are held out, or of the others."""
    return {name: r for name, r in results.items() if r.get("held_out", False) is held_out}


def _group(ordered: Sequence[Document], by_name: Sequence[Mapping[str, Result]]) -> Iterator[str]:
    """Verdicts and tables of some architectures: results by name for each document."""
    names = list(dict.fromkeys(name for results in by_name for name in results))
    for document, results in zip(ordered, by_name, strict=True):
        yield _verdict(document["threads"], list(results.values()))
    yield ""
    head = ["architecture", "kind"]
    for document in ordered:
        head.append(f"ratio (least), {_threads(document['threads'])}")
    head += ["around", "first call", "load"]
    rows = []
    for name in names:
        found = [results.get(name) for results in by_name]
        timed = [r for r in found if r is not None and r.get("cases")]
        if timed:
            rows.append((name, timed[0]["kind"], *map(_ratio, found), *_costs(timed[0])))
    yield from table(head, rows)
    yield from _without_times(names, by_name)


def _taken(document: Document) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return f"Measured on {document['date'][:10]} with {versions}."


def _threads(count: int) -> str:
    return f"{count} thread" + ("s" if count != 1 else "")


def _verdict(threads: int, results: Sequence[Result]) -> str:
    """How many architectures are right, and how many reach the goals."""
    counted = [r for r in results if r["verdict"] not in UNCOUNTED]
    right = [r for r in counted if r["verdict"] == RIGHT]
    means = {r["label"]: geomean(_ratios(r)) for r in right if _ratios(r)}
    reached = sum(mean >= GOAL for mean in means.values())
    shapes = [ratio for r in right for ratio in _ratios(r)]
    slow = sum(ratio < FLOOR for ratio in shapes)
    return (
        f"- {_threads(threads)}: {len(right)} of {len(counted)} are right at every shape. The "
        f"geometric mean over all shapes is {number(geomean(shapes))}; {reached} of {len(means)} "
        f"architectures reach {GOAL}, and {slow} of {len(shapes)} shapes are below {FLOOR}."
    )


def _ratios(result: Result) -> list[float]:
    return [case["ratio"] for case in result.get("cases", ()) if case["ratio"] is not None]


def _ratio(result: Result | None) -> str:
    ratios = _ratios(result) if result is not None else []
    return f"{number(geomean(ratios))} ({number(min(ratios))})" if ratios else number(None)


def _costs(result: Result) -> tuple[str, str, str]:
    cases = result["cases"]
    around = sum(case["share_around"] for case in cases) / len(cases)
    longer = max(case["first_s"] - case["engines"][SUBJECT]["median_s"] for case in cases)
    return f"{around:.0%}", f"{longer * 1e3:.1f} ms", f"{result['load_s']:.2f} s"


def _without_times(
    names: Sequence[str], by_name: Sequence[Mapping[str, Result]]
) -> Iterator[str]:  # fmt: skip
    """What has no row above, and why."""
    rows = []
    for name in names:
        result = next(results[name] for results in by_name if name in results)
        if result["verdict"] != RIGHT:
            why = str(result["why"]).replace("|", "\\|")
            rows.append((name, result["verdict"], why[:120]))
    if rows:
        yield "Not timed:"
        yield ""
        yield from table(("architecture", "verdict", "why"), rows)
