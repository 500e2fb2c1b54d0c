"""The tables of one GPU's results, for its page in docs/performance.

`python -m benchmarks.report_gpu FOLDER` prints that of the results in a folder, a dry run's too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.markdown import number, paragraphs, table
from benchmarks.report_gpu_models import models, networks, recurrent, refused
from benchmarks.results import Document, load, ratio_of
from ftuner_tools.timing import geomean

KIND = "gpu"
"""Of results that the page shows: those of a dry run are of another."""
SUBJECT, VENDOR, COMPILED = "ftuner", "torch", "torch-max-autotune"
PADDED = "torch, padded to "
"""Engines, by the names in results."""
FEW = 0.85
"""Ratios below this are listed one by one."""
LAYERS = "llama-8b"


def chapter(documents: Sequence[Document]) -> Iterator[str]:
    """The lines of all sections of one chip."""
    found = {document["set"]: document for document in documents}
    machine, newest = documents[0]["machine"], max(documents, key=lambda d: d["date"])
    versions = ", ".join(f"{name} {version}" for name, version in newest["versions"].items())
    yield from paragraphs(
        f"{machine['cpu_model']} ({machine['architecture']}), {machine['cores']} multiprocessors, "
        f"L2 {machine['cache_bytes']['L2'] >> 20} MiB, memory {machine['dram_bytes'] >> 30} GiB; "
        f"driver {machine['driver']}, CUDA {machine['cuda']}; {versions}; {newest['date']}. "
        "Ratios are from medians of the device's own time; above one, ftuner is faster."
    )
    sections: dict[str, Callable[[Document], Iterator[str]]] = {
        "correct": _correct, "gemm": _products, "bmm": _products, "attention": _products,
        "convolutions": _products, "compiled": _compiled, "regret": _regret,
        "calibration": _calibration, "models": models,
        "networks": networks, "recurrent": recurrent, "tuning": _tuning,
    }  # fmt: skip
    for name, section in sections.items():
        if found.get(name, {}).get("cases"):
            yield from section(found[name])
    yield from _missing(documents)


def _correct(document: Document) -> Iterator[str]:
    wrong = [case for case in document["cases"] if not case["right"]]
    yield from paragraphs(
        "## Right",
        f"{len(document['cases']) - len(wrong)} of {len(document['cases'])} checks passed.",
    )
    for case in wrong:
        yield f"- wrong: {case['label']}: {case.get('raised') or number(case['error'])}"
    if wrong:
        yield ""


def _products(document: Document) -> Iterator[str]:
    groups: dict[tuple[str, str], list[tuple[str, float, float | None]]] = {}
    by_rows: dict[int, list[tuple[float, float]]] = {}
    vendor: dict[tuple[str, str], list[float]] = {}
    for result in document["cases"]:
        engines, case, ratio = result["engines"], result["case"], result["ratio_median"]
        if ratio is None:
            continue
        share = engines[SUBJECT].get("fraction_of_peak")
        key = (case["set"], case["multiply"])
        groups.setdefault(key, []).append((result["label"], ratio, share))
        default = ratio_of(engines, VENDOR, SUBJECT)
        vendor.setdefault(key, []).extend([] if default is None else [default])
        if case["set"] == LAYERS and case["multiply"] == "bfloat16" and share:
            by_rows.setdefault(case["m"], []).append((ratio, share))
    yield from paragraphs(f"## {document['set']} against the best peer of each case")
    names = {n: None for case in document["cases"] for n in case["engines"] if n != SUBJECT}
    yield from paragraphs(f"Peers: {'; '.join(names)}.")
    head = ("set", "elements", "cases", "geomean", "least", f"under {FEW}", "wins",
            f"geomean against {VENDOR}", "share of peak")  # fmt: skip
    rows = []
    for (name, multiply), cases in groups.items():
        label, least, _ = min(cases, key=lambda case: case[1])
        shares = [share for _, _, share in cases if share]
        rows.append(
            (
                name, multiply, str(len(cases)), number(geomean(r for _, r, _ in cases)),
                f"{least:.2f} ({label.rsplit(' ', 1)[-1]})", str(sum(r < FEW for _, r, _ in cases)),
                str(sum(r >= 1.0 for _, r, _ in cases)), number(geomean(vendor[name, multiply])),
                number(geomean(shares)),
            )
        )  # fmt: skip
    yield from table(head, rows)
    if by_rows:
        yield from table(
            ("m", f"ratio, {LAYERS}", "share of peak"),
            (
                (str(m), *(number(geomean(pair[i] for pair in pairs)) for i in (0, 1)))
                for m, pairs in sorted(by_rows.items())
            ),
        )
    made = [case for case in document["cases"] if case["compiled"]]
    yield from paragraphs(
        f"Kernels were compiled for {len(made)} of {len(document['cases'])} cases, the first of "
        "each kind. Another number of rows or keys compiles nothing."
    )
    yield from _padding(document["cases"])
    yield from refused(document["cases"])


def _padding(cases: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Layers whose operands lie padded, against the same without padding."""
    found: dict[str, list[tuple[float, float]]] = {}
    for result in cases:
        engines = result["engines"]
        for name in (name for name in engines if name.startswith(PADDED)):
            ours, theirs = (ratio_of(engines, name, other) for other in (SUBJECT, VENDOR))
            if ours is not None and theirs is not None:
                found.setdefault(name.removeprefix(PADDED), []).append((ours, theirs))
    if found:
        yield from table(
            ("rows padded to", "cases", f"its time over {SUBJECT}'s", f"over {VENDOR}'s, unpadded"),
            (
                (name, str(len(pairs)), *(number(geomean(p[i] for p in pairs)) for i in (0, 1)))
                for name, pairs in found.items()
            ),
        )


def _compiled(document: Document) -> Iterator[str]:
    yield from paragraphs("## Against torch.compile, max-autotune")
    rows = []
    for layer in document["cases"]:
        ratios = [ratio_of(shape["engines"], COMPILED, SUBJECT) for shape in layer["shapes"]]
        found = [ratio for ratio in ratios if ratio is not None]
        rows.append(
            (
                layer["label"], str(len(found)), number(geomean(found)),
                number(min(found, default=None)), f"{layer['compile_s']:.1f} s",
                str(layer["recompilations"]),
            )
        )  # fmt: skip
    head = ("n x k", "shapes", "geomean", "least", "its compile time", "recompilations")
    yield from table(head, rows)


def _regret(document: Document) -> Iterator[str]:
    cases = [case for case in document["cases"] if "regret" in case]
    yield from paragraphs(
        "## Regret",
        "The plan chosen by arithmetic beside the fastest of all plans of the library, measured.",
    )
    if not cases:
        return
    worst = max(cases, key=lambda case: case["regret"])
    mean, count = sum(case["regret"] for case in cases) / len(cases), len(cases)
    searched = sum(case["search_s"] for case in cases) / count
    planned = sum(case["plan_s"] for case in cases) / count
    yield from table(
        ("shapes", "mean", "worst", "search for a shape", "plan of a shape", "search over plan"),
        [
            (
                str(count), f"{100 * mean:.1f}%",
                f"{100 * worst['regret']:.1f}% ({worst['label'].rsplit(' ', 1)[-1]})",
                f"{searched:.2f} s", f"{1e6 * planned:.1f} us", f"{searched / planned:.0f}",
            )
        ],
    )  # fmt: skip


def _calibration(document: Document) -> Iterator[str]:
    priors = [case for case in document["cases"] if "constants" in case]
    shapes = [case for case in document["cases"] if "regrets" in case]
    yield from paragraphs(
        "## Calibration",
        "Constants found by calibration from those of before and from wrong ones, and the regret "
        f"of plans that are chosen by them, {len(shapes)} shapes.",
    )
    rows = []
    for case in priors:
        name, constants = case["label"], case["constants"].values()
        settled = sum(constant["settled"] for constant in constants)
        row = [name, f"{case['seconds']:.1f} s", case["condition"], f"{settled}/{len(constants)}"]
        for when in ("before", "after"):
            label = f"{name}, {when}"
            own = [shape["regrets"][label] for shape in shapes if label in shape["regrets"]]
            row.append(f"{100 * sum(own) / len(own):.1f}%" if own else "")
            row.append(f"{100 * max(own):.1f}%" if own else "")
        rows.append(tuple(row))
    head = ("from", "took", "device", "settled", "mean regret before", "worst", "after", "worst")
    yield from table(head, rows)
    found = {case["label"]: case["constants"] for case in priors}
    rows = [
        (field, *(f"{own[field]['value']:.3g} +- {100 * own[field]['error']:.0f}%"
                  if own[field]["settled"] else "" for own in found.values()))
        for field in next(iter(found.values()), {})
    ]  # fmt: skip
    yield from table(("constant", *(f"from {name}" for name in found)), rows)


def _tuning(document: Document) -> Iterator[str]:
    known = {case["label"]: case for case in document["cases"]}
    rows = [("probe the chip", f"{document['probe_s']:.2f} s")]
    for label in ("compile, empty cache", "compile, warm cache"):
        if label in known:
            rows.append(
                (f"{label}: {known[label]['kernels']} kernels", f"{known[label]['seconds']:.2f} s")
            )
    if "plan" in known:
        rows.append(("plan a new shape", f"{1e6 * known['plan']['median_s']:.1f} us"))
    for name, entry in known.get("call", {}).get("engines", {}).items():
        rows.append((f"launch a small product: {name}", f"{1e6 * entry['host_s']:.1f} us"))
    yield from paragraphs("## Tuning and launching")
    yield from table(("what", "time"), rows)


def _missing(documents: Sequence[Document]) -> Iterator[str]:
    found = []
    for document in documents:
        why = document.get("error")
        if document.get("left"):
            found.append(f"- {document['set']}: {document['left']} cases, for lack of time")
        if why:
            found.append(f"- {document['set']}: {why}")
        lost = document.get("lost", {}).items()
        found += [f"- {document['set']}, {label}: {reason}" for label, reason in lost]
    if found:
        yield from paragraphs("## Not measured")
        yield from found
        yield ""


def main(folder: Annotated[Path, typer.Argument(help="Folder of one machine's results.")]) -> None:
    """Print the chapter of one machine."""
    documents = [load(path) for path in sorted(folder.glob(f"{KIND}-*.json"))]
    if not documents:
        raise typer.BadParameter(f"{folder} has no {KIND}-*.json")
    print("\n".join(chapter(documents)))


if __name__ == "__main__":
    typer.run(main)
