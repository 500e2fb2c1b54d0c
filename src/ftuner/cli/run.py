"""`ftuner run`: a model on arrays from files, or on random ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ftuner.cli import options, output
from ftuner.core.units import count, duration, optional

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cli.arrays import Array


def run(
    path: options.ModelArgument,
    inputs: options.InputOption = None,
    shapes: options.ShapeOption = None,
    output_dir: Annotated[
        Path | None, options.option("FOLDER", "A folder to save outputs in, as .npy files.")
    ] = None,
    threads: options.ThreadsOption = None,
    device: options.DeviceOption = "cpu",
    dtype: options.HeldOption = None,
    append_in_place: options.AppendOption = False,
    precision: options.PrecisionOption = "float32",
    as_json: options.JsonOption = False,
) -> None:
    """Run an ONNX model and describe its outputs."""
    from ftuner.cli.arrays import description, gathered_inputs, save

    feeds = gathered_inputs(output.read_specs(path), inputs, shapes)
    model, compile_s = output.loaded(path, threads, device, dtype, append_in_place, precision)
    results: list[Array] = []
    first_s = output.seconds_of(lambda: results.extend(model.run(feeds)))
    again_s = output.seconds_of(lambda: model.run(feeds))
    names = [spec.name for spec in model.outputs]
    files = save(names, results, output_dir) if output_dir is not None else {}
    described = [
        {**description(name, x), **({"file": str(files[name])} if files else {})}
        for name, x in zip(names, results, strict=True)
    ]
    document = {
        "model": str(path),
        "device": device,
        "threads": model.threads,
        "inputs": {name: list(x.shape) for name, x in feeds.items()},
        "appended": model.appended,
        "copied": model.copied,
        "compile_s": compile_s,
        "first_s": first_s,
        "again_s": again_s,
        "outputs": described,
    }
    if as_json:
        output.print_json(document)
        return
    from ftuner.report.model import growth_facts

    out = output.console()
    output.show_table(out, _outputs_table(described))
    out.print(
        f"loaded in {duration(compile_s)}; first call at these extents {duration(first_s)}, "
        f"another {duration(again_s)}, on {count(model.threads, 'thread')} of {device}",
        soft_wrap=True,
    )
    if append_in_place:
        facts = growth_facts(model.appended, model.copied) or {"appended in place": "none"}
        for name, text in facts.items():
            out.print(f"{name}: {text}", soft_wrap=True)
    if output_dir is not None:
        out.print(f"{count(len(files), 'output')} saved in {output_dir}", soft_wrap=True)


def _outputs_table(described: Sequence[dict[str, Any]]) -> Table:
    from ftuner.report.tables import table

    rows = [
        (entry["name"], entry["dtype"], output.shape_text(entry["shape"]),
         *(optional(entry[what], "{:.6g}".format, "-") for what in ("min", "mean", "max")))
        for entry in described
    ]  # fmt: skip
    return table(None, ("output", "dtype", "shape", ">min", ">mean", ">max"), rows)
