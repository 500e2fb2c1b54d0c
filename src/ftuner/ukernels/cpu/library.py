"""The library: the uKernels kept for one machine, ISA, dtypes and epilogue, by how they are used.

A *family* is the uKernels of one panel width: one for each height, all interchangeable on one
operand. Full panels are of the library's widths; the last columns of a matrix go to tail
families of every width up to the widest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple

from ftuner.core.caching import cached_attribute
from ftuner.core.cpu.common_epilogue import COMMON, has_shared_code
from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, ROW, STRIDED, WINDOW, RegisterTile, UKernel
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.frozen import dataclass
from ftuner.core.product import ProductTypes, product_types
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.ukernels.cpu.filters import (
    RegisterFunnel,
    dot_tiles,
    run_filters,
    with_matrix_tiles,
)

BSource = Literal["panels", "rows", "columns", "other"]
"""The layout of B. `panels`: packed before; `rows`: contiguous along n; `columns`: contiguous along
k; `other`: along neither."""


class Operands(NamedTuple):
    """The layouts that A and B of some products may have, as far as uKernels differ by them."""

    a_layouts: tuple[str, ...]
    """`ROW`, `COLUMN` or both; an A that has to be packed counts as `COLUMN`."""
    b_sources: tuple[BSource, ...]


class BRead(NamedTuple):
    """How uKernels read B."""

    layout: str
    dtype: DType
    """Of the elements that they read. Where it is not that of the product's B, its panels are
    widened before."""


ANY_MATRICES = Operands((ROW, COLUMN), ("rows", "columns", "other"))
"""Those of `matmul`."""
LAYERS = Operands((ROW, COLUMN), ("panels",))
"""Those of layers, whose weights are packed."""


@dataclass(frozen=True)
class Family:
    """uKernels of one width, operand layouts, dtypes and epilogue, one for each of some heights."""

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
        return self.kernels[-1].mr

    @cached_attribute
    def by_height(self) -> Mapping[int, UKernel]:
        return {kernel.mr: kernel for kernel in self.kernels}

    @cached_attribute
    def name(self) -> str:
        kind = "tail" if self.tail else "full"
        types = self.kernels[0].types
        of_b = f"_{types.b}" if types.widens else ""
        return f"{self.nr}_{kind}_{self.a_layout}_{self.b_layout}{of_b}"

    def __hash__(self) -> int:
        """A hash of the name: no two families of a library have the same."""
        return hash(self.name)


class LibraryName(NamedTuple):
    """Distinguishes the libraries of one ISA."""

    types: ProductTypes
    epilogue: Expr


@dataclass(frozen=True)
class Library:
    """All families for one machine, ISA, dtypes and epilogue."""

    hardware: CpuHardware
    isa: Isa
    types: ProductTypes
    epilogue: Expr
    funnel: RegisterFunnel
    """Follows from the machine, the ISA and the dtypes."""

    def __hash__(self) -> int:
        """Without the funnel, which has hundreds of tiles."""
        return hash((self.hardware, self.isa.name, self.types, self.epilogue))

    @cached_attribute
    def lanes(self) -> int:
        """The lanes of a vector of accumulators."""
        return self.isa.lanes(self.types.accumulator)

    @cached_attribute
    def _dot_tiles(self) -> list[RegisterTile]:
        return dot_tiles(self.isa, self.types, self.hardware.tuning)

    @cached_attribute
    def code(self) -> Library:
        """The library that has the uKernels which this one runs."""
        if self.epilogue == ACCUMULATOR or not has_shared_code(self.types, self.epilogue):
            return self
        return replace(self, epilogue=ACCUMULATOR)

    @cached_attribute
    def finisher(self) -> UKernel | None:
        """What a function that applies the epilogue to stored tiles depends on; None if the
        uKernels apply it."""
        if self.code is self or self.epilogue == COMMON:
            return None
        types = product_types(self.types.c)
        tile, name = RegisterTile(1, 1, 1), self.isa.name
        return UKernel(tile, types, name, self.lanes, tail=True, epilogue=self.epilogue)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of full panels, in vectors."""
        return self.funnel.widths

    @cached_attribute
    def dot_columns(self) -> tuple[int, ...]:
        """Widths of dot tiles, in columns."""
        return tuple(sorted({tile.vectors for tile in self._dot_tiles}))

    def family(
        self, vectors: int, tail: bool, a_layout: str, b_layout: str, b: DType | None = None
    ) -> Family:
        """The family of a width; tails are always read from packed panels. Tiles in parts are for
        weights, which come from far, and so for rows of A in place. `b`: dtype of B as it is read;
        by default that of the library."""
        key = (vectors, tail, a_layout, b_layout, b)
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = self._family(*key)
        return found

    @cached_attribute
    def _families(self) -> dict[tuple[int, bool, str, str, DType | None], Family]:
        """Families that have been made."""
        return {}

    def _family(
        self, vectors: int, tail: bool, a_layout: str, b_layout: str, b: DType | None
    ) -> Family:
        assert not tail or b_layout == PACKED
        in_parts = not tail and b_layout == PACKED and a_layout == ROW
        known = self._dot_tiles if b_layout == DOT else self.funnel.kept
        known = [t for t in known if t.width == vectors and (t.parts == 1 or in_parts)]
        if b_layout != DOT and a_layout != WINDOW:
            most = self.funnel.tail_heights[vectors - 1]
            known = [t for t in known if t.parts > 1 or t.mr <= most]
        if a_layout in (ROW, WINDOW) and b_layout == PACKED:
            in_place = a_layout == ROW
            known = with_matrix_tiles(known, vectors, self.isa, self.types, in_place)
        tiles = sorted(known, key=lambda t: t.mr)
        types = replace(self.types, b=b or self.types.b)
        epilogue = self.epilogue
        if has_shared_code(types, epilogue):
            # Those of layers, without operands: they are compiled once.
            epilogue = COMMON if b_layout == PACKED else ACCUMULATOR
        kernels = tuple(
            UKernel(t, types, self.isa.name, self.lanes, a_layout, b_layout, tail, epilogue)
            for t in tiles
        )
        return Family(vectors, tail, a_layout, b_layout, kernels)

    def b_reads(self, a_layout: str, b_source: BSource) -> tuple[BRead, ...]:
        """How uKernels may read full panels of B. The planner chooses among these, so that they
        are what is compiled. Dot tiles have no epilogues."""
        types = self.types
        if b_source == "panels":
            # A panel of narrower elements is widened as it is read, or once before.
            return tuple(BRead(PACKED, t) for t in dict.fromkeys((types.b, types.widened.b)))
        assert not types.widens, "only packed weights are narrower than A"
        layouts: tuple[str, ...] = (PACKED,)
        if b_source == "rows":
            layouts = (PACKED, STRIDED)
        elif b_source == "columns" and a_layout == ROW and self.epilogue == ACCUMULATOR:
            layouts = (PACKED, DOT)
        return tuple(BRead(layout, types.b) for layout in layouts)

    def families(
        self, operands: Operands, n: int | None = None, width: int = 0
    ) -> tuple[Family, ...]:
        """Every family that a plan may use for operands of these layouts. `n`: columns of B, if
        known; `width`: vectors of its panels, if it is packed before."""
        found: list[Family] = []
        for a_layout, b_source in product(operands.a_layouts, operands.b_sources):
            for b in self.b_reads(a_layout, b_source):
                if b.layout == DOT:
                    counts = [c for c in self.dot_columns if n is None or c <= n]
                    found += [self.family(count, False, ROW, DOT) for count in counts]
                else:
                    for vectors in (width,) if width else self.widths:
                        found += self._panel_families(vectors, a_layout, b, n)
        return tuple(dict.fromkeys(found))

    def _panel_families(self, vectors: int, a_layout: str, b: BRead, n: int | None) -> list[Family]:
        """That of full panels, and those of what may be left."""
        # Nothing after the last column may be touched: a tail is packed.
        nr = vectors * self.lanes
        tails = range(1, vectors + 1) if n is None else [-(-(n % nr) // self.lanes)]
        found = [self.family(v, True, a_layout, PACKED, b.dtype) for v in tails if v]
        if n is None or n >= nr:
            found.insert(0, self.family(vectors, False, a_layout, *b))
        return found


def families_of_calls(library: Library) -> tuple[Family, ...]:
    """The families that `matmul` and layers may use: only layers have epilogues."""
    return library.families(ANY_MATRICES if library.epilogue == ACCUMULATOR else LAYERS)


@lru_cache(maxsize=64)
def build_library(
    hardware: CpuHardware, isa_name: str, types: ProductTypes, epilogue: Expr = ACCUMULATOR
) -> Library:
    """Enumerate and filter: arithmetic on the hardware model, no measurement.

    Raises:
        HardwareError: the machine lacks the ISA, or the ISA has no multiply-add for these dtypes.
    """
    isa = hardware.isa(isa_name)
    # Of an int8 weight too, the tiles are those of floats: its panels may be widened before.
    return Library(hardware, isa, types, epilogue, run_filters(isa, types.multiplied, hardware))
