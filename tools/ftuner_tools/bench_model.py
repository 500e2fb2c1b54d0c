"""`ftuner bench model`: a model timed on ftuner and on the installed peers, for several extents of
its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from ftuner.cli.options import JsonOption, ModelArgument, ThreadsOption, option
from ftuner.cli.output import console, print_json, read_specs, shape_text, show_table
from ftuner_tools.contest import contest, mean, measured, ratio_table, ratio_text
from ftuner_tools.timing import SUBJECT

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from ftuner_tools.measuring import Request

PEERS = ("onnxruntime", "openvino")
OPTION = "--shapes"


def model(
    path: ModelArgument,
    sets: Annotated[
        list[str] | None,
        option(
            "NAME=1x77,...",
            "Extents of the inputs, for one row of the table; repeat for more. Inputs whose "
            "extents follow from those given may be left out.",
            OPTION,
            "--shape",
        ),
    ] = None,
    threads: ThreadsOption = None,
    peers: Annotated[
        str | None, option("A,B", "onnxruntime, openvino or both; by default both.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time an ONNX model on ftuner and on the peers.

    All compute in float32 with the same number of threads, for any shape.
    """
    from ftuner.cli.arrays import all_shapes, parsed_shapes
    from ftuner_tools.onnx_engines import ONNX_ENGINES

    found = contest({name: ONNX_ENGINES[name] for name in PEERS}, peers, threads)
    given = [parsed_shapes([text], OPTION) for text in sets] if sets else [{}]
    specs = read_specs(path)
    request: Request = {
        "cases": [],
        "model": str(path),
        "sets": [
            {name: list(shape) for name, shape in all_shapes(specs, shapes, OPTION).items()}
            for shapes in given
        ],
        "engines": found.engines,
        "threads": found.threads,
    }
    document = measured(request, found)
    document["geomean_of_best"] = mean(
        r["ratios"][r["best_peer"]] for r in document["results"] if r["best_peer"]
    )
    if as_json:
        print_json(document)
        return
    out = console()
    show_table(out, _table(path, document, tuple(document["geomean"])))
    for line in _notes(document):
        out.print(line, soft_wrap=True, markup=False)


def _table(path: Path, document: dict[str, Any], peers: Sequence[str]) -> Table:
    from ftuner.core.units import duration

    rows: list[Sequence[str] | None] = []
    for result in document["results"]:
        rows.append(None)
        label = _label(result)
        for name in (SUBJECT, *peers):
            seconds = result["seconds"].get(name)
            times = ("-", "-") if seconds is None else map(duration, seconds.values())
            ratio = "" if name == SUBJECT else ratio_text(result["ratios"].get(name))
            rows.append((label, name, *times, ratio))
            label = ""
    label = "geometric mean"
    rows.append(None)
    means = [(name, document["geomean"][name]) for name in peers]
    for name, ratio in (*means, ("the best peer", document["geomean_of_best"])):
        rows.append((label, name, "", "", ratio_text(ratio)))
        label = ""
    head = ("shapes", "engine", ">least", ">median", ">ratio")
    return ratio_table(path.name, document, "peer's least time / ftuner's", head, rows)


def _notes(document: dict[str, Any]) -> list[str]:
    """Lines below the table: failures, differences, peers that are not installed."""
    lines = [f"{name} cannot load the model: {why}" for name, why in document["failed"].items()]
    for result in document["results"]:
        label = _label(result)
        lines += [f"{name} cannot run {label}: {why}" for name, why in result["failed"].items()]
        lines += [
            f"{name}'s outputs differ from ftuner's for {label}" for name in result["differs"]
        ]
    if document["not_installed"]:
        lines.append(f"not installed: {', '.join(document['not_installed'])}")
    return lines


def _label(result: dict[str, Any]) -> str:
    return ", ".join(f"{name}={shape_text(shape)}" for name, shape in result["shapes"].items())
