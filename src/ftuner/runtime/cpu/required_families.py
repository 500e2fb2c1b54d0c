"""The families of uKernels that the steps of a graph run at some extents. Only these are compiled,
not all families of a library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ftuner.ukernels.cpu.library import Family, LibraryName


class RequiredFamilies(NamedTuple):
    """The families that one step runs, all of one library."""

    library: LibraryName
    families: tuple[Family, ...]
    width: int
    """Vectors of a panel of the step's packed weight; 0 if it has none."""


def by_library(
    required: Iterable[RequiredFamilies | None],
) -> dict[LibraryName, tuple[Family, ...]]:
    """The families of each library, each once. None stands for a step that runs no uKernels."""
    found: dict[LibraryName, dict[Family, None]] = {}
    for one in required:
        if one is not None:
            found.setdefault(one.library, {}).update(dict.fromkeys(one.families))
    return {name: tuple(families) for name, families in found.items()}
