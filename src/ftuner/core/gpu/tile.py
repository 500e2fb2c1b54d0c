"""The uKernel of a GPU: a block tile of fixed spatial size and run-time reduction length.

The tile equation. Level 1 is the block tile: `bm x bn` accumulators in the registers of `warps`
warps. Stages of `bk` k steps of A and B pass through shared memory, `stages` of them in flight or
in use. Level 0, the share of one warp or warpgroup, follows from the matrix instruction and is left
to the compiler.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, NamedTuple

from ftuner.core.cpu.tile import epilogue_digest
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr, operands
from ftuner.core.frozen import dataclass

Order = Literal["k", "spatial"]
"""The axis along which an operand is contiguous: k, or its spatial axis (m for A, n for B)."""
Multiply = Literal["float16", "bfloat16", "tf32", "float32", "tf32x3"]
"""What elements of A and B are rounded to before they are multiplied: their own type, or float32 to
the 19 bits of tf32. Sums are always float32. The names are those of the rates in `GpuHardware`;
`float32` runs on the vector units, and `tf32x3` multiplies float32 on the matrix units by three
products of leading and trailing tf32 parts, which keep all but 2 of its 24 bits."""
SPLIT_PRODUCTS = 3
"""Products of tf32 parts that are one product of `tf32x3`."""
Loads = Literal["pointers", "descriptors"]
"""How tiles of A and B reach shared memory: by a pointer for each load, or by tensor descriptors
that the chip's copy engine (TMA) reads."""

ALIGNMENT_BYTES = 16
"""Size of the widest load of one thread, and alignment of the addresses and strides of a tensor
descriptor (CUDA driver API, `cuTensorMapEncodeTiled`)."""
ALIGNMENTS = (ALIGNMENT_BYTES, 8, 4, 2)
"""Classes of alignment. There are asynchronous copies of 16, 8 and 4 bytes (PTX ISA, `cp.async`).
An element is in a class of its own size at least."""
MOST_COUNTED = 2**31 - 2**20
"""Most rows, columns, k steps, tiles, and parts of tiles of a launch. Kernels count with 32 bits,
and count beyond the last one: to the end of the last tile, and to the next tile of a program. The
2^20 left for that are more than a tile has rows and than a chip has programs. Addresses, strides
and offsets have 64 bits."""

_ASYNCHRONOUS = ("sm_90", "sm_100")
"""Chips whose matrix instruction (wgmma, tcgen05) reads shared memory asynchronously: a stage is in
use while the warps wait for the next one."""
_WARPS_OF_GROUP, _ROWS_OF_GROUP = 4, 64
"""Warps of a warpgroup, which issues such an instruction, and rows of the instruction."""
LEAST_COPY_BYTES = 4
"""Size of the smallest asynchronous copy."""
SPECIALISED_REGISTERS = 168
"""Of a thread of a kernel in Gluon, before its specialised warps redistribute them."""
_SUM_BYTES = 4
_BARRIER_BYTES = 8
"""The barrier of a stage that the copy engine fills."""
_THREADS_PER_WARP = 32
"""Of NVIDIA's chips. With wider warps a thread holds less than is computed here."""
_LEAST_SLICE_COLUMNS = 16
_MOST_PARTS, _PART_REGISTERS = 4, 48
"""Parts of split-k that are loaded together, and registers of a thread for them. With 128, fewer
blocks of 64 rows and columns were resident on an H200, and took a quarter longer."""


def common_alignment(*numbers: int) -> int:
    """Returns the class of alignment of numbers of bytes: the largest of `ALIGNMENTS` that divides
    all of them."""
    joined = ALIGNMENT_BYTES
    for number in numbers:
        joined |= number
    return joined & -joined


class Slicing(NamedTuple):
    """Limits on the columns that pass through an epilogue at once; part of a chip's tuning."""

    values_per_thread: int
    """Values that a thread holds in an epilogue, besides its accumulators."""
    addresses_per_thread: int
    """The same where each value is stored by its own address."""
    staging_bytes: int
    """Shared memory for the slice of C that the copy engine stores."""


@dataclass(frozen=True)
class BlockTile:
    """The block tile, level 1 of the tile equation."""

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
    """A kernel as it is compiled: one uKernel, or two that patch one output in one launch.

    `tiles[0]` covers the first rows and `tiles[1]`, if there is one, the others. Both have the same
    `bn`, `bk`, `warps` and `stages`.
    """

    tiles: tuple[BlockTile, ...]
    dtype: DType
    multiply: Multiply
    a_order: Order
    b_order: Order
    loads: Loads = "pointers"
    alignment: int = ALIGNMENT_BYTES
    """One of `ALIGNMENTS`: the bytes that bases and strides of A and B are multiples of; with
    pointers along a contiguous k, also the bytes of k. A thread loads as many at once."""
    c_aligned: bool = True
    """Whether bases and strides of C and the epilogue's matrices are multiples of 16 bytes."""
    specialised: bool = False
    """Warp specialisation: some warps load while others multiply. Only with descriptors, on chips
    for which Triton supports it."""
    warpgroups: int = 1
    """With 2, a warp loads by descriptors, and each of two warpgroups multiplies half of the rows
    (`codegen.triton.product_specialised`). 1 where Triton decides what warps do."""
    split: bool = False
    """Split-k: programs sum parts of k, and the last-arriving program adds them up."""
    grouped: bool = False
    """Grouped products: one launch multiplies many pairs of matrices, whose extents are in a table.
    Only with one tile, pointers, no split-k and no epilogue."""
    window: int = 0
    """Spatial axes of the window that A is read through; 0 if A is a matrix. Only with pointers."""
    epilogue: Expr = ACCUMULATOR
    vectors: DType | None = None
    """The dtype of the epilogue's rows and columns, if not `dtype`."""
    slicing: Slicing = field(kw_only=True)

    def __post_init__(self) -> None:
        assert self.alignment in ALIGNMENTS

    @property
    def main(self) -> BlockTile:
        return self.tiles[0]

    @property
    def stores_by_descriptor(self) -> bool:
        """Whether the copy engine writes C too."""
        return self.loads == "descriptors" and self.c_aligned

    @property
    def slices(self) -> int:
        """The number of slices of columns in which a tile passes through the epilogue; a power of
        two. It is 1 with specialised warps, whose accumulators Triton cannot slice."""
        if self.specialised:
            return 1
        tile = self.main
        wanted = 1
        if self.stores_by_descriptor:
            wanted = -(-tile.bm * tile.bn * self.dtype.itemsize // self.slicing.staging_bytes)
        values = tile.accumulators_per_thread(_THREADS_PER_WARP)
        if not self.c_aligned:
            wanted = max(wanted, -(-values // self.slicing.addresses_per_thread))
        elif self.epilogue != ACCUMULATOR:
            wanted = max(wanted, -(-values // self.slicing.values_per_thread))
        # `wanted` is a power of two, because tiles and warps are.
        return max(1, min(wanted, tile.bn // _LEAST_SLICE_COLUMNS))

    def buffers(self, architecture: str) -> int:
        """Returns the stages in shared memory. It is one fewer than `stages` where the warps read a
        stage into registers before they wait for the next one, and 1 where elements of two bytes
        are loaded one by one, for which there is no asynchronous copy."""
        if self.loads == "pointers" and self.alignment < LEAST_COPY_BYTES:
            return 1
        whole = self.multiply not in ("float32", "tf32x3")
        if whole and self._by_groups(self.main, architecture):
            return self.main.stages
        return max(self.main.stages - 1, 1)

    @staticmethod
    def _by_groups(tile: BlockTile, architecture: str) -> bool:
        """Whether warpgroups multiply the tile, from shared memory."""
        groups = tile.bm % _ROWS_OF_GROUP == 0 and tile.warps % _WARPS_OF_GROUP == 0
        return architecture in _ASYNCHRONOUS and groups

    def shared_bytes(self, architecture: str) -> int:
        """Returns the bytes of shared memory of a block: the stages of A and B, and, where the next
        tile is loaded during stores, also slices of C and of the epilogue's matrices.

        On sm_80 and sm_90 Triton allocates this to within 512 bytes, or less where it converts
        layouts piece by piece: matrices of the epilogue, and tiles of few stages.
        """
        return max(self._shared_bytes_of(tile, architecture) for tile in self.tiles)

    def _shared_bytes_of(self, tile: BlockTile, architecture: str) -> int:
        itemsize = self.dtype.itemsize
        buffers = self.buffers(architecture)
        loaded = buffers * (tile.bm + tile.bn) * tile.bk * itemsize
        if self.multiply == "tf32x3" and self._by_groups(tile, architecture):
            # Both parts of B go back to shared memory; those of A stay in registers.
            loaded += 2 * tile.bn * tile.bk * itemsize
        slice_bytes = tile.bm * (tile.bn // self.slices) * itemsize
        sums = tile.bm * tile.bn * _SUM_BYTES
        turned = 0
        if self.slices > 1 and tile.warps * _ROWS_OF_GROUP > tile.bm * _WARPS_OF_GROUP:
            # Warpgroups are side by side along columns, and slices are not: results move between
            # threads, or sums where each thread stores its own.
            turned = sums if self.loads == "pointers" else tile.bm * tile.bn * itemsize
        elif self.slices > 1 and architecture == "sm_100" and tile.bm == _ROWS_OF_GROUP:
            # Rows of half an instruction. Triton was seen to take a quarter of the sums; the reason
            # is unknown.
            turned = sums // 4
        if self.loads == "pointers":
            if self.split and self.alignment < ALIGNMENT_BYTES:
                turned = sums
            return max(loaded, slice_bytes, turned)
        staged = 1 + any(operand.kind == "matrix" for operand in operands(self.epilogue))
        return loaded + buffers * _BARRIER_BYTES + staged * slice_bytes + turned

    @property
    def parts_at_once(self) -> int:
        """Parts of split-k whose sums are loaded together: each waits as long as all of them."""
        own = self.main.accumulators_per_thread(_THREADS_PER_WARP)
        return max(1, min(_MOST_PARTS, _PART_REGISTERS // own))

    @property
    def symbol(self) -> str:
        """The name of the compiled function, unique among the kernels of one chip."""
        tile = self.main
        heights = "_".join(str(t.bm) for t in self.tiles)
        flags = "".join(
            letter
            for letter, on in (("d", self.loads == "descriptors"), (f"a{self.alignment}", True),
                               ("c", self.c_aligned), ("s", self.split),
                               ("w", self.specialised), ("h", self.warpgroups > 1),
                               ("g", self.grouped),
                               ("v", self.vectors is not None), (f"x{self.window}", self.window))
            if on
        )  # fmt: skip
        return (
            f"block_{self.dtype}_{self.multiply}_{heights}x{tile.bn}x{tile.bk}"
            f"_{tile.warps}w{tile.stages}s_{self.a_order}_{self.b_order}_{flags}"
            f"_{epilogue_digest(self.epilogue)}"
        )
