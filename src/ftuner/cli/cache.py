"""`ftuner cache`: lists or removes the entries of the cache folder."""

from __future__ import annotations

from typing import Annotated

import typer

from ftuner.cli.output import JsonOption, console, print_json


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the cache folder and its entries by kind, or clear it."""
    from rich.table import Table

    from ftuner.core.units import capacity, count
    from ftuner.runtime.cache import default_cache

    kept = default_cache()
    if clear:
        removed = kept.clear()
        if as_json:
            print_json({"folder": str(kept.folder), "removed": removed})
        else:
            typer.echo(f"{kept.folder}: {count(removed, 'entry', 'entries')} removed")
        return
    kinds: dict[str, list[int]] = {}
    for entry in kept.entries():
        kinds.setdefault(entry.kind, []).append(entry.bytes)
    if as_json:
        by_kind = {kind: {"entries": len(s), "bytes": sum(s)} for kind, s in kinds.items()}
        document = {"folder": str(kept.folder), "max_bytes": kept.max_bytes, "kinds": by_kind}
        print_json(document)
        return
    typer.echo(f"{kept.folder}, at most {capacity(kept.max_bytes)}")
    if not kinds:
        typer.echo("empty")
        return
    table = Table()
    table.add_column("kind")
    table.add_column("entries", justify="right")
    table.add_column("size", justify="right")
    for kind, sizes in kinds.items():
        table.add_row(kind, str(len(sizes)), capacity(sum(sizes)))
    console().print(table)
