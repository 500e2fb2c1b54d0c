"""The library of a GPU: the block tiles kept for one chip and dtype, alone and in pairs.

A pair covers one output by tiles of two heights: whole waves of the taller one, and the lower one
for the remaining rows. `kernels` returns every kernel that a plan may launch; when these are
compiled, every shape can run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile, Loads, Multiply, Order, ProductKernel
from ftuner.cost.gpu.tile import (
    MULTIPLIES,
    ProductForm,
    TileCost,
    fits_loads,
    loads_of,
    specialises,
    supports,
    tile_cost,
    warpgroups_of,
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

    def __hash__(self) -> int:
        """A hash without the tiles, of which there are hundreds: planners are found by it."""
        return hash((self.hardware, self.dtype, self.multiply))

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
        return replace(
            found,
            specialised=specialises(self.hardware, found),
            warpgroups=warpgroups_of(self.hardware, found),
        )

    def loads(self, alignment: int, window: int = 0) -> Loads:
        """Returns how tiles of A and B reach shared memory; those of a window have an address for
        each row."""
        aligned = alignment == ALIGNMENT_BYTES and not window
        return loads_of(self.hardware, self.multiply, aligned)

    def kernels(
        self, a_order: Order, b_order: Order, alignment: int = ALIGNMENT_BYTES,
        epilogue: Expr = ACCUMULATOR, c_aligned: bool = True, window: int = 0,
    ) -> tuple[ProductKernel, ...]:  # fmt: skip
        """Returns every uKernel that a plan may launch for such operands: each tile with and
        without split-k, and each pair."""
        return tuple(
            self.kernel(tiles, a_order, b_order, alignment, split, epilogue, c_aligned, window)
            for tiles in self.covers(alignment, window)
            for split in ((False, True) if len(tiles) == 1 else (False,))
        )

    def covers(self, alignment: int, window: int = 0) -> tuple[tuple[BlockTile, ...], ...]:
        """Returns the tiles, alone and in pairs, for such operands."""
        tiles = self.fitting(alignment, window)
        return (*((tile,) for tile in tiles), *_pairs(self, tiles, alignment, window))

    def fitting(self, alignment: int, window: int = 0) -> tuple[BlockTile, ...]:
        """Returns the tiles for such operands: those of less than 16 bytes need registers for the
        address of each load."""
        if alignment == ALIGNMENT_BYTES and not window:
            return self.tiles
        found = run_filters(self.hardware, self.form(alignment), window).kept
        # If none fits, the first one runs with spilled registers.
        return found or self.tiles[:1]

    def form(self, alignment: int = ALIGNMENT_BYTES) -> ProductForm:
        """Returns what is multiplied, of operands of an alignment."""
        return ProductForm(self.dtype, self.multiply, alignment)

    def cost(
        self, tile: BlockTile, alignment: int = ALIGNMENT_BYTES, warpgroups: int = 1
    ) -> TileCost:
        """Returns the cost of a tile of the library on one multiprocessor."""
        found = tile_cost(self.hardware, tile, self.form(alignment), warpgroups)
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
    funnel = run_filters(hardware, ProductForm(dtype, multiply), 0)
    if not funnel.kept:
        raise HardwareError(f"no block tile fits {hardware.name} ({hardware.architecture})")
    found = GpuLibrary(hardware, dtype, multiply, funnel.kept, (), funnel)
    return replace(found, pairs=_pairs(found, found.tiles, ALIGNMENT_BYTES, 0))


def _pairs(
    library: GpuLibrary, tiles: tuple[BlockTile, ...], alignment: int, window: int
) -> tuple[tuple[BlockTile, BlockTile], ...]:
    hardware, form = library.hardware, library.form(alignment)
    tuning = hardware.tuning
    divisors = (tuning.last_wave_divisor, tuning.last_rows_divisor)
    rates = {t: tile_rate(hardware, library.cost(t, alignment), form.dtype.itemsize) for t in tiles}
    found = []
    for tile in tiles:
        if rates[tile] < tuning.paired_rate_ratio * max(rates.values()):
            continue
        for height in sorted({max(tile.bm // d, min(EXTENTS)) for d in divisors}, reverse=True):
            lower = replace(tile, bm=height)
            if (
                height < tile.bm
                and tile_cost(hardware, lower, form) is not None
                and fits_loads(hardware, lower, form, window)
            ):
                found.append((tile, lower))
    return tuple(found)
