"""The library: the uKernels kept for one machine, dtype and epilogue, by how they are used.

A *family* is the uKernels of one panel width: one for each height, all interchangeable on one
operand. Full panels are of the library's widths; the last columns of a matrix go to tail
families of every width up to the widest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ftuner.core.cached_attribute import cached_attribute
from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, PACKED_INT8, ROW, STRIDED, UKernel
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.ukernels.cpu.enumerate import dot_tiles, register_tiles
from ftuner.ukernels.cpu.filters import RegisterFunnel, run_filters

BSource = Literal["panels", "rows", "columns", "other"]
"""How B lies. `panels`: packed before; `rows`: contiguous along n; `columns`: contiguous along k;
`other`: along neither."""


class Operands(NamedTuple):
    """How A and B of some products may lie, as far as uKernels differ by it."""

    a_layouts: tuple[str, ...]
    """`ROW`, `COLUMN` or both; an A that has to be packed counts as `COLUMN`."""
    b_sources: tuple[BSource, ...]
    int8: bool = False
    """Whether panels hold 8-bit integers."""


ANY_MATRICES = Operands((ROW, COLUMN), ("rows", "columns", "other"))
"""Those of `matmul`."""
LAYERS = Operands((ROW, COLUMN), ("panels",))
"""Those of layers, whose weights are packed."""


@dataclass(frozen=True)
class Family:
    """uKernels of one width, operand layouts and epilogue: `kernels[mr - 1]` has height `mr`."""

    vectors: int
    tail: bool
    a_layout: str
    b_layout: str
    kernels: tuple[UKernel, ...]

    @cached_attribute
    def nr(self) -> int:
        return self.kernels[0].nr

    @cached_attribute
    def max_mr(self) -> int:
        return len(self.kernels)

    @cached_attribute
    def name(self) -> str:
        kind = "tail" if self.tail else "full"
        return f"{self.nr}_{kind}_{self.a_layout}_{self.b_layout}"


class LibraryName(NamedTuple):
    """What tells one library of an ISA from another."""

    dtype: DType
    epilogue: Expr


@dataclass(frozen=True)
class Library:
    """All families for one machine, ISA, dtype and epilogue."""

    hardware: CpuHardware
    isa: Isa
    dtype: DType
    epilogue: Expr
    funnel: RegisterFunnel

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of full panels, in vectors."""
        return self.funnel.widths

    @cached_attribute
    def dot_columns(self) -> tuple[int, ...]:
        """Widths of dot tiles, in columns."""
        return tuple(sorted({tile.vectors for tile in dot_tiles(self.isa, self.hardware.tuning)}))

    def family(self, vectors: int, tail: bool, a_layout: str, b_layout: str) -> Family:
        """The family of a width; tails are always read from packed panels. Tiles in parts are for
        weights, which come from far, and so for rows of A in place."""
        assert not tail or b_layout in (PACKED, PACKED_INT8)
        known = dot_tiles(self.isa, self.hardware.tuning) if b_layout == DOT else self.funnel.kept
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

    def b_layouts(self, a_layout: str, b_source: BSource, int8: bool = False) -> tuple[str, ...]:
        """How uKernels may read full panels of B. The planner chooses among these, so that they
        are what is compiled. Dot tiles have no epilogues."""
        if b_source == "panels":
            return (PACKED_INT8, PACKED) if int8 else (PACKED,)
        if b_source == "rows":
            return (PACKED, STRIDED)
        if b_source == "columns" and a_layout == ROW and self.epilogue == ACCUMULATOR:
            return (PACKED, DOT)
        return (PACKED,)

    def families(
        self, operands: Operands, n: int | None = None, width: int = 0
    ) -> tuple[Family, ...]:
        """Every family that a plan may use for operands that lie so. `n`: columns of B, if known;
        `width`: vectors of its panels, if it is packed before."""
        found: dict[Family, None] = {}
        for a_layout in operands.a_layouts:
            for b_source in operands.b_sources:
                for b_layout in self.b_layouts(a_layout, b_source, operands.int8):
                    if b_layout == DOT:
                        found.update(dict.fromkeys(self._dot_families(n)))
                    else:
                        widths = (width,) if width else self.widths
                        for vectors in widths:
                            some = self._panel_families(vectors, a_layout, b_layout, n)
                            found.update(dict.fromkeys(some))
        return tuple(found)

    def _panel_families(
        self, vectors: int, a_layout: str, b_layout: str, n: int | None
    ) -> list[Family]:
        """That of full panels, and those of what may be left."""
        # Nothing behind the last column may be touched: a tail is packed.
        tail_layout = PACKED if b_layout == STRIDED else b_layout
        nr = vectors * self.lanes
        tails = range(1, vectors + 1) if n is None else [-(-(n % nr) // self.lanes)]
        found = [self.family(v, True, a_layout, tail_layout) for v in tails if v]
        if n is None or n >= nr:
            found.insert(0, self.family(vectors, False, a_layout, b_layout))
        return found

    def _dot_families(self, n: int | None) -> list[Family]:
        return [
            self.family(columns, False, ROW, DOT)
            for columns in self.dot_columns
            if n is None or columns <= n
        ]


def families_of_calls(library: Library) -> tuple[Family, ...]:
    """Those that `matmul` and layers may use: only layers have epilogues."""
    return library.families(ANY_MATRICES if library.epilogue == ACCUMULATOR else LAYERS)


@lru_cache(maxsize=64)
def build_library(
    hardware: CpuHardware,
    isa_name: str,
    dtype: DType,
    epilogue: Expr = ACCUMULATOR,
) -> Library:
    """Enumerate and filter: arithmetic on the hardware model, no measurement.

    Raises:
        HardwareError: the machine has no such ISA.
    """
    isa = hardware.isa(isa_name)
    funnel = run_filters(register_tiles(isa), isa, dtype, hardware)
    return Library(hardware, isa, dtype, epilogue, funnel)
