"""Extents of a product on the command line: `77 768 768`, or `--m 77 --n 768 --k 768`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

# Hidden, because the help of a list is its type: the usage and the text of the command have them.
ProductArgument = Annotated[list[int] | None, typer.Argument(metavar="M N K", min=1, hidden=True)]
BatchedArgument = Annotated[
    list[int] | None, typer.Argument(metavar="BATCH M N K", min=1, hidden=True)
]
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
