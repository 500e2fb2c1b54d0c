"""What the commands share: the JSON option, consoles, and how documents and errors are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def console() -> Console:
    """Where results go. Made anew, so that it writes to what stdout is now."""
    return Console()


def progress_console() -> Console:
    """Where progress and errors go: stderr."""
    return Console(stderr=True)
