"""Tables of bounded length."""

from __future__ import annotations

from typing import Any


def forget_oldest(table: dict[Any, Any], limit: int) -> None:
    """Make room for one entry more in a table of at most `limit`. Several threads may do so at
    once: entries may be looked up and added meanwhile."""
    while len(table) >= limit:
        try:
            table.pop(next(iter(table)), None)
        except (RuntimeError, StopIteration):
            # Another thread added or removed an entry, and has seen to the length.
            continue
