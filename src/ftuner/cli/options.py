"""Options and arguments that several commands share. Nothing heavy is imported, so that help is
quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option that takes a value. `names`: if it is not called like its parameter."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text)


def recorded_machines(incomplete: str) -> list[str]:
    """Completes the name of a recorded machine."""
    from ftuner.hardware.recorded import recorded_names

    return [name for name in recorded_names() if name.startswith(incomplete)]


JsonOption = Annotated[bool, flag("--json", "Print one JSON document on stdout and nothing else.")]
ThreadsOption = Annotated[
    int | None, option("N", "Threads; default: those that ftuner uses.", min=1)
]
DeviceOption = Annotated[str, option("NAME", "cpu, or a GPU as torch names it, such as cuda.")]
MachineOption = Annotated[
    str | None,
    option(
        "NAME",
        "A recorded machine, by name or .toml file; default: this one.",
        autocompletion=recorded_machines,
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, or one of ftuner save.")
]
InputOption = Annotated[
    list[str] | None, option("NAME=FILE", "A .npy file for an input; repeatable.", "--input")
]
ShapeOption = Annotated[
    list[str] | None,
    option(
        "NAME=1x77",
        "The shape of an input of random values; repeatable, or several with commas. Inputs "
        "whose extents follow from the others may be left out.",
        "--shape",
    ),
]
HeldOption = Annotated[
    str | None, option("DTYPE", "On a GPU: bfloat16 or float16, to hold float32 in.", "--dtype")
]
PrecisionOption = Annotated[
    str, option("NAME", "On a CPU: bfloat16, int8-dynamic, int4-weights or int4-dynamic.")
]
AppendOption = Annotated[
    bool,
    flag(
        "--append-in-place",
        "On a CPU: keys and values of a decoder are appended to earlier ones in place.",
    ),
]
# Hidden, because the help of a list is its type: the usage and the text of the command have them.
ProductArgument = Annotated[list[int] | None, typer.Argument(metavar="M N K", min=1, hidden=True)]
ExtentOption = Annotated[int | None, option("N", "An extent by its name.", min=1)]


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
