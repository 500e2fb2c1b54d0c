"""What a graph needs of the libraries: uKernels of the panels that its weights are packed in, not
all that some weight might need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ftuner.core.expr import ACCUMULATOR
from ftuner.core.ukernel import PACKED, PACKED_INT8, ROW
from ftuner.graph.steps import AttentionStep, ProductStep, Step
from ftuner.hardware.model import CpuHardware
from ftuner.planner.planner import planner_for
from ftuner.planner.widths import best_width
from ftuner.ukernels.library import (
    ANY_OPERANDS,
    INT8_PANELS,
    PANELS,
    Family,
    Library,
    LibraryName,
    build_library,
)


class Need(NamedTuple):
    """Families that a step runs."""

    library: LibraryName
    families: tuple[Family, ...]
    width: int
    """Vectors of a panel of the step's weight; 0 if it has none."""


def need_of(step: Step, hardware: CpuHardware, isa: str, workers: int) -> Need | None:
    """What a step needs of a library; None if it runs no uKernels."""
    if isinstance(step, AttentionStep):
        name = LibraryName(step.q.layout.dtype, ACCUMULATOR, PANELS)
        library = build_library(hardware, isa, *name)
        full = library.family(library.widths[0], False, ROW, PACKED)
        # Any number of keys may come.
        tails = [library.family(v, True, ROW, PACKED) for v in range(1, max(library.widths) + 1)]
        return Need(name, (full, *tails), 0)
    if not isinstance(step, ProductStep):
        return None
    name = LibraryName(step.a.layout.dtype, step.epilogue, step.serves)
    planner = planner_for(build_library(hardware, isa, *name))
    width = 0
    if step.by_weight:
        k, n = (extent for extent in step.b.shape if isinstance(extent, int))
        width = best_width(planner, n, k, workers, step.serves == INT8_PANELS)
        if step.serves != ANY_OPERANDS:
            return Need(name, _families(planner.library, width, n), width)
    return Need(name, planner.library.families(), width)


def _families(library: Library, width: int, n: int) -> tuple[Family, ...]:
    """Those that products of contiguous rows with a weight of `n` columns choose from."""
    nr = width * library.lanes
    layouts = (PACKED, PACKED_INT8) if library.serves == INT8_PANELS else (PACKED,)
    found = []
    for layout in layouts:
        if n >= nr:
            found.append(library.family(width, False, ROW, layout))
        if n % nr:
            found.append(library.family(-(-(n % nr) // library.lanes), True, ROW, layout))
    return tuple(found)


def by_library(needs: Iterable[Need]) -> dict[LibraryName, tuple[Family, ...]]:
    """The families of each library, each once."""
    found: dict[LibraryName, dict[Family, None]] = {}
    for need in needs:
        found.setdefault(need.library, {}).update(dict.fromkeys(need.families))
    return {name: tuple(families) for name, families in found.items()}
