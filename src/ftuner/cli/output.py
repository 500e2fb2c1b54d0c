"""What the commands share: consoles, tables, JSON documents and progress bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def console() -> Console:
    """A console for results. A new one each time, because tests replace stdout."""
    from rich.console import Console

    return Console()


def progress_console() -> Console:
    """A console for progress and errors, on stderr."""
    from rich.console import Console

    return Console(stderr=True)


def show_table(out: Console, table: Table) -> None:
    """Print a table. Its title and caption are as wide as the terminal; rich would wrap them to the
    width of the table."""
    title, caption = table.title, table.caption
    table.title = table.caption = None
    if title is not None:
        out.print(title, style="table.title", highlight=False)
    out.print(table)
    if caption is not None:
        out.print(caption, style="table.caption", highlight=False)


def shape_text(shape: Sequence[int | str]) -> str:
    """A shape as options give it: `1x77`."""
    return "x".join(map(str, shape))


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on stderr while work lasts; yields a function of (what, done, total)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    out = progress_console()
    # A file or pipe would be left with an empty line.
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield show
