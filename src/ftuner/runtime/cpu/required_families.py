"""Required families: the families of uKernels that a step may run. Only these are compiled, not all
families of a library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ftuner.core.cpu.tile import ROW
from ftuner.ukernels.cpu.library import Family, Library, LibraryName, Operands


class RequiredFamilies(NamedTuple):
    """The families that one step may run, all of one library."""

    library: LibraryName
    families: tuple[Family, ...]
    width: int
    """Panel width of the step's packed weight in vectors; 0 if it has none."""


def for_packed_weight(library: Library, n: int, width: int) -> RequiredFamilies:
    """The families for rows of A, read in place, by a weight of `n` columns in panels of `width`
    vectors."""
    families = library.families(Operands((ROW,), ("panels",)), n, width)
    return RequiredFamilies(LibraryName(library.types, library.epilogue), families, width)


def by_library(
    required: Iterable[RequiredFamilies | None],
) -> dict[LibraryName, tuple[Family, ...]]:
    """Group families by library, without repeats. None stands for a step without uKernels."""
    found: dict[LibraryName, dict[Family, None]] = {}
    for one in required:
        if one is not None:
            found.setdefault(one.library, {}).update(dict.fromkeys(one.families))
    return {name: tuple(families) for name, families in found.items()}
