"""Pictures of results, one panel each: how many times as fast as its peers ftuner is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.recorded import Recorded
from benchmarks.results import Document
from ftuner.core.units import count
from ftuner_tools.timing import SUBJECT, geomean

Ratios = Mapping[str, Mapping[int, Sequence[float]]]
"""A peer's seconds over ftuner's: by peer and size, one number for each network."""
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch-compile": "torch.compile"}
"""Names in legends."""


def draw(machine: Recorded, folder: Path) -> list[tuple[str, str]]:
    """Draw what there is of a machine; returns the name of each file, and its text."""
    drawn = []
    encoders, images = machine.of_kind("model"), machine.of_kind("vision")
    if encoders:
        document = max(encoders, key=lambda d: d["threads"])
        text = f"Sentence encoder on {machine.title}, {_setting(document)}"
        name = f"{machine.page}-length.svg"
        _panel(by_length(document), text, "tokens of the sentence", folder / name)
        drawn.append((name, text))
    if images:
        threads = max(d["threads"] for d in images)
        documents = [d for d in images if d["threads"] == threads]
        networks, ratios = by_resolution(documents)
        if networks:
            text = f"{len(networks)} vision networks on {machine.title}, {_setting(documents[0])}"
            name = f"{machine.page}-resolution.svg"
            _panel(ratios, text, "pixels along each side of the image", folder / name)
            drawn.append((name, text))
    return drawn


def _setting(document: Document) -> str:
    return f"{count(document['threads'], 'thread')}, batch 1"


def by_length(document: Document) -> Ratios:
    """A model's ratios of batch 1 by length."""
    found: dict[str, dict[int, list[float]]] = {}
    for result in document["cases"]:
        if result["case"]["batch"] == 1:
            for peer, ratio in _ratios(result):
                found.setdefault(peer, {}).setdefault(result["case"]["length"], []).append(ratio)
    return found


def by_resolution(documents: Sequence[Document]) -> tuple[list[str], Ratios]:
    """The networks that have every common resolution, and their ratios by resolution: batch 1,
    square images of the sizes that at least half of the networks have."""
    cases: dict[str, dict[int, Document]] = {}
    for document in documents:
        for result in document["cases"]:
            case = result["case"]
            if case["batch"] == 1 and case["height"] == case["width"] and result["ratio"]:
                cases.setdefault(document["set"], {})[case["height"]] = result
    counts = Counter(size for own in cases.values() for size in own)
    sizes = sorted(size for size, count in counts.items() if 2 * count >= len(cases))
    networks = [name for name, own in cases.items() if all(size in own for size in sizes)]
    found: dict[str, dict[int, list[float]]] = {}
    for name in networks:
        for size in sizes:
            for peer, ratio in _ratios(cases[name][size]):
                found.setdefault(peer, {}).setdefault(size, []).append(ratio)
    return networks, found


def _ratios(result: Document) -> list[tuple[str, float]]:
    timed = {name: e["min_s"] for name, e in result["engines"].items() if "min_s" in e}
    own = timed.pop(SUBJECT, None)
    return [(name, seconds / own) for name, seconds in timed.items()] if own else []


def _panel(ratios: Ratios, title: str, axis: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The same results give the same file.
    plt.rcParams["svg.hashsalt"] = "ftuner"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    sizes = sorted({size for own in ratios.values() for size in own})
    for peer, own in ratios.items():
        means = [(size, geomean(values)) for size, values in sorted(own.items())]
        (line,) = axes.plot(*zip(*means, strict=True), ".-", label=PEERS.get(peer, peer))
        each = [(size, v) for size, values in own.items() for v in values if len(values) > 1]
        if each:
            axes.plot(*zip(*each, strict=True), ".", color=line.get_color(), alpha=0.3, ms=4)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    ticks = sizes if len(sizes) < 10 else sizes[:: len(sizes) // 8]
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(axis)
    axes.set_ylabel(f"{SUBJECT}: times as fast as")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
