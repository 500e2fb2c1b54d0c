"""`ftuner explain model`: the fused groups of a model, their plans, times and memory."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli import options, output
from ftuner.core.frozen import dataclass
from ftuner.core.units import capacity, count, duration
from ftuner.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from ftuner.cli.arrays import Array
    from ftuner.frontends.onnx.records import ModelRecord
    from ftuner.report.model import ModelExplanation


@dataclass(frozen=True)
class Measured:
    """Times of whole runs of a model."""

    median_s: float
    least_s: float
    runs: int
    device: str
    threads: int


def model(
    path: options.ModelArgument,
    inputs: options.InputOption = None,
    shapes: options.ShapeOption = None,
    before: Annotated[
        bool, options.flag("--before", "Show the nodes as the file has them.")
    ] = False,
    threads: options.ThreadsOption = None,
    device: options.DeviceOption = "cpu",
    save: Annotated[
        Path | None, options.option("FILE", "Write all of it, with charts, to one .html file.")
    ] = None,
    every_step: Annotated[
        bool, options.flag("--all", "A row for each step; by default equal steps share one.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show the steps of an ONNX model; with shapes, also their times.

    With --shape or --input: the plan, estimate and measured time of each step, the roofline and the
    memory. Steps that repeat share a row.
    """
    from ftuner.cli.arrays import gathered_inputs, specs_of
    from ftuner.frontends.onnx.importer import read_model
    from ftuner.runtime.saved.container import is_saved

    if before and (inputs or shapes or save):
        raise ConfigurationError(
            "--before shows the file; it takes none of --input, --shape and --save"
        )
    record = None if is_saved(path) else read_model(path)
    if before:
        if record is None:
            raise ConfigurationError(f"--before shows the nodes of an ONNX file; {path} has none")
        _show_nodes(path, record, as_json)
        return
    feeds = None
    if inputs or shapes:
        specs = output.read_specs(path) if record is None else specs_of(record)
        feeds = gathered_inputs(specs, inputs, shapes)
    found, measured = _explained(path, record, feeds, threads, device)
    title = _title(path, record, found, feeds)
    if save is not None:
        from ftuner.report.page import save_page

        save_page(found, save, title, _facts(measured))
    if as_json:
        document: dict[str, Any] = {
            "model": str(path),
            "nodes": None if record is None else len(record.graph.nodes),
            **found.to_document(),
        }
        if feeds is not None and measured is not None:
            document["inputs"] = {name: list(x.shape) for name, x in feeds.items()}
            document["measured"] = asdict(measured)
        output.print_json(document)
        return
    _show(title, found, measured, every_step)
    if save is not None:
        output.console().print(f"written to {save}", soft_wrap=True)


def _explained(
    path: Path,
    record: ModelRecord | None,
    feeds: dict[str, Array] | None,
    threads: int | None,
    device: str,
) -> tuple[ModelExplanation, Measured | None]:
    """Returns the explanation and, with inputs, the times of whole runs. Without inputs nothing is
    compiled. `record`: None of a saved model."""
    from ftuner.frontends.onnx.importer import import_record
    from ftuner.graph.lowering import lower
    from ftuner.graph.passes.pipeline import optimised
    from ftuner.graph.specialization import RunTimeNumberError
    from ftuner.graph.splitting import split
    from ftuner.report.model import explain_model
    from ftuner.runtime.cpu.step_kind import KINDS
    from ftuner.runtime.devices import CPU

    if feeds is None and record is not None:
        try:
            graph = import_record(record).graph
        except RunTimeNumberError as need:
            text = f"{need}; with --shape or --input, the steps of such a run are shown"
            raise InputError(text) from need
        graph = optimised(graph, halves=device != CPU)
        parts = [lower(part.graph, runs=KINDS.runs) for part in split(graph)]
        return explain_model(parts, {}), None
    compiled, _ = output.loaded(path, threads, device)
    if feeds is None:
        return compiled.explain(), None
    samples = output.sampled(lambda: compiled.run(feeds))
    measured = Measured(
        statistics.median(samples), min(samples), len(samples), device, compiled.threads
    )
    return compiled.explain(feeds), measured


def _title(
    path: Path, record: ModelRecord | None, found: ModelExplanation,
    feeds: dict[str, Array] | None,
) -> str:  # fmt: skip
    groups = count(len(found.groups), "fused group")
    nodes = "" if record is None else f"{count(len(record.graph.nodes), 'node')} of ONNX in "
    title = f"{path.name}: {nodes}{groups}"
    if feeds is not None:
        title += ", " + ", ".join(f"{n}={output.shape_text(x.shape)}" for n, x in feeds.items())
    return title


def _facts(measured: Measured | None) -> dict[str, str]:
    """What the page says above all."""
    if measured is None:
        return {}
    where = f"a run, median of {measured.runs} on {measured.device}"
    return {f"{where}, {count(measured.threads, 'thread')}": duration(measured.median_s)}


def _show(
    title: str, found: ModelExplanation, measured: Measured | None, every_step: bool
) -> None:  # fmt: skip
    from ftuner.report.model_tables import model_table, rows_of, work_table
    from ftuner.report.tables import roofline_table

    out = output.console()
    rows = rows_of(found, every_step)
    output.show_table(out, model_table(found, rows, title))
    out.print(_memory_line(found))
    if measured is None:
        return
    if found.roofline is not None:
        output.show_table(out, work_table(found, rows))
        output.show_table(out, roofline_table(found.roofline, found.flops / measured.median_s))
    out.print(
        f"measured: {duration(measured.median_s)} a run, median of {measured.runs}, on "
        f"{measured.device} with {count(measured.threads, 'thread')}; groups were run one by one; "
        "ratio: measured / estimate"
    )


def _memory_line(found: ModelExplanation) -> str:
    line = f"weights: {capacity(found.weight_bytes)}"
    if found.live_bytes is not None:
        line += f"; intermediate results alive at once: up to {capacity(found.live_bytes)}"
    memory = found.memory
    if memory is None:
        return line
    return (
        f"{line}\nmemory: {capacity(memory.total_bytes)}: weights as they are kept "
        f"{capacity(memory.weights_bytes)}, arena {capacity(memory.arena_bytes)}, workspace "
        f"{capacity(memory.workspace_bytes)} (attention: {capacity(memory.attention_worker_bytes)} "
        f"a worker), outputs {capacity(memory.outputs_bytes)}, records "
        f"{capacity(memory.records_bytes)}"
    )


def _show_nodes(path: Path, record: ModelRecord, as_json: bool) -> None:
    from ftuner.cli.arrays import specs_of

    graph = record.graph
    values, nodes = [*map(str, specs_of(record))], [*map(str, graph.nodes)]
    if as_json:
        output.print_json(
            {"model": str(path), "inputs": values, "nodes": nodes, "outputs": [*graph.outputs]}
        )
        return
    typer.echo("\n".join(f"input {value}" for value in values))
    for number, node in enumerate(nodes, 1):
        typer.echo(f"{number:4}  {node}")
    typer.echo("\n".join(f"output {name}" for name in graph.outputs))
