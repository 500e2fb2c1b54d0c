"""`ftuner compare`: the outputs of a model compared with those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
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
    option,
)
from ftuner.cli.output import console, loaded, print_json, read_specs, shape_text, show_table
from ftuner.errors import ConfigurationError, FTunerError
from ftuner_tools.timing import ATOL, RTOL

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cli.arrays import Array
    from ftuner_tools.losses import Loss
    from ftuner_tools.onnx_engines import BindAll

REFERENCE = "onnxruntime"
EXIT_DIFFERENT = 1


def compare(
    path: ModelArgument,
    inputs: InputOption = None,
    shapes: ShapeOption = None,
    samples: Annotated[
        Path | None,
        option(
            "PATH",
            "Inputs of several runs: a .npz file with an array for each, or a folder of such.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        option("FILE", "The ONNX file that a quantised MODEL was made of; default: MODEL."),
    ] = None,
    layers: Annotated[
        int, option("N", "Show the N products and convolutions whose errors grow most.", min=0)
    ] = 0,
    rtol: Annotated[
        float, option("R", "Tolerance relative to the expected value.", min=0.0)
    ] = RTOL,
    atol: Annotated[float, option("A", "Absolute tolerance, in addition.", min=0.0)] = ATOL,
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
    from ftuner.cli.arrays import gathered_inputs, read_samples
    from ftuner_tools.losses import Compared, Layers
    from ftuner_tools.measuring import version_of
    from ftuner_tools.onnx_engines import ONNX_ENGINES

    if not ONNX_ENGINES[REFERENCE].available():
        raise ConfigurationError(
            f"comparing needs {REFERENCE}; install it with: pip install {REFERENCE}"
        )
    if samples is not None and (inputs or shapes):
        raise ConfigurationError("give --samples, or --input and --shape, not both")
    feeds = (
        iter([gathered_inputs(read_specs(path), inputs, shapes)])
        if samples is None
        else read_samples(samples)
    )
    reference = against or path
    observed = Layers(path, reference) if layers or against else None
    files = [path, reference]
    with TemporaryDirectory() as folder:
        if observed is not None and layers:
            files = [observed.observed(file, Path(folder)) for file in files]
        model, _ = loaded(files[0], threads, device, dtype, append_in_place, precision)
        run_reference = _reference(files[1], model.threads)
    names = [spec.name for spec in model.outputs]
    compared = {name: Compared() for name in (observed.outputs if observed else names)}
    shown: dict[str, list[int]] = {}
    for given in feeds:
        results = dict(zip(names, model.run(given), strict=True))
        expected = dict(zip(names, _run(run_reference, given), strict=True))
        shown = shown or {name: list(x.shape) for name, x in given.items()}
        for name, both in compared.items():
            both.add(results[name], expected[name], rtol, atol)
        if observed is not None and layers:
            observed.add(results, expected)
    losses = observed.losses()[:layers] if observed else []
    outputs = [{"name": name, **both.as_dict()} for name, both in compared.items()]
    within = all(entry["within"] for entry in outputs)
    version = version_of(REFERENCE)
    if as_json:
        print_json(
            {
                "model": str(path),
                "reference": {"name": REFERENCE, "version": version},
                "rtol": rtol,
                "atol": atol,
                "inputs": shown,
                "outputs": outputs,
                "layers": [asdict(loss) for loss in losses],
                "within": within,
            }
        )
    else:
        title = f"{path.name} beside {REFERENCE} {version}: rtol {rtol:g}, atol {atol:g}"
        show_table(console(), _table(title, outputs))
        if losses:
            show_table(console(), _layer_table(losses))
    if not within:
        raise typer.Exit(EXIT_DIFFERENT)


def _reference(path: Path, threads: int) -> BindAll:
    from ftuner_tools.onnx_engines import ONNX_ENGINES

    try:
        return ONNX_ENGINES[REFERENCE].prepare(path, threads, None)
    except Exception as error:  # Its classes share no base.
        raise FTunerError(f"{REFERENCE} cannot load the model: {error}") from error


def _run(bound: BindAll, feeds: dict[str, Array]) -> list[Array]:
    try:
        return bound(feeds)()
    except Exception as error:  # Its classes share no base.
        raise FTunerError(f"{REFERENCE} cannot run the model: {error}") from error


def _layer_table(losses: Sequence[Loss]) -> Table:
    from ftuner.report.tables import table

    rows = [(loss.name, _shown(loss.before), _shown(loss.after)) for loss in losses]
    title = "relative errors of layers; the greatest increases"
    return table(title, ("layer", ">of what it reads", ">of what it gives"), rows)


def _table(title: str, outputs: Sequence[dict[str, Any]]) -> Table:
    from ftuner.report.tables import table

    errors = {"absolute": ">max absolute error", "relative": ">max relative error",
              "norm": ">error of the norm"}  # fmt: skip
    rows = []
    for entry in outputs:
        verdict = "yes" if entry["within"] else "no"
        if entry["why"]:
            verdict = f"{verdict}: {entry['why']}"
        numbers = (_shown(entry[name]) for name in errors)
        shape = shape_text(entry["shape"])
        rows.append((entry["name"], entry["dtype"], shape, *numbers, verdict))
    return table(title, ("output", "dtype", "shape", *errors.values(), "within"), rows)


def _shown(error: float | None) -> str:
    return "-" if error is None else f"{error:.3g}"
