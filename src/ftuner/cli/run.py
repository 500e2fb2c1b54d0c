"""`ftuner run`: a model on arrays from files, or on random ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import numpy as np
import typer

from ftuner.cli.inputs import Array, InputOption, ShapeOption, gathered_inputs, shape_text
from ftuner.cli.loading import HeldOption, ModelArgument, loaded, read_specs, seconds_of
from ftuner.cli.output import DeviceOption, JsonOption, ThreadsOption, console, print_json
from ftuner.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table


def run(
    path: ModelArgument,
    inputs: InputOption = None,
    shapes: ShapeOption = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="A folder to save outputs in, as .npy files.")
    ] = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    dtype: HeldOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an ONNX model and describe its outputs."""
    feeds = gathered_inputs(read_specs(path), inputs, shapes)
    model, compile_s = loaded(path, threads, device, dtype)
    results: list[Array] = []
    first_s = seconds_of(lambda: results.extend(model.run(feeds)))
    again_s = seconds_of(lambda: model.run(feeds))
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
        "compile_s": compile_s,
        "first_s": first_s,
        "again_s": again_s,
        "outputs": described,
    }
    if as_json:
        print_json(document)
        return
    from ftuner.core.units import count, duration

    out = console()
    out.print(_outputs_table(described))
    out.print(
        f"loaded in {duration(compile_s)}; first call at these extents {duration(first_s)}, "
        f"another {duration(again_s)}, on {count(model.threads, 'thread')} of {device}",
        soft_wrap=True,
    )
    if output_dir is not None:
        out.print(f"{count(len(files), 'output')} saved in {output_dir}", soft_wrap=True)


def description(name: str, x: Array) -> dict[str, Any]:
    """An output's name, dtype, shape, least, mean and greatest value; None if not finite."""
    values = x.astype(np.float64)
    found: dict[str, float | None] = dict.fromkeys(("min", "mean", "max"))
    if x.size:
        for what, value in (("min", values.min()), ("mean", values.mean()), ("max", values.max())):
            found[what] = float(value) if np.isfinite(value) else None
    return {"name": name, "dtype": x.dtype.name, "shape": list(x.shape), **found}


def save(names: Sequence[str], arrays: Sequence[Array], folder: Path) -> dict[str, Path]:
    """Write each output to a file of its name. Characters that a file name should not have are
    quoted as in URLs: `/` is `%2F`.

    Raises:
        ConfigurationError: the folder or a file cannot be written.
    """
    files = {name: folder / f"{quote(name, safe='')}.npy" for name in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, x in zip(names, arrays, strict=True):
            np.save(files[name], x)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    return files


def _outputs_table(described: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("output", "dtype", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("min", "mean", "max"):
        table.add_column(column, justify="right")
    for entry in described:
        numbers = (_shown(entry[what]) for what in ("min", "mean", "max"))
        table.add_row(entry["name"], entry["dtype"], shape_text(entry["shape"]), *numbers)
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
