"""docs/zoo.md: published architectures, as exporters write them, against the peers; and whether
other files of them are right."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report_decoding
from benchmarks.markdown import number, paragraphs, table
from benchmarks.results import Document, load
from benchmarks.zoo.architecture import SIZES
from benchmarks.zoo.checking import RIGHT, UNCOUNTED
from benchmarks.zoo.recognised import RECOGNISED
from benchmarks.zoo.variants import VARIANTS
from ftuner.core.units import count
from ftuner_tools.timing import SUBJECT, geomean

KIND = "zoo"
CHECK = "zoo-check"
GOAL, FLOOR = 1.15, 0.95
"""What the geometric mean of an architecture and its slowest shape are compared with."""

VARIANTS_SIZE = "small"

Result = Mapping[str, Any]


def recorded(results: Path) -> list[Document]:
    """The documents that the page is about in the folders of `results`, the latest first."""
    kinds = (KIND, CHECK, report_decoding.KIND)
    paths = sorted(path for kind in kinds for path in results.glob(f"*/{kind}-*.json"))
    own = [load(path) for path in dict.fromkeys(paths)]
    return sorted(own, key=lambda document: str(document["date"]), reverse=True)


def page(documents: Sequence[Document]) -> str:
    """The page, in Markdown, of documents of times, of checks and of decoding."""
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
        if document["kind"] not in (KIND, report_decoding.KIND):
            continue
        machines.setdefault(document["machine"]["cpu_model"], []).append(document)
    for machine, own in machines.items():
        lines += [f"## {machine}", ""]
        for size in SIZES:
            of_size = [d for d in own if d["set"] == size]
            whole, decoding = (
                [d for d in of_size if d["kind"] == kind] for kind in (KIND, report_decoding.KIND)
            )
            if of_size:
                lines += [
                    f"### {size}: hidden {SIZES[size].hidden}, {SIZES[size].layers} layers",
                    "",
                ]
            lines += [*_size(whole), *report_decoding.section(decoding)]
    lines += _variants(documents)
    return "\n".join(lines)


def _size(documents: Sequence[Document]) -> Iterator[str]:
    """The architectures of one size: a column group for each number of threads."""
    if not documents:
        return
    ordered = sorted(documents, key=lambda document: document["threads"])
    by_name = [{r["label"]: r for r in document["results"]} for document in ordered]
    yield from paragraphs(_taken(ordered[0]))
    yield from _group(ordered, [_part(results, held_out=False) for results in by_name])
    held_out = [_part(results, held_out=True) for results in by_name]
    if any(held_out):
        yield from paragraphs(
            f"#### {ordered[0]['set']}: held out",
            "Architectures that were taken when ftuner was done. Nothing was tuned for them.",
        )
        yield from _group(ordered, held_out)


def _part(results: Mapping[str, Result], held_out: bool) -> dict[str, Result]:
    """The results of architectures that are held out, or of the others."""
    return {name: r for name, r in results.items() if r.get("held_out", False) is held_out}


def _group(ordered: Sequence[Document], by_name: Sequence[Mapping[str, Result]]) -> Iterator[str]:
    """Verdicts and tables of some architectures: results by name for each document."""
    names = list(dict.fromkeys(name for results in by_name for name in results))
    for document, results in zip(ordered, by_name, strict=True):
        if results:
            yield _verdict(document["threads"], list(results.values()))
    yield ""
    head = ["architecture", "kind"]
    for document in ordered:
        head.append(f"ratio (least), {count(document['threads'], 'thread')}")
    head += ["around", "first call", "load"]
    rows = []
    for name in names:
        found = [results.get(name) for results in by_name]
        timed = [r for r in found if r is not None and _ratios(r)]
        if timed:
            rows.append((name, timed[0]["kind"], *map(_ratio, found), *_costs(timed[0])))
    yield from table(head, rows)
    yield from _without_times(names, by_name)


def _taken(document: Document) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return f"Measured on {document['date'][:10]} with {versions}."


def _verdict(threads: int, results: Sequence[Result]) -> str:
    """How many architectures are right, and how many reach the goals."""
    counted = [r for r in results if r["verdict"] not in UNCOUNTED]
    right = [r for r in counted if r["verdict"] == RIGHT]
    means = {r["label"]: geomean(_ratios(r)) for r in right if _ratios(r)}
    reached = sum(mean >= GOAL for mean in means.values())
    shapes = [ratio for r in right for ratio in _ratios(r)]
    slow = sum(ratio < FLOOR for ratio in shapes)
    return (
        f"- {count(threads, 'thread')}: {len(right)} of {len(counted)} are right at every shape. "
        f"The geometric mean over all shapes is {number(geomean(shapes))}; {reached} of "
        f"{len(means)} architectures reach {GOAL}, and {slow} of {len(shapes)} shapes are below "
        f"{FLOOR}."
    )


def _ratios(result: Result) -> list[float]:
    return [case["ratio"] for case in result.get("cases", ()) if case["ratio"] is not None]


def _ratio(result: Result | None) -> str:
    ratios = _ratios(result) if result is not None else []
    return f"{number(geomean(ratios))} ({number(min(ratios))})" if ratios else number(None)


def _costs(result: Result) -> tuple[str, str, str]:
    cases = result["cases"]
    around = sum(case["share_around"] for case in cases) / len(cases)
    timed = [case for case in cases if "median_s" in case["engines"][SUBJECT]]
    longer = max(case["first_s"] - case["engines"][SUBJECT]["median_s"] for case in timed)
    return f"{around:.0%}", f"{longer * 1e3:.1f} ms", f"{result['load_s']:.2f} s"


def _without_times(
    names: Sequence[str], by_name: Sequence[Mapping[str, Result]]
) -> Iterator[str]:  # fmt: skip
    """What has no row above, and why."""
    rows = []
    for name in names:
        found = [results[name] for results in by_name if name in results]
        if not any(map(_ratios, found)):
            result = found[0]
            why = str(result["why"]).replace("|", "\\|")
            rows.append((name, result["verdict"], why[:120]))
    if rows:
        yield from paragraphs("Not timed:")
        yield from table(("architecture", "verdict", "why"), rows)


def _variants(documents: Sequence[Document]) -> Iterator[str]:
    """What is right, and recognised, of other files of the same architectures."""
    checks = {str(d["kind"]): d for d in reversed(documents) if d["set"] == VARIANTS_SIZE}
    plain = {r["label"]: r for r in checks.get(CHECK, {"results": []})["results"]}
    rows, faults = [], []
    for name, variant in VARIANTS.items():
        document = checks.get(f"{CHECK}-{name}")
        if document is None:
            continue
        counted = [r for r in document["results"] if r["verdict"] not in UNCOUNTED]
        right = sum(r["verdict"] == RIGHT for r in counted)
        less = [r["label"] for r in counted if _less(r, plain.get(r["label"]))]
        left = len(document["results"]) - len(counted)
        rows.append((variant.title, f"{right} of {len(counted)}", ", ".join(less) or number(None),
                     str(left)))  # fmt: skip
        faults += [
            (variant.title, r["label"], r["verdict"], str(r["why"]).replace("|", "\\|")[:120])
            for r in counted
            if r["verdict"] != RIGHT
        ]
    if not rows:
        return
    yield from paragraphs(
        "## Other files of the same architectures",
        "Users' files are of other opsets and precisions, of other exporters, and the output of "
        "optimisers. `python -m benchmarks.zoo --check --variant NAME` makes such files of the "
        f"{VARIANTS_SIZE} architectures and compares outputs at the eight shapes, for float16 with "
        "a tolerance of 2e-2. *Recognised less* names architectures with fewer recognised "
        "attentions, norms or rotary embeddings than in the default file. *No file* counts what "
        "the tool that makes the variant refuses, and what neither ONNX Runtime runs nor ftuner.",
    )
    yield from table(("file", "right", "recognised less", "no file"), rows)
    if faults:
        yield from paragraphs("Not right:")
        yield from table(("file", "architecture", "verdict", "why"), faults)


def _less(result: Result, plain: Result | None) -> bool:
    """Whether less is recognised than in the plain file."""
    if plain is None or result["verdict"] != RIGHT:
        return False
    own, other = result["recognised"], plain.get("recognised", {})
    return any(own.get(op, 0) < other.get(op, 0) for op in RECOGNISED)
