"""Options and arguments that several commands share. Nothing heavy is imported, so that help is
quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ATOL = 1e-4
"""The absolute difference from a reference that is tolerated by default."""
RTOL = 1e-3
"""The relative one."""


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
AppendOption = Annotated[
    bool,
    typer.Option(
        "--append-in-place",
        help="On a CPU: keys and values of a decoder are appended to earlier ones in place.",
    ),
]
PeersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Names of peers, separated by commas; default: all."),
]
