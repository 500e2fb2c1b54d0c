"""The tables of one CPU's results, for its page in docs/performance."""

import math
from collections.abc import Iterator, Sequence

from benchmarks.markdown import both, number, paragraphs, side_by_side, table
from benchmarks.recorded import KINDS, PEERS_KINDS
from benchmarks.results import Document, summarise
from ftuner.core.units import count
from ftuner_tools.engines import INT8_SUBJECT
from ftuner_tools.timing import SUBJECT, geomean


def _threads(document: Document) -> str:
    return count(document["threads"], "thread")


def _title(document: Document) -> str:
    return f"{document['kind']} {document['set']}, {_threads(document)}"


def _taken_on(document: Document) -> str:
    machine = document["machine"]
    caches = ", ".join(f"{n} {size >> 10} KiB" for n, size in machine["cache_bytes"].items())
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return (
        f"{machine['cpu_model']} ({machine['architecture']}), {machine['cores']} cores, {caches}; "
        f"{versions}"
    )


def _where_and_when(documents: Sequence[Document]) -> Iterator[str]:
    """A line for each machine and set of versions; it names its results if there are several."""
    yield from paragraphs("## Where and when")
    places: dict[str, list[Document]] = {}
    for document in documents:
        places.setdefault(_taken_on(document), []).append(document)
    for place, own in places.items():
        dates = sorted({document["date"][:10] for document in own})
        few = len(own) <= len(documents) // 2
        titles = "; ".join(_title(d) for d in own) if few else "All other results"
        titles = titles if len(places) > 1 else "All results"
        yield f"- {titles}: {place}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def _overview(documents: Sequence[Document]) -> Iterator[str]:
    head = ("cases", "threads", "number", "geomean", "by medians", "paired", "least",
            "least paired", "wins", "losses", "share of peak")  # fmt: skip
    rows = []
    for document in documents:
        s = summarise(document)
        least = f"{s.worst[2]:.2f} ({s.worst[0]}, {s.worst[1]})" if s.worst else "–"
        rows.append(
            (
                f"{document['kind']} {document['set']}",
                str(document["threads"]),
                str(s.cases),
                number(s.geomean),
                number(s.geomean_median),
                number(s.geomean_paired),
                least,
                f"{s.least_paired[1]:.2f} ({s.least_paired[0]})" if s.least_paired else "–",
                str(s.wins),
                str(len(s.losses)),
                both(s.fraction_of_peak, s.fraction_of_peak_paired),
            )
        )
    yield from paragraphs("## Against the best peer at each shape")
    yield from table(head, rows)


def _per_peer(documents: Sequence[Document]) -> Iterator[str]:
    summaries = [(document, summarise(document).per_peer) for document in documents]
    peers = list(dict.fromkeys(peer for _, ratios in summaries for peer in ratios))
    if not peers:
        return
    yield from paragraphs("## Against each peer, geometric means")
    rows = (
        (_title(document), *(number(ratios.get(peer)) for peer in peers))
        for document, ratios in summaries
    )
    yield from table(("cases", *peers), rows)


def _losses(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs("## Losses")
    none = True
    for document in documents:
        summary = summarise(document)
        if not summary.losses and not summary.refused:
            continue
        none = False
        yield from paragraphs(f"{_title(document)}:")
        if summary.losses:
            rows = ((label, peer, f"{ratio:.2f}") for label, peer, ratio in summary.losses)
            yield from table(("shape", "best peer", "ratio"), rows)
        for label, engine, reason in summary.refused:
            yield f"- refused: {engine} on {label}: {reason}"
        if summary.refused:
            yield ""
    if none:
        yield from paragraphs("None.")


def _tuning(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs("## Tuning")
    for document in documents:
        own = document["ftuner_tuning_s"]
        rows = []
        for result in document["cases"]:
            engines = result["engines"]
            searched, mine = (
                engines.get(name, {}).get("min_s") for name in ("metaschedule", SUBJECT)
            )
            rows.append(
                (
                    result["label"],
                    number(result["tuning_s"] / own if own else None),
                    number(searched / mine if searched and mine else None),
                )
            )
        trials = document["settings"]["trials"]
        yield from paragraphs(
            f"MetaSchedule, {trials} trials a shape, {_threads(document)}. Its search for one "
            f"shape over {SUBJECT}'s tuning for all shapes, and its best kernel's time over "
            f"{SUBJECT}'s:"
        )
        yield from table(("shape", "tuning time ratio", "kernel time ratio"), rows)


def _by_rows(documents: Sequence[Document]) -> Iterator[str]:
    """What a dynamic m does: ratio and shares of peak and bound by m, for sets that vary nothing
    else."""
    chosen = [d for d in documents if d["kind"] == "gemm" and d["set"] == "mlp"]
    if not chosen:
        return
    yield from paragraphs("## By rows")
    kinds = ("peak", "peak_paired", "bound", "bound_paired")
    parts = []
    for document in chosen:
        groups: dict[int, list[tuple[float, ...]]] = {}
        for result in document["cases"]:
            if result["ratio"] is not None:
                own = result["engines"][SUBJECT]
                shares = (own.get(f"fraction_of_{kind}", math.nan) for kind in kinds)
                groups.setdefault(result["case"]["m"], []).append((result["ratio"], *shares))
        cells = {}
        for m, found in sorted(groups.items()):
            ratio, *means = (geomean(values) for values in zip(*found, strict=True))
            cells[str(m)] = (number(ratio), both(*means[:2]), both(*means[2:]))
        columns = ("ratio", "share of peak", "share of bound")
        parts.append(([f"{column}, {_threads(document)}" for column in columns], cells))
    yield from side_by_side("m", parts)


def _share_of_peak(result: Document) -> str:
    own = result["engines"].get(SUBJECT, {})
    return both(own.get("fraction_of_peak"), own.get("fraction_of_peak_paired"))


def _models(documents: Sequence[Document]) -> Iterator[str]:
    if not documents:
        return
    yield from paragraphs("## A sentence encoder, by length")
    parts = [
        (
            (f"ratio, {_threads(d)}", "best peer", "share of peak", "first call / tenth"),
            {
                r["label"]: (
                    f"{r['ratio']:.2f}", r["best_peer"], _share_of_peak(r),
                    f"{r['first_s'] / r['tenth_s']:.2f}",
                )
                for r in d["cases"]
            },
        )
        for d in documents
    ]  # fmt: skip
    yield from side_by_side("batch x length", parts)


def _speech(documents: Sequence[Document]) -> Iterator[str]:
    """By file, sounds and windows; then a line for each reason for which an engine cannot prepare
    files."""
    if not documents:
        return
    yield from paragraphs("### Speech detectors, by sounds and windows")
    parts = [
        (
            (f"ratio, {_threads(d)}", "best peer", "paired", "share of peak"),
            {
                r["label"]: (
                    number(r["ratio"]), r["best_peer"] or "–", number(r["ratio_paired"]),
                    _share_of_peak(r),
                )
                for r in d["cases"]
            },
        )
        for d in documents
    ]  # fmt: skip
    yield from side_by_side("file, sounds x windows", parts)
    files: dict[tuple[str, str], dict[str, None]] = {}
    for document in documents:
        for file, engines in document["unprepared"].items():
            for engine, why in engines.items():
                files.setdefault((engine, why), {})[file] = None
    for (engine, why), own in files.items():
        yield f"- {engine} cannot prepare {', '.join(own)}: {why}"
    if files:
        yield ""


def _by_layer(documents: Sequence[Document]) -> Iterator[str]:
    """What the sizes of a layer's pictures do on average."""
    if not documents:
        return
    yield from paragraphs("## Convolutions, by layer")
    parts = []
    for document in documents:
        ratios: dict[str, list[float]] = {}
        for result in document["cases"]:
            if result["ratio"] is not None:
                ratios.setdefault(result["label"].rsplit(" ", 1)[0], []).append(result["ratio"])
        cells = {layer: (number(geomean(own)),) for layer, own in ratios.items()}
        parts.append(((f"{document['set']}, {_threads(document)}",), cells))
    yield from side_by_side("layer", parts)


def _first(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs(
        "## First calls of a resolution",
        "The first call over the tenth, and by how much it is longer.",
    )
    rows = (
        (f"{d['set']}, {_threads(d)}", case["label"], f"{case['first_s'] / case['tenth_s']:.2f}",
         f"{(case['first_s'] - case['tenth_s']) * 1e3:.2f} ms")
        for d in documents
        for case in d["cases"]
    )  # fmt: skip
    yield from table(("network", "picture", "ratio", "longer by"), rows)


def _unseen(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs(
        "## Streams of shapes that never repeat",
        "Each engine runs all shapes of a stream, none twice, and then the same ones again. "
        "Seconds of the stream, and in brackets of the same shapes again; then what a new shape "
        f"takes longer with {SUBJECT}: the median, and the worst after the largest was seen.",
    )
    names = list(dict.fromkeys(case["label"] for d in documents for case in d["cases"]))
    rows = []
    for document in documents:
        found = {case["label"]: case for case in document["cases"]}
        times = [f"{found[n]['first_s']:.2f} ({found[n]['again_s']:.2f})" for n in names]
        extra = (found[SUBJECT][f"extra_{key}_s"] for key in ("median", "worst_after_largest"))
        rows.append(
            (f"{document['set']}, {_threads(document)}", str(document["shapes"]), *times,
             *(f"{1e3 * seconds:.1f} ms" for seconds in extra))
        )  # fmt: skip
    yield from table(("stream", "shapes", *names, "median", "worst"), rows)


def _starts(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs("## Loading the sentence encoder")
    rows = (
        (name, f"{entry['load_s']:.2f} s", f"{entry['resident_bytes'] / 2**20:.0f} MiB")
        for document in documents for name, entry in document["engines"].items()
    )  # fmt: skip
    head = ("engine", "import and load", "resident after one run of 1x128")
    yield from table(head, rows)


def _regret(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs(
        "## Regret",
        "The plan chosen by arithmetic beside the fastest of all single-uKernel and two-band "
        "plans, measured: how much longer it takes, in the median of rounds with the best few.",
    )
    rows = []
    for document in documents:
        worst = max(document["cases"], key=lambda result: result["regret"])
        rows.append(
            (
                f"{document['set']}, {_threads(document)}",
                str(len(document["cases"])),
                f"{100 * document['mean']:.1f}%",
                f"{100 * worst['regret']:.1f}% ({worst['case']})",
            )
        )
    yield from table(("cases", "shapes", "mean", "worst"), rows)


def _int8(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs(
        "## Weights of 8-bit integers",
        "A layer whose weight outgrows L2: the time of others, and of the same layer in float32, "
        "over ftuner's on the integers.",
    )
    parts = []
    for document in documents:
        names = [name for name in document["cases"][0]["engines"] if name != INT8_SUBJECT]
        cells = {}
        for case in document["cases"]:
            seconds = {name: timing["min_s"] for name, timing in case["engines"].items()}
            ratios = (seconds[name] / seconds[INT8_SUBJECT] for name in names)
            cells[str(case["rows"])] = [f"{ratio:.2f}" for ratio in ratios]
        parts.append(([f"{name}, {_threads(document)}" for name in names], cells))
    yield from side_by_side("rows", parts)


def _overhead(documents: Sequence[Document]) -> Iterator[str]:
    yield from paragraphs("## Besides multiplying")
    rows = []
    for document in documents:
        start, planning = document["warm_start"], document["planning"]
        for dtype, seconds in document["tune_s"].items():
            rows.append((f"tuning {dtype}, empty cache, probe included", f"{seconds:.2f} s"))
        rows.append(("import", f"{start['import_s']:.2f} s"))
        rows.append(
            ("import, load, first product; warm cache", f"{start['first_product_s']:.2f} s")
        )
        rows.append(("planning a new number of rows", f"{planning['plan_s'] * 1e6:.1f} us"))
        rows.append(("writing that plan for the driver", f"{planning['write_s'] * 1e6:.1f} us"))
        for threads, call in document["call"].items():
            what = f"a call (1 x 512 x 512) beyond its kernel, threads: {threads}"
            rows.append((what, f"{call['overhead_s'] * 1e6:.1f} us"))
    yield from table(("what", "time"), rows)


def chapter(documents: Sequence[Document]) -> Iterator[str]:
    """The lines of all sections of one machine's results."""
    runs = [document for document in documents if document["kind"] in PEERS_KINDS]
    by_kind = {
        kind: [document for document in documents if document["kind"] == kind] for kind in KINDS
    }
    lines: list[str] = []
    if runs:
        lines += [*_overview(runs), *_per_peer(runs), *_models(by_kind["model"]), *_by_rows(runs)]
        lines += [*_speech(by_kind["speech"]), *_by_layer(by_kind["conv"])]
    for kind, section in (
        ("unseen", _unseen),
        ("start", _starts),
        ("int8", _int8),
        ("metaschedule", _tuning),
        ("regret", _regret),
        ("overhead", _overhead),
        ("first", _first),
    ):
        if by_kind[kind]:
            lines += section(by_kind[kind])
    if runs:
        lines += _losses(runs)
    lines += _where_and_when(documents)
    yield from lines
