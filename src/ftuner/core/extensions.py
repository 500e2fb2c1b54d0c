"""What has been added to ftuner from outside it, by which files are compiled to other programs."""

from __future__ import annotations

EXTENSIONS: set[str] = set()
"""The modules of importers, rules and schedules that were registered, and the names of scalar
functions."""


def note_extension(module: str) -> None:
    """Note what is registered, unless the module is one of ftuner."""
    if module.partition(".")[0] != "ftuner":
        EXTENSIONS.add(module)
