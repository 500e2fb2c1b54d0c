"""The library: the uKernels kept for one machine, dtype and epilogue, by how they are used.

A *family* is the uKernels of one panel width: one for each height, all interchangeable on one
operand. Full panels are of the library's widths; the last columns of a matrix go to tail
families of every width up to the widest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.ukernel import COLUMN, DOT, PACKED, PACKED_INT8, ROW, STRIDED, UKernel
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.ukernels.enumerate import dot_tiles, register_tiles
from ftuner.ukernels.filters import Funnel, run_filters

ANY_OPERANDS = "any operands"
"""A and B lie as they like."""
PANELS = "panels"
"""A always has contiguous rows and B comes in panels, as in the products of a graph with weights: a
third of the uKernels."""
INT8_PANELS = "int8 panels"
"""The same with panels of 8-bit integers, read as they are or widened before."""


@dataclass(frozen=True)
class Family:
    """uKernels of one width, operand layouts and epilogue: `kernels[mr - 1]` has height `mr`."""

    vectors: int
    tail: bool
    a_layout: str
    b_layout: str
    kernels: tuple[UKernel, ...]

    @cached_property
    def nr(self) -> int:
        return self.kernels[0].nr

    @cached_property
    def max_mr(self) -> int:
        return len(self.kernels)

    @cached_property
    def name(self) -> str:
        kind = "tail" if self.tail else "full"
        return f"{self.nr}_{kind}_{self.a_layout}_{self.b_layout}"


class LibraryName(NamedTuple):
    """What tells one library of an ISA from another."""

    dtype: DType
    epilogue: Expr
    serves: str
    """As in `Library.serves`."""


@dataclass(frozen=True)
class Library:
    """All families for one machine, ISA, dtype and epilogue."""

    hardware: CpuHardware
    isa: Isa
    dtype: DType
    epilogue: Expr
    funnel: Funnel
    serves: str = ANY_OPERANDS
    """Which operands there are uKernels for: one of the names above."""

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of full panels, in vectors."""
        return self.funnel.widths

    @property
    def dot_columns(self) -> tuple[int, ...]:
        """Widths of dot tiles, in columns; none with an epilogue, whose layer packs its weight."""
        if self.serves != ANY_OPERANDS or self.epilogue != ACCUMULATOR:
            return ()
        return tuple(sorted({tile.vectors for tile in dot_tiles(self.isa)}))

    def family(self, vectors: int, tail: bool, a_layout: str, b_layout: str) -> Family:
        """The family of a width; tails are always read from packed panels. Tiles in parts are for
        weights, which come from far, and so for rows of A in place."""
        assert not tail or b_layout in (PACKED, PACKED_INT8)
        known = dot_tiles(self.isa) if b_layout == DOT else self.funnel.kept
        in_parts = not tail and b_layout in (PACKED, PACKED_INT8) and a_layout == ROW
        known = [t for t in known if t.width == vectors and (t.parts == 1 or in_parts)]
        tiles = sorted(known, key=lambda t: t.mr)
        assert [t.mr for t in tiles] == list(range(1, len(tiles) + 1))
        kernels = tuple(
            UKernel(t, self.dtype, self.isa.name, self.lanes, a_layout, b_layout, tail,
                    self.epilogue)
            for t in tiles
        )  # fmt: skip
        return Family(vectors, tail, a_layout, b_layout, kernels)

    def families(self) -> tuple[Family, ...]:
        """Every family that some plan may use. In-place B serves matrix products only: a layer
        packs its weight, so libraries with an epilogue have none."""
        anything = self.serves == ANY_OPERANDS
        panels = (PACKED, PACKED_INT8) if self.serves == INT8_PANELS else (PACKED,)
        in_place = (STRIDED,) if anything and self.epilogue == ACCUMULATOR else ()
        tails = range(1, max(self.widths) + 1)
        found = []
        for a_layout in (ROW, COLUMN) if anything else (ROW,):
            for b_layout in (*panels, *in_place):
                found += [self.family(v, False, a_layout, b_layout) for v in self.widths]
            for b_layout in panels:
                found += [self.family(v, True, a_layout, b_layout) for v in tails]
        found += [self.family(c, False, ROW, DOT) for c in self.dot_columns]
        return tuple(found)


@lru_cache(maxsize=64)
def build_library(
    hardware: CpuHardware,
    isa_name: str,
    dtype: DType,
    epilogue: Expr = ACCUMULATOR,
    serves: str = ANY_OPERANDS,
) -> Library:
    """Enumerate and filter: arithmetic on the hardware model, no measurement.

    Raises:
        HardwareError: the machine has no such ISA.
    """
    isa = hardware.isa(isa_name)
    funnel = run_filters(register_tiles(isa), isa, dtype, hardware)
    return Library(hardware, isa, dtype, epilogue, funnel, serves)
