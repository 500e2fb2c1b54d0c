"""`ftuner quantize`: a model whose products are of integers, with ranges from samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftuner.cli.options import JsonOption, ThreadsOption, option
from ftuner.cli.output import console, print_json, shown_progress


def quantize(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    samples: Annotated[
        Path,
        option(
            "PATH", "Inputs of runs: a .npz file with an array for each input, or a folder of such."
        ),
    ],
    output: Annotated[Path, option("FILE", "The ONNX file to write.", "--output", "-o")],
    keep: Annotated[
        list[str] | None, option("NAME", "A node to leave in floating point; repeatable.")
    ] = None,
    ranges: Annotated[
        str,
        option("NAME", "How samples give ranges: minmax, percentile, or mse (least square error)."),
    ] = "minmax",
    percentile: Annotated[
        float | None, option("P", "Elements of 100 within the range of percentile.")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Quantise products and convolutions of an ONNX model to 8 bits.

    Writes an ONNX file with pairs of QuantizeLinear and DequantizeLinear, which other engines read,
    too. `ftuner compare` shows what is lost.
    """
    from ftuner.cli.arrays import read_samples
    from ftuner.quantised import PERCENTILE
    from ftuner.quantised import quantize as quantized

    with shown_progress("quantize") as show:
        found = quantized(
            path, read_samples(samples), output, keep=keep or (), ranges=ranges,
            percentile=PERCENTILE if percentile is None else percentile, threads=threads,
            progress=show,
        )  # fmt: skip
    if as_json:
        print_json(
            {
                "model": str(path),
                "file": str(output),
                "layers": list(found.layers),
                "left": dict(found.left),
            }
        )
        return
    out = console()
    out.print(
        f"saved in {output}: {len(found.layers)} layers in integers, {len(found.left)} left",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    for name, why in found.left.items():
        out.print(f"  {name}: {why}", soft_wrap=True, markup=False)
