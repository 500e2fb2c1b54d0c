"""`ftuner tune`: enumerate, filter and compile the uKernels of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftuner.cli.options import DeviceOption, JsonOption, flag, option
from ftuner.cli.output import console, print_json, show_table, shown_progress
from ftuner.cli.routing import tool
from ftuner.core.units import count, duration

if TYPE_CHECKING:
    from ftuner.api import Prior
    from ftuner.hardware.constants import Calibration
    from ftuner.learn.sampling import Learned
    from ftuner.report.tuned import TuneReport
    from ftuner.runtime.backend import Effort


def tune(
    dtype: Annotated[
        str, option("DTYPE", "float32 or float64; on a GPU float16, bfloat16 or float32.")
    ] = "float32",
    activation: Annotated[
        str | None, option("NAME", "Activation of a Dense layer, such as relu or gelu.")
    ] = None,
    bias: Annotated[bool, flag("--bias", "For a Dense layer with a bias.")] = False,
    isa: Annotated[str | None, option("ISA", "Of a CPU; default: the widest.")] = None,
    prior: Annotated[
        Path | None, option("FILE", "Take over the tuning that hardware --export wrote.", "--from")
    ] = None,
    no_calibration: Annotated[
        bool, flag("--no-calibration", "Use the constants of the nearest known machine.")
    ] = False,
    thorough: Annotated[
        bool, flag("--thorough", "Measure the machine's constants for longer.")
    ] = False,
    ray: Annotated[
        str | None,
        option("ADDRESS", "Tune a node of each kind of a Ray cluster: its address, auto or local."),
    ] = None,
    out: Annotated[
        Path | None, option("FOLDER", "Folder for the files of --ray, one for each kind.")
    ] = None,
    device: DeviceOption = "cpu",
    everything: Annotated[
        bool, flag("--all", "Also the filters of tiles, and what was measured.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make products of a dtype and epilogue ready for every shape."""
    from ftuner import api
    from ftuner.errors import DTypeError
    from ftuner.report.tuning import calibration_table, funnel_document, funnel_table
    from ftuner.runtime.cpu.backend import default_backend
    from ftuner.runtime.cpu.session import ISA_VARIABLE, known_hardware
    from ftuner.runtime.devices import CPU, backend_of
    from ftuner.runtime.ops.layer import layer_epilogue

    if no_calibration and thorough:
        raise typer.BadParameter("--no-calibration and --thorough exclude each other")
    effort: Effort = "none" if no_calibration else "thorough" if thorough else "default"
    if (ray is None) != (out is None):
        raise typer.BadParameter("--ray and --out go together")
    if ray is not None and out is not None:
        given = (dtype, activation, bias, isa, prior, device)
        if given != ("float32", None, False, None, None, CPU):
            raise typer.BadParameter(
                "--ray takes no other options than --out, --thorough, --no-calibration and --json"
            )
        tool("fleet.command", "tune --ray").tune_cluster(ray, out, effort, as_json)
        return
    if device != CPU and (isa is not None or prior is not None):
        raise typer.BadParameter("--isa and --from are options of the CPU")
    backend = backend_of(device)
    known = backend.product_dtypes
    if dtype not in known:
        raise DTypeError(f"dtype is {dtype!r}; supported are {', '.join(known)}")
    if isa is not None:
        # A process chooses its ISA before its first product, by the environment.
        os.environ[ISA_VARIABLE] = known_hardware(default_backend().cache).isa(isa).name
    taken = None if prior is None else api.take_prior(prior, device)
    if taken is not None and not as_json:
        typer.echo(_said(taken))
    with shown_progress("tune") as show:
        report = api.tune(dtype, activation, bias, progress=show, device=device, calibrate=effort)
    calibration = report.calibration
    if as_json:
        print_json(
            {
                "dtype": report.dtype,
                "isa": report.isa,
                "activation": activation,
                "bias": bias,
                "compiled": report.compiled,
                "cached": report.cached,
                "seconds": report.seconds,
                "funnel": funnel_document(report.funnel),
                "prior": None if taken is None else taken._asdict(),
                "learned": None if report.learned is None else report.learned._asdict(),
                "calibration": None if calibration is None else calibration.document(),
            }
        )
        return
    library = backend_of(device).library(known[dtype], layer_epilogue(bias, activation, False))
    if everything:
        show_table(console(), funnel_table(library))
        if calibration is not None:
            show_table(console(), calibration_table(calibration))
    else:
        typer.echo(_kept(report))
        if calibration is not None:
            typer.echo(_measured(calibration))
    if report.learned is not None:
        typer.echo(_learned(report.learned))
    done = f"{count(report.compiled, 'object')} compiled"
    if not report.compiled:
        done = "nothing to compile"
    had = f"{report.cached} already in the cache"
    typer.echo(f"ready for every shape in {duration(report.seconds)}: {done}, {had}")
    if not everything:
        typer.echo("--all shows why other tiles were left out, and each constant")


def _kept(report: TuneReport) -> str:
    """Which tiles there are, in a sentence."""
    kept, enumerated = len(report.funnel.kept), report.funnel.enumerated
    return (
        f"{kept} of {count(enumerated, 'tile')} kept for {report.dtype} on {report.isa}: together "
        "they cover any shape exactly"
    )


def _measured(calibration: Calibration) -> str:
    """What was measured, in a sentence."""
    beside = ", beside other load" if calibration.noisy else ""
    found, changed = count(len(calibration.found), "constant"), len(calibration.changed)
    took = duration(calibration.seconds)
    return f"{found} measured on this machine in {took}, {changed} of them changed{beside}"


def _learned(learned: Learned) -> str:
    """What was learned, in a sentence."""
    if learned.kept:
        return f"learned a correction of the estimates from {learned.samples} samples"
    return f"learned no correction of the estimates: {learned.why}"


def _said(prior: Prior) -> str:
    """What was taken over, in a sentence."""
    constants = count(len(prior.constants), "constant")
    if prior.same_machine:
        return f"took over the tuning of {prior.machine}, which is this machine: {constants}"
    return f"took over {constants} of {prior.machine}, which is another machine"
