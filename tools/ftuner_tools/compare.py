"""`ftuner compare`: the outputs of a model compared with those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli.options import (
    AppendOption,
    DeviceOption,
    HeldOption,
    InputOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    ShapeOption,
    ThreadsOption,
)
from ftuner.cli.output import console, loaded, print_json, read_specs, shape_text, show_table
from ftuner.errors import ConfigurationError, FTunerError
from ftuner_tools.timing import ATOL, RTOL

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cli.arrays import Array

REFERENCE = "onnxruntime"
EXIT_DIFFERENT = 1


def compare(
    path: ModelArgument,
    inputs: InputOption = None,
    shapes: ShapeOption = None,
    rtol: Annotated[
        float,
        typer.Option(min=0.0, metavar="R", help="Tolerance relative to the expected value."),
    ] = RTOL,
    atol: Annotated[
        float, typer.Option(min=0.0, metavar="A", help="Absolute tolerance, in addition.")
    ] = ATOL,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    dtype: HeldOption = None,
    append_in_place: AppendOption = False,
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Compare the outputs of an ONNX model with ONNX Runtime's.

    ONNX Runtime computes on the CPU. The exit code is 1 if outputs differ.
    """
    from ftuner.cli.arrays import gathered_inputs
    from ftuner_tools.agreement import agreement
    from ftuner_tools.measuring import version_of
    from ftuner_tools.onnx_engines import ONNX_ENGINES

    if not ONNX_ENGINES[REFERENCE].available():
        raise ConfigurationError(
            f"comparing needs {REFERENCE}; install it with: pip install {REFERENCE}"
        )
    feeds = gathered_inputs(read_specs(path), inputs, shapes)
    model, _ = loaded(path, threads, device, dtype, append_in_place, precision)
    results = model.run(feeds)
    expected = _expected(path, model.threads, feeds)
    outputs: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "dtype": x.dtype.name,
            "shape": list(x.shape),
            **asdict(agreement(x, y, rtol, atol)),
        }
        for spec, x, y in zip(model.outputs, results, expected, strict=True)
    ]
    within = all(entry["within"] for entry in outputs)
    version = version_of(REFERENCE)
    if as_json:
        print_json(
            {
                "model": str(path),
                "reference": {"name": REFERENCE, "version": version},
                "rtol": rtol,
                "atol": atol,
                "inputs": {name: list(x.shape) for name, x in feeds.items()},
                "outputs": outputs,
                "within": within,
            }
        )
    else:
        title = f"{path.name} beside {REFERENCE} {version}: rtol {rtol:g}, atol {atol:g}"
        show_table(console(), _table(title, outputs))
    if not within:
        raise typer.Exit(EXIT_DIFFERENT)


def _expected(path: Path, threads: int, feeds: dict[str, Array]) -> list[Array]:
    from ftuner_tools.onnx_engines import ONNX_ENGINES

    try:
        return ONNX_ENGINES[REFERENCE].prepare(path, threads, None)(feeds)()
    except Exception as error:  # Its classes share no base.
        raise FTunerError(f"{REFERENCE} cannot run the model: {error}") from error


def _table(title: str, outputs: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("output", "dtype", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("max absolute error", "max relative error"):
        table.add_column(column, justify="right")
    table.add_column("within")
    for entry in outputs:
        verdict = "yes" if entry["within"] else "no"
        if entry["why"]:
            verdict = f"{verdict}: {entry['why']}"
        table.add_row(
            entry["name"], entry["dtype"], shape_text(entry["shape"]),
            _shown(entry["absolute"]), _shown(entry["relative"]), verdict,
        )  # fmt: skip
    return table


def _shown(error: float | None) -> str:
    return "-" if error is None else f"{error:.3g}"
