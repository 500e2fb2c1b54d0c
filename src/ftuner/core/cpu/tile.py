"""The uKernel: a tile program of fixed spatial size and run-time reduction length.

The tile equation. Level 0 is the register tile: `mr` rows times `vectors * lanes` columns of
accumulators, held `chains` times over consecutive steps of k and summed at the end (more than one
chain only where a single tile has too few accumulators to hide the latency of a multiply-add). As
many `parts` side by side, mostly one, make up the uKernel's `nr` columns.
Level 1 is the cache tile of a plan: `mc x kc` of A and a panel of `kc x nr` of B stay in L2.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.expr import key as expression_key
from ftuner.core.frozen import dataclass
from ftuner.core.product import ProductTypes

ROW = "row"
"""A is contiguous along k; rows are a run-time stride apart."""
COLUMN = "column"
"""A is contiguous along m; steps of k are a run-time stride apart. Packed A is of this layout."""
WINDOW = "window"
"""A is read through a window: rows and elements of a convolution's windows are found as they are
read, and no matrix exists."""
PACKED = "packed"
"""B in panels of `nr` columns, contiguous along n, one k step after the other. Elements narrower
than A's are widened as they are loaded; what scales them is left to the epilogue."""
STRIDED = "strided"
"""B in place, contiguous along n; steps of k are a run-time stride apart."""
MAX_OPERANDS = 4
"""Arrays that one epilogue reads: a native record has room for this many."""
MAX_SEGMENTS = 4
"""Different heights in the cover of one extent; more never pay, and a native record has room for
this many."""
DOT = "dot"
"""B in place, contiguous along k; columns are a run-time stride apart. The lanes of a vector
are then steps of k, and a tile's `vectors` are columns."""


@dataclass(frozen=True)
class RegisterTile:
    """Level 0. Registers: `mr * vectors * chains` accumulators, `vectors` of B, one of A."""

    mr: int
    vectors: int
    chains: int
    parts: int = 1
    """Tiles side by side, done one after the other: more rows than fit one tile of their width, in
    one pass over B."""
    matrix: bool = False
    """Whether a matrix unit multiplies, a tile of its registers for each vector of the row."""

    @property
    def width(self) -> int:
        """Vectors of a row of C, of all parts."""
        return self.vectors * self.parts

    @property
    def accumulators(self) -> int:
        return self.mr * self.vectors * self.chains

    def __str__(self) -> str:
        columns = "+".join([f"{self.vectors}v"] * self.parts)
        of = "m" if self.matrix else ""
        return f"{self.mr}x{columns}{of}" + (f"/{self.chains}" if self.chains > 1 else "")


@dataclass(frozen=True)
class UKernel:
    """One compiled tile program.

    `tail` uKernels store only the first columns of their tile, a number that is an argument; the
    others store all of them. `epilogue` is an expression of the accumulator and of operands, by
    default the accumulator itself.
    """

    tile: RegisterTile
    types: ProductTypes
    isa: str
    lanes: int
    """Of a vector of accumulators."""
    a_layout: str = ROW
    b_layout: str = PACKED
    tail: bool = False
    epilogue: Expr = ACCUMULATOR

    @property
    def mr(self) -> int:
        return self.tile.mr

    @property
    def nr(self) -> int:
        return self.tile.width * (1 if self.b_layout == DOT else self.lanes)

    @property
    def symbol(self) -> str:
        """The name of the compiled function, unique among all uKernels."""
        tail = ("_matrix" if self.tile.matrix else "") + ("_tail" if self.tail else "")
        return (
            f"gemm_{self.types}_{self.isa}_{self.mr}x{self.nr}_c{self.tile.chains}p{self.tile.parts}"
            f"_{self.a_layout}_{self.b_layout}{tail}_{epilogue_digest(self.epilogue)}"
        )

    def __str__(self) -> str:
        return f"{self.mr}x{self.nr}" + ("t" if self.tail else "")


@lru_cache(maxsize=256)
def epilogue_digest(epilogue: Expr) -> str:
    """A short stable name of an epilogue expression."""
    return hashlib.sha256(expression_key(epilogue).encode()).hexdigest()[:12]
