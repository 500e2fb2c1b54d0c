"""`ftuner cache`: shows, prunes or clears the cache folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli.options import JsonOption, flag, option
from ftuner.cli.output import console, print_json, show_table
from ftuner.core.units import capacity, count

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.runtime.cache import Cache, Entry

PRUNED_DAYS = 30.0
"""`--prune` alone removes what was not used for this long."""
DAY_S = 86400.0


def cache(
    prune: Annotated[
        bool, flag("--prune", "Remove entries not used for 30 days, or as follows.")
    ] = False,
    older_than: Annotated[
        float | None, option("DAYS", "With --prune: those not used for DAYS.", min=0.0)
    ] = None,
    to: Annotated[
        float | None, option("MIB", "With --prune: the least recently used, down to MIB.", min=0.0)
    ] = None,
    clear: Annotated[bool, flag("--clear", "Remove all entries.")] = False,
    yes: Annotated[bool, flag("--yes", "With --clear: do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the cache folder, prune it or clear it.

    Where it is, whether it can be written, its limit, and the number, size and last use of its
    entries. Other processes may use the folder meanwhile.
    """
    from ftuner.runtime.cache import default_cache

    if prune and clear:
        raise typer.BadParameter("--prune and --clear exclude each other")
    if not prune and (older_than is not None or to is not None):
        raise typer.BadParameter("--older-than and --to go with --prune")
    if as_json and clear and not yes:
        raise typer.BadParameter("--clear asks first; with --json give --yes")
    kept = default_cache()
    if prune:
        _prune(kept, older_than, to, as_json)
    elif clear:
        _clear(kept, yes, as_json)
    else:
        _show(kept, as_json)


def _prune(kept: Cache, days: float | None, mib: float | None, as_json: bool) -> None:
    if days is None and mib is None:
        days = PRUNED_DAYS
    removed = kept.prune(
        None if days is None else days * DAY_S, None if mib is None else int(mib * (1 << 20))
    )
    freed = sum(entry.bytes for entry in removed)
    left = sum(entry.bytes for entry in kept.entries())
    if as_json:
        print_json({"folder": str(kept.folder), "removed": len(removed), "removed_bytes": freed,
                    "bytes": left})  # fmt: skip
        return
    entries = count(len(removed), "entry", "entries")
    typer.echo(f"{kept.folder}: {entries} removed, {capacity(freed)}; {capacity(left)} left")


def _clear(kept: Cache, yes: bool, as_json: bool) -> None:
    if not yes:
        entries = count(len(kept.entries()), "entry", "entries")
        typer.confirm(f"Remove {entries} of {kept.folder}?", abort=True, err=True)
    removed = kept.clear()
    if as_json:
        print_json({"folder": str(kept.folder), "removed": removed})
    else:
        typer.echo(f"{kept.folder}: {count(removed, 'entry', 'entries')} removed")


def _show(kept: Cache, as_json: bool) -> None:
    state, kinds = kept.state(), _by_kind(kept.entries())
    used = sum(entry.bytes for entries in kinds.values() for entry in entries)
    if as_json:
        print_json(
            {
                "folder": str(kept.folder),
                "exists": state.exists,
                "writeable": state.writeable,
                "problem": state.problem,
                "bytes": used,
                "max_bytes": kept.max_bytes,
                "kinds": {kind: _document(entries) for kind, entries in kinds.items()},
            }
        )
        return
    access = "writeable" if state.writeable else "cannot be written"
    typer.echo(f"folder: {kept.folder} ({access if state.exists else f'not made yet, {access}'})")
    if state.problem is not None:
        typer.echo(f"not used: {state.problem}")
    typer.echo(f"size: {capacity(used)} of at most {capacity(kept.max_bytes)}")
    if kinds:
        show_table(console(), _table(kinds))
    else:
        typer.echo("empty")


def _by_kind(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    return kinds


def _document(entries: Sequence[Entry]) -> dict[str, Any]:
    """What is known of the entries of a kind; times are seconds since the epoch, exact to a day."""
    times = [entry.used_s for entry in entries]
    return {
        "entries": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "least_recent_use_s": min(times),
        "most_recent_use_s": max(times),
    }


def _table(kinds: dict[str, list[Entry]]) -> Table:
    from ftuner.report.tables import table

    now, rows = time.time(), []
    for kind, entries in kinds.items():
        times = [entry.used_s for entry in entries]
        size, ages = capacity(sum(entry.bytes for entry in entries)), (max(times), min(times))
        rows.append((kind, str(len(entries)), size, *(_age(now - used) for used in ages)))
    head = ("kind", ">entries", ">size", ">newest use", ">oldest use")
    said = "the time of a use is exact to a day"
    return table(None, head, rows, caption=said, caption_justify="left")


def _age(seconds: float) -> str:
    days = int(max(seconds, 0.0) // DAY_S)
    return f"{count(days, 'day')} ago" if days else "today"
