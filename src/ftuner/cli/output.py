"""What the commands share: common options, consoles, JSON documents and progress bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="Threads; default: those that ftuner uses.")
]

DeviceOption = Annotated[str, typer.Option(help="cpu, or a GPU as torch names it, such as cuda.")]


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def console() -> Console:
    """A console for results. A new one each time, because tests replace stdout."""
    return Console()


def progress_console() -> Console:
    """A console for progress and errors, on stderr."""
    return Console(stderr=True)


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
