"""What a graph needs of the libraries: the families that its steps may use at any extents, not all
that some product might use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ftuner.core.cpu.tile import PACKED, ROW
from ftuner.core.expr import ACCUMULATOR
from ftuner.graph.steps import AttentionStep, ProductStep, Step
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.panel_width import best_width
from ftuner.planner.cpu.planner import planner_for
from ftuner.runtime.cpu.operands import step_operands
from ftuner.ukernels.cpu.library import Family, LibraryName, build_library


class Need(NamedTuple):
    """Families that a step runs."""

    library: LibraryName
    families: tuple[Family, ...]
    width: int
    """Vectors of a panel of the step's weight; 0 if it has none."""


def need_of(step: Step, hardware: CpuHardware, isa: str, workers: int) -> Need | None:
    """What a step needs of a library; None if it runs no uKernels."""
    if isinstance(step, AttentionStep):
        name = LibraryName(step.q.layout.dtype, ACCUMULATOR)
        library = build_library(hardware, isa, *name)
        full = library.family(library.widths[0], False, ROW, PACKED)
        # Any number of keys may come.
        tails = [library.family(v, True, ROW, PACKED) for v in range(1, max(library.widths) + 1)]
        return Need(name, (full, *tails), 0)
    if not isinstance(step, ProductStep):
        return None
    name = LibraryName(step.a.layout.dtype, step.epilogue)
    library = build_library(hardware, isa, *name)
    operands = step_operands(step)
    k, n = (extent if isinstance(extent, int) else None for extent in step.b.shape[-2:])
    width = 0
    if step.by_weight:
        assert k is not None
        assert n is not None
        width = best_width(planner_for(library), n, k, workers, operands.int8)
    return Need(name, library.families(operands, n, width), width)


def by_library(needs: Iterable[Need]) -> dict[LibraryName, tuple[Family, ...]]:
    """The families of each library, each once."""
    found: dict[LibraryName, dict[Family, None]] = {}
    for need in needs:
        found.setdefault(need.library, {}).update(dict.fromkeys(need.families))
    return {name: tuple(families) for name, families in found.items()}
