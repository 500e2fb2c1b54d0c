"""Options and arguments that several commands share. Nothing heavy is imported, so that help is
quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer


def recorded_machines(incomplete: str) -> list[str]:
    """Completes the name of a recorded machine."""
    from ftuner.hardware.recorded import recorded_names

    return [name for name in recorded_names() if name.startswith(incomplete)]


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads; default: those that ftuner uses."),
]
DeviceOption = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, or a GPU as torch names it, such as cuda.")
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=recorded_machines,
        help="A recorded machine, by name or .toml file; default: this one.",
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, or one of ftuner save.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE", help="A .npy file for an input; repeatable."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1x77",
        help="The shape of an input of random values; repeatable, or several with commas. Inputs "
        "whose extents follow from the others may be left out.",
    ),
]
HeldOption = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="DTYPE", help="On a GPU: bfloat16 or float16, to hold float32 in."
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="On a CPU: bfloat16, int8-dynamic or int4-weights, to multiply float32 in.",
    ),
]
AppendOption = Annotated[
    bool,
    typer.Option(
        "--append-in-place",
        help="On a CPU: keys and values of a decoder are appended to earlier ones in place.",
    ),
]
# Hidden, because the help of a list is its type: the usage and the text of the command have them.
ProductArgument = Annotated[list[int] | None, typer.Argument(metavar="M N K", min=1, hidden=True)]
ExtentOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="An extent by its name.")
]


def given_extents(
    positional: Sequence[int] | None, options: Mapping[str, int | None]
) -> tuple[int, ...] | None:
    """The extents in the order of `options`, from one of the two forms; None if there are none.

    Raises:
        BadParameter: both forms, or a part of one.
    """
    named = {name: extent for name, extent in options.items() if extent is not None}
    order, flags = " ".join(options).upper(), " ".join(f"--{name}" for name in options)
    if positional and named:
        raise typer.BadParameter(f"give the extents as {order} or as {flags}, not as both")
    if positional:
        if len(positional) != len(options):
            got = " ".join(map(str, positional))
            raise typer.BadParameter(f"expected {len(options)} extents, {order}; got {got}")
        return tuple(positional)
    missing = [f"--{name}" for name in options if name not in named]
    if named and missing:
        raise typer.BadParameter(f"give all extents; {', '.join(missing)} missing")
    return tuple(named.values()) if named else None
