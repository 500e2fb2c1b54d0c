"""`ftuner save`: a model compiled to one file, which loads without onnx and without a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftuner.cli.options import AppendOption, JsonOption, PrecisionOption, ThreadsOption, option
from ftuner.cli.output import console, loaded, print_json
from ftuner.core.units import capacity


def save(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "A name that ends in .ftuner; default: that of the model, in this folder.",
            "--output",
            "-o",
        ),
    ] = None,
    isas: Annotated[
        str | None,
        option(
            "A,B",
            "ISAs of this machine to have machine code for; default: the one in use.",
            "--isa",
        ),
    ] = None,
    threads: ThreadsOption = None,
    append_in_place: AppendOption = False,
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Compile an ONNX model to one file.

    It loads without onnx and without a compiler, in a fraction of the time. It is machine code, for
    machines with all instructions of this one and this version of ftuner; others compile it again
    if llvmlite is installed. Treat it as you treat a program.
    """
    from ftuner import inference

    target = Path(f"{path.stem}.ftuner") if output is None else output
    model, _ = loaded(path, threads, append_in_place=append_in_place, precision=precision)
    names = [name.strip() for name in (isas or "").split(",") if name.strip()]
    inference.save(model, target, isas=names)
    size = target.stat().st_size
    if as_json:
        print_json({"model": str(path), "file": str(target), "bytes": size, "isas": names})
        return
    console().print(f"saved in {target}: {capacity(size)}", soft_wrap=True, markup=False)
