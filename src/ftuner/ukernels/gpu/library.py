"""The library of a GPU: the block tiles kept for one chip and dtype, alone and in pairs.

A pair covers one output by tiles of two heights: whole waves of the taller one, and the lower one
for the remaining rows. `kernels` returns every kernel that a plan may launch; when these are
compiled, every shape can run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.gpu.tile import (
    ALIGNMENT_BYTES,
    BlockTile,
    Loads,
    Multiply,
    Order,
    ProductKernel,
)
from ftuner.cost.gpu.tile import (
    MULTIPLIES,
    TileCost,
    fits_loads,
    loads_of,
    specialises,
    supports,
    tile_cost,
)
from ftuner.errors import DTypeError, HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.ukernels.funnel import Funnel
from ftuner.ukernels.gpu.filters import EXTENTS, run_filters, tile_rate


@dataclass(frozen=True)
class GpuLibrary:
    """All tiles for one chip, dtype and way to multiply."""

    hardware: GpuHardware
    dtype: DType
    multiply: Multiply
    tiles: tuple[BlockTile, ...]
    pairs: tuple[tuple[BlockTile, BlockTile], ...]
    """Pairs of the same width and schedule, the taller tile first."""
    funnel: Funnel[BlockTile]

    def kernel(
        self, tiles: tuple[BlockTile, ...], a_order: Order, b_order: Order, alignment: int,
        split: bool = False, epilogue: Expr = ACCUMULATOR, c_aligned: bool = True, window: int = 0,
    ) -> ProductKernel:  # fmt: skip
        """Returns the uKernel of a tile or pair for operands of these orders and alignments.
        `window`: as in `ProductKernel`."""
        found = ProductKernel(
            tiles, self.dtype, self.multiply, a_order, b_order, loads=self.loads(alignment, window),
            alignment=alignment, c_aligned=c_aligned, split=split, epilogue=epilogue, window=window,
            slicing=self.hardware.tuning.slicing,
        )  # fmt: skip
        specialised = replace(found, specialised=True)
        return specialised if self._specialises(specialised) else found

    def _specialises(self, kernel: ProductKernel) -> bool:
        """Whether warps are specialised: where Triton supports it, with descriptors for loads and
        stores, if the tile fits shared memory in one slice and is not cut into parts there."""
        return (
            specialises(self.hardware, kernel.main, kernel.multiply)
            and kernel.loads == "descriptors"
            and kernel.c_aligned
            and not kernel.split
            and kernel.shared_bytes(self.hardware.architecture)
            <= self.hardware.shared_bytes_per_block
        )

    def loads(self, alignment: int, window: int = 0) -> Loads:
        """Returns how tiles of A and B reach shared memory; those of a window have an address for
        each row."""
        return "pointers" if window else loads_of(self.hardware, self.multiply, alignment)

    def kernels(
        self, a_order: Order, b_order: Order, alignment: int = ALIGNMENT_BYTES,
        epilogue: Expr = ACCUMULATOR, c_aligned: bool = True, window: int = 0,
    ) -> tuple[ProductKernel, ...]:  # fmt: skip
        """Returns every uKernel that a plan may launch for such operands: each tile with and
        without split-k, and each pair."""
        found = []
        for tiles in self.covers(alignment, window):
            for split in (False, True) if len(tiles) == 1 else (False,):
                found.append(
                    self.kernel(
                        tiles, a_order, b_order, alignment, split, epilogue, c_aligned, window
                    )
                )
        return tuple(found)

    def covers(self, alignment: int, window: int = 0) -> tuple[tuple[BlockTile, ...], ...]:
        """Returns the tiles, alone and in pairs, for such operands."""
        fitting = self.fitting(alignment, window)
        pairs = [pair for pair in self.pairs if self._fit(pair, alignment, window)]
        return (*((tile,) for tile in fitting), *pairs)

    def fitting(self, alignment: int, window: int = 0) -> tuple[BlockTile, ...]:
        """Returns the tiles for such operands: those of less than 16 bytes need registers for the
        address of each load."""
        found = tuple(tile for tile in self.tiles if self._fit((tile,), alignment, window))
        # If none fits, the first one runs with spilled registers.
        return found or self.tiles[:1]

    def _fit(self, tiles: tuple[BlockTile, ...], alignment: int, window: int) -> bool:
        return alignment == ALIGNMENT_BYTES or all(
            fits_loads(self.hardware, tile, self.dtype, self.multiply, alignment, window)
            for tile in tiles
        )

    def cost(self, tile: BlockTile, alignment: int = ALIGNMENT_BYTES) -> TileCost:
        """Returns the cost of a tile of the library on one multiprocessor."""
        found = tile_cost(self.hardware, tile, self.dtype, self.multiply, alignment)
        assert found is not None
        return found


@lru_cache(maxsize=64)
def build_gpu_library(
    hardware: GpuHardware, dtype: DType, multiply: Multiply | None = None
) -> GpuLibrary:
    """Returns the library of a chip and dtype, by arithmetic on the hardware model.

    `multiply` is by default the exact way: float32 is multiplied on the vector units.

    Raises:
        DTypeError: elements of this dtype are not multiplied so.
        HardwareError: the chip does not multiply so.
    """
    known = MULTIPLIES.get(dtype)
    if known is None:
        names = ", ".join(str(other) for other in MULTIPLIES)
        raise DTypeError(f"dtype is {dtype}; supported on a GPU are {names}")
    if multiply is None:
        multiply = known[0]
    if multiply not in known:
        raise DTypeError(f"{dtype} is not multiplied as {multiply}, but as {' or '.join(known)}")
    if not supports(hardware, multiply):
        rates = [name for name in hardware.matrix_flops_per_s if name != "float64"]
        raise HardwareError(
            f"{hardware.name} ({hardware.architecture}) has no matrix units for {multiply}; "
            f"they take {', '.join(rates) or 'nothing'}"
        )
    funnel = run_filters(hardware, dtype, multiply)
    if not funnel.kept:
        raise HardwareError(f"no block tile fits {hardware.name} ({hardware.architecture})")
    found = GpuLibrary(hardware, dtype, multiply, funnel.kept, (), funnel)
    return replace(found, pairs=_pairs(found))


def _pairs(library: GpuLibrary) -> tuple[tuple[BlockTile, BlockTile], ...]:
    size, tuning = library.dtype.itemsize, library.hardware.tuning
    divisors = (tuning.last_wave_divisor, tuning.last_rows_divisor)
    rates = {}
    for tile in library.tiles:
        cost = library.cost(tile)
        rates[tile] = tile_rate(library.hardware, cost, size, cost.blocks)
    found = []
    for tile in library.tiles:
        if rates[tile] < tuning.paired_rate_ratio * max(rates.values()):
            continue
        for height in sorted({max(tile.bm // d, min(EXTENTS)) for d in divisors}, reverse=True):
            lower = replace(tile, bm=height)
            fits = tile_cost(library.hardware, lower, library.dtype, library.multiply)
            if height < tile.bm and fits is not None:
                found.append((tile, lower))
    return tuple(found)
