"""`ftuner bench model`: a model on ftuner and on the peers that are installed, for several extents
of its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli.child import measured_in_child
from ftuner.cli.inputs import all_shapes, parsed_shapes, shape_text, specs_of
from ftuner.cli.loading import ModelArgument
from ftuner.cli.output import JsonOption, ThreadsOption, console, print_json
from ftuner.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from ftuner.cli.measure_model import ModelRequest

MEASURING_MODULE = "ftuner.cli.measure_model"


def model(
    path: ModelArgument,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="NAME=1x77,...",
            help="Extents of the inputs, for one row of the table; repeat for more. Inputs whose "
            "extents follow from those given may be left out.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    peers: Annotated[
        str | None, typer.Option(help="onnxruntime, openvino or both; by default both.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time an ONNX model against the peers, float32, equal threads, no shape prepared for."""
    from ftuner import api
    from ftuner.cli.model_peers import MODEL_ENGINES
    from ftuner.cli.peers import SUBJECT
    from ftuner.frontends.onnx.importer import import_model

    known = [name for name in MODEL_ENGINES if name != SUBJECT]
    asked = known if peers is None else [p.strip() for p in peers.split(",") if p.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ConfigurationError(
            f"unknown peers {', '.join(unknown)}; known are {', '.join(known)}"
        )
    here = [name for name in asked if MODEL_ENGINES[name].available()]
    given = [parsed_shapes([text], "--shapes") for text in sets] if sets else [{}]
    specs = specs_of(import_model(path).graph)
    request: ModelRequest = {
        "model": str(path),
        "sets": [
            {name: list(shape) for name, shape in all_shapes(specs, shapes).items()}
            for shapes in given
        ],
        "engines": [SUBJECT, *here],
        "threads": threads or api.get_num_threads(),
    }
    document = measured_in_child(MEASURING_MODULE, request, request["threads"])
    document["not_installed"] = [name for name in asked if name not in here]
    ran = [name for name in here if name not in document["failed"]]
    results = document["results"]
    document["geomean"] = {
        name: geomean([r["ratios"][name] for r in results if name in r["ratios"]]) for name in ran
    }
    document["geomean_of_best"] = geomean(
        [r["ratios"][r["best_peer"]] for r in results if r["best_peer"]]
    )
    if as_json:
        print_json(document)
        return
    out = console()
    out.print(_table(path, document, ran))
    for line in _notes(document):
        out.print(line, soft_wrap=True, markup=False)


def geomean(ratios: Sequence[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _table(path: Path, document: dict[str, Any], peers: list[str]) -> Table:
    from rich.table import Table

    from ftuner.cli.peers import SUBJECT
    from ftuner.report.units import count, duration

    versions = ", ".join(f"{name} {v}" for name, v in document["versions"].items())
    table = Table(
        title=f"{path.name} on {count(document['threads'], 'thread')}",
        title_justify="left",
        caption=f"ratio: peer's least time / ftuner's; {versions}",
        caption_justify="left",
    )
    table.add_column("shapes", overflow="fold")
    table.add_column("engine")
    for column in ("least", "median", "ratio"):
        table.add_column(column, justify="right")
    for result in document["results"]:
        table.add_section()
        label = _label(result)
        for name in (SUBJECT, *peers):
            seconds = result["seconds"].get(name)
            times = ("-", "-") if seconds is None else map(duration, seconds.values())
            ratio = "" if name == SUBJECT else _ratio(result["ratios"].get(name))
            table.add_row(label, name, *times, ratio)
            label = ""
    label = "geometric mean"
    table.add_section()
    means = [(name, document["geomean"][name]) for name in peers]
    for name, mean in (*means, ("the best peer", document["geomean_of_best"])):
        table.add_row(label, name, "", "", _ratio(mean))
        label = ""
    return table


def _notes(document: dict[str, Any]) -> list[str]:
    """What the table does not say."""
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


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
