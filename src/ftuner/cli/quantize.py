"""`ftuner quantize`: a model whose products are of integers, with ranges from samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftuner.cli.options import JsonOption, ThreadsOption
from ftuner.cli.output import console, print_json, shown_progress


def quantize(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    samples: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="Inputs of runs: a .npz file with an array for each input, or a folder of such.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The ONNX file to write.")
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A node to leave in floating point; repeatable."),
    ] = None,
    ranges: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How samples give ranges: minmax, percentile, or mse (least square error).",
        ),
    ] = "minmax",
    percentile: Annotated[
        float | None,
        typer.Option(metavar="P", help="Elements of 100 within the range of percentile."),
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
