"""The uKernel of a GPU: a block tile of fixed spatial size and run-time reduction length.

The tile equation. Level 1 is the block tile: `bm x bn` accumulators spread over the registers of
`warps` warps; `bk` steps of A and B at a time pass through shared memory, where `stages` of them
are on their way or in use. Level 0, what one warp or warp group does of it, follows from the
matrix instruction and is left to the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ftuner.core.cpu.tile import epilogue_digest
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr, operands

Order = Literal["k", "spatial"]
"""Along which axis an operand is contiguous: k, or its spatial axis (m for A, n for B)."""
Multiply = Literal["float16", "bfloat16", "tf32", "float32"]
"""What the elements of A and B are rounded to before they are multiplied: as they are, or float32
to the 19 bits of tf32. Sums are float32 always. The names are those of `GpuHardware`'s rates;
`float32` runs on the vector units."""
Loads = Literal["pointers", "descriptors"]
"""How tiles of A and B reach shared memory: by addresses, element by element, or by descriptors of
the whole operand that the chip's copy engine (TMA) walks."""

ALIGNMENT_BYTES = 16
"""Of the widest load of one thread, and of the addresses and strides that a tensor descriptor (CUDA
C++ Programming Guide, `cuTensorMapEncodeTiled`) takes."""
MOST_COUNTED = 2**31 - 2**20
"""Rows, columns, elements of a sum, tiles and parts of these that a launch may have. Kernels count
with 32 bits, and further than there is something: to the end of the tile that begins at the last
row, and to the tile that a program would do next. What is left for that is more than tiles have
rows, and more than any chip has programs. Addresses, strides and offsets have 64 bits."""

_ASYNCHRONOUS = ("sm_90", "sm_100")
"""Chips whose matrix instruction (wgmma, tcgen05) reads shared memory on its own, so that a stage
is in use while the next one is waited for."""
_WARPS_OF_GROUP, _ROWS_OF_GROUP = 4, 64
"""Warps that give such an instruction together, and rows that it has."""
_SUM_BYTES = 4
_BARRIER_BYTES = 8
"""Of one stage that the copy engine fills."""
_THREADS_PER_WARP = 32
"""Where a chip has more, a thread holds less than is said here."""
_LEAST_SLICE_COLUMNS = 16


class Slicing(NamedTuple):
    """Limits on the columns that pass through an epilogue at once; a chip's tuning has them."""

    values_per_thread: int
    """Values that a thread holds in an epilogue, besides its accumulators."""
    addresses_per_thread: int
    """The same where each value is stored by an address of its own."""
    staging_bytes: int
    """Shared memory of C on its way to the copy engine."""


@dataclass(frozen=True)
class BlockTile:
    """Level 1."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int

    def accumulators_per_thread(self, warp_threads: int) -> int:
        return self.bm * self.bn // (self.warps * warp_threads)

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk}/{self.warps}w{self.stages}s"


@dataclass(frozen=True)
class ProductKernel:
    """What is compiled and launched once for a product: one uKernel, or two that patch one output.

    `tiles[0]` covers the first rows, `tiles[1]`, if there is one, the rest; they have the same
    `bn`, `bk`, `warps` and `stages`, so that one launch runs both.
    """

    tiles: tuple[BlockTile, ...]
    dtype: DType
    multiply: Multiply
    a_order: Order
    b_order: Order
    loads: Loads = "pointers"
    aligned: bool = True
    """Whether the bases and the run-time strides of all matrices are multiples of 16 bytes, and,
    where pointers walk along a contiguous k, the bytes of k too."""
    c_aligned: bool = True
    """False if `aligned` is not to be relied on for C and the epilogue's matrices."""
    specialised: bool = False
    """Whether some warps load while others multiply (warp specialisation); for chips where Triton
    does that, with descriptors."""
    split: bool = False
    """Whether the reduction axis is cut among programs, whose partial sums the last one adds up."""
    grouped: bool = False
    """Whether one launch multiplies many pairs of matrices of their own extents, which it finds in
    a table; with one tile, by pointers, k whole and no epilogue."""
    epilogue: Expr = ACCUMULATOR
    vectors: DType | None = None
    """What the epilogue's rows and columns are, if not `dtype`."""
    slicing: Slicing = field(kw_only=True)

    @property
    def main(self) -> BlockTile:
        return self.tiles[0]

    @property
    def stores_by_descriptor(self) -> bool:
        """Whether C too is written by the copy engine."""
        return self.loads == "descriptors" and self.aligned and self.c_aligned

    @property
    def slices(self) -> int:
        """Slices of its columns in which a tile passes through the epilogue, one after the other;
        a power of two. One where warps are specialised: Triton cannot slice what they hand on."""
        if self.specialised:
            return 1
        tile = self.main
        wanted = 1
        if self.stores_by_descriptor:
            wanted = -(-tile.bm * tile.bn * self.dtype.itemsize // self.slicing.staging_bytes)
        values = tile.accumulators_per_thread(_THREADS_PER_WARP)
        if not (self.aligned and self.c_aligned):
            wanted = max(wanted, -(-values // self.slicing.addresses_per_thread))
        elif self.epilogue != ACCUMULATOR:
            wanted = max(wanted, -(-values // self.slicing.values_per_thread))
        # Tiles and warps are powers of two, and so is what is wanted.
        return max(1, min(wanted, tile.bn // _LEAST_SLICE_COLUMNS))

    def buffers(self, architecture: str) -> int:
        """Stages that lie in shared memory: one less than the stages where the multiplying warps
        read a stage into registers before they wait for the next; one where elements are loaded
        singly, two bytes at a time, which nothing can do in the background."""
        if self.loads == "pointers" and not self.aligned and self.dtype.itemsize < 4:
            return 1
        tile, whole = self.main, self.multiply != "float32"
        groups = tile.bm % _ROWS_OF_GROUP == 0 and tile.warps % _WARPS_OF_GROUP == 0
        asynchronous = architecture in _ASYNCHRONOUS and whole and groups
        return tile.stages if asynchronous else max(tile.stages - 1, 1)

    def shared_bytes(self, architecture: str) -> int:
        """Bytes of shared memory that a block takes: the buffers of A and B, and beside them, where
        the next tile is loaded while one is stored, slices of C and of the epilogue's matrices.

        On sm_80 and sm_90, Triton allocates this to within half a kibibyte, or less where what
        passes between layouts passes piece by piece: matrices of the epilogue, and tiles without
        buffers that hide it.
        """
        return max(self._shared_bytes_of(tile, architecture) for tile in self.tiles)

    def _shared_bytes_of(self, tile: BlockTile, architecture: str) -> int:
        itemsize = self.dtype.itemsize
        buffers = self.buffers(architecture)
        loaded = buffers * (tile.bm + tile.bn) * tile.bk * itemsize
        slice_bytes = tile.bm * (tile.bn // self.slices) * itemsize
        sums = tile.bm * tile.bn * _SUM_BYTES
        turned = 0
        if self.slices > 1 and tile.warps * _ROWS_OF_GROUP > tile.bm * _WARPS_OF_GROUP:
            # Groups of warps lie side by side, and slices of columns do not: results change hands,
            # or sums where each thread stores its own.
            turned = sums if self.loads == "pointers" else tile.bm * tile.bn * itemsize
        elif self.slices > 1 and architecture == "sm_100" and tile.bm == _ROWS_OF_GROUP:
            # Rows of half an instruction: a quarter of them does. Seen, not understood.
            turned = sums // 4
        if self.loads == "pointers":
            if self.split and not self.aligned:
                turned = sums
            return max(loaded, slice_bytes, turned)
        staged = 1 + any(operand.kind == "matrix" for operand in operands(self.epilogue))
        return loaded + buffers * _BARRIER_BYTES + staged * slice_bytes + turned

    @property
    def symbol(self) -> str:
        """The name of the compiled function, unique among the kernels of one chip."""
        tile = self.main
        heights = "_".join(str(t.bm) for t in self.tiles)
        flags = "".join(
            letter
            for letter, on in (("d", self.loads == "descriptors"), ("a", self.aligned),
                               ("c", self.aligned and self.c_aligned), ("s", self.split),
                               ("w", self.specialised), ("g", self.grouped),
                               ("v", self.vectors is not None))
            if on
        )  # fmt: skip
        return (
            f"block_{self.dtype}_{self.multiply}_{heights}x{tile.bn}x{tile.bk}"
            f"_{tile.warps}w{tile.stages}s_{self.a_order}_{self.b_order}_{flags or 'p'}"
            f"_{epilogue_digest(self.epilogue)}"
        )
