"""Trials: launches of real uKernels that calibration times, and their estimates on any chip.

A trial is a plan: it names the kernel, the extents and how tiles are spread over programs. Its
estimate is the planner's own, so that constants fitted to trials are those that plans are chosen
by. Nothing here needs a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.attention import AttentionForm
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile
from ftuner.cost.gpu.product import ProductEstimate
from ftuner.cost.gpu.tile import MULTIPLIES, loads_of, multiplied_on, supports
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.planner.gpu.plan import AttentionPlan, AttentionProblem, ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import estimate_plan
from ftuner.schedules.attention.gpu_cost import AttentionEstimate
from ftuner.schedules.attention.gpu_plan import attention_planner, estimate_attention_plan
from ftuner.ukernels.gpu.library import GpuLibrary, build_gpu_library

_SWEPT_K = 64
"""Granule of k where B's size is swept: rows begin at lines of memory, and sizes are close to each
other."""


class ProductTrial(NamedTuple):
    """A product of contiguous rows by a transposed matrix, by a given plan."""

    plan: ProductPlan

    def estimate(self, hardware: GpuHardware) -> ProductEstimate:
        return estimate_plan(hardware, self.plan)

    @property
    def bytes(self) -> int:
        """Bytes of A, B and C."""
        p = self.plan.problem
        return (p.m * p.k + p.n * p.k + p.m * p.n) * self.plan.kernel.dtype.itemsize

    def __str__(self) -> str:
        p, plan = self.plan.problem, self.plan
        tiles = " + ".join(map(str, plan.kernel.tiles))
        split_k = f" split-k {plan.split_k}" if plan.split_k > 1 else ""
        return f"{plan.kernel.multiply} {p.m}x{p.n}x{p.k} by {tiles}{split_k}"


class AttentionTrial(NamedTuple):
    """Attention of contiguous heads, by a given plan."""

    plan: AttentionPlan

    def estimate(self, hardware: GpuHardware) -> AttentionEstimate:
        return estimate_attention_plan(hardware, self.plan)

    @property
    def bytes(self) -> int:
        """Bytes of queries, keys, values and results."""
        p = self.plan.problem
        across = p.depth + p.columns
        itemsize = self.plan.kernel.form.dtype.itemsize
        return p.batch * p.heads * (p.rows + p.keys) * across * itemsize

    def __str__(self) -> str:
        p, kernel = self.plan.problem, self.plan.kernel
        causal = "" if kernel.form.causal == "none" else " causal"
        return (
            f"{kernel.form.multiply} attention{causal} of {p.heads} heads {p.rows}x{p.keys}"
            f"x{p.depth} by {kernel.tile}"
        )


Trial = ProductTrial | AttentionTrial


@dataclass(frozen=True)
class Workload:
    """The libraries of a chip that trials are taken from."""

    hardware: GpuHardware
    matrix: GpuLibrary | None
    """For elements of 16 bits; None if the chip has no matrix units for them."""
    single: GpuLibrary | None
    """For float32: by parts on the matrix units, or on the vector units."""


@lru_cache(maxsize=64)
def workload_of(hardware: GpuHardware) -> Workload:
    """Returns the libraries that trials on a chip are taken from."""
    matrix = None
    for dtype in (BFLOAT16, FLOAT16):
        if supports(hardware, MULTIPLIES[dtype][0]):
            matrix = build_gpu_library(hardware, dtype)
            break
    single, exact = None, multiplied_on(hardware, "float32")
    if supports(hardware, exact):
        single = build_gpu_library(hardware, FLOAT32, exact)
    return Workload(hardware, matrix, single)


def planned(
    library: GpuLibrary, tile: BlockTile, rows: int, columns: int, k: int, split_k: int = 1,
    swizzle: int | None = None,
) -> ProductTrial:  # fmt: skip
    """Returns the product of `rows` by `columns` tiles, with `k` steps.

    `swizzle`: as in `ProductPlan`; by default that of square waves, as the planner takes it where
    L2 holds the operands."""
    sms = library.hardware.multiprocessors
    problem = ProductProblem(rows * tile.bm, columns * tile.bn, k)
    kernel = library.kernel((tile,), "k", "k", ALIGNMENT_BYTES, split_k > 1)
    programs = min(rows * columns * split_k, library.cost(tile).blocks * sms)
    if swizzle is None:
        at_once = max(programs // split_k, 1)
        swizzle = min(isqrt(at_once * tile.bn // tile.bm) or 1, rows)
    return ProductTrial(ProductPlan(problem, kernel, problem.m, split_k, swizzle, programs))


def near_square(units: int) -> tuple[int, int]:
    """Returns the factors of `units` that are closest to each other, the smaller first."""
    rows = next(r for r in range(isqrt(units), 0, -1) if units % r == 0)
    return rows, units // rows


def full(library: GpuLibrary, waves: int, k: int) -> Iterator[ProductTrial]:
    """Yields products that keep every multiprocessor full for whole waves, one for each tile."""
    for tile in library.tiles:
        units = library.hardware.multiprocessors * library.cost(tile).blocks * waves
        yield planned(library, tile, *near_square(units), k)


def lone(library: GpuLibrary, k: int) -> Iterator[ProductTrial]:
    """Yields products of one tile for each multiprocessor, whose waits nothing hides."""
    for tile in library.tiles:
        yield planned(library, tile, *near_square(library.hardware.multiprocessors), k)


def streamed(library: GpuLibrary, row_tiles: int, times_l2: float) -> Iterator[ProductTrial]:
    """Yields products of `row_tiles` row tiles by a weight `times_l2` times L2, in one wave."""
    hardware, itemsize = library.hardware, library.dtype.itemsize
    for tile in library.tiles:
        columns = hardware.multiprocessors * library.cost(tile).blocks // row_tiles
        k = times_l2 * hardware.l2_bytes / (columns * tile.bn * itemsize)
        yield planned(library, tile, row_tiles, columns, _whole(k, 1024))


def split(library: GpuLibrary, steps: int) -> Iterator[ProductTrial]:
    """Yields products by split-k in one wave, with `steps` k steps of each part."""
    sms = library.hardware.multiprocessors
    for tile in library.tiles:
        for split_k in (4, 8, 16):
            k = steps * split_k * tile.bk
            yield planned(library, tile, 1, max(sms // split_k, 1), k, split_k)


def swept(
    library: GpuLibrary, row_tiles: int, l2_parts: tuple[float, ...]
) -> Iterator[ProductTrial]:
    """Yields products that read B once for each of `row_tiles` row tiles, where B takes these parts
    of L2: from DRAM again each time, unless L2 keeps it. The lowest tile does the least besides."""
    hardware = library.hardware
    tile = min(library.tiles, key=lambda tile: (tile.bm, tile.bn))
    columns = hardware.multiprocessors * library.cost(tile).blocks
    for part in l2_parts:
        k = part * hardware.l2_bytes / (columns * tile.bn * library.dtype.itemsize)
        yield planned(library, tile, row_tiles, columns, _whole(k, _SWEPT_K), swizzle=1)


def attended(
    library: GpuLibrary, depth: int, rows: int, waves: float, causal: bool
) -> Iterator[AttentionTrial]:
    """Yields attention of `rows` rows over as many keys, with the heads that are about `waves`
    tiles for each multiprocessor, by the tile that the planner takes."""
    hardware, multiply = library.hardware, library.multiply
    form = AttentionForm.over(
        library.dtype, multiply, depth, depth, causal="first" if causal else "none",
        loads=loads_of(hardware, multiply, True),
    )  # fmt: skip
    planner = attention_planner(hardware, form, False)
    heads = 1
    for _ in range(3):
        # The tile may depend on the number of heads.
        plan = planner.plan(AttentionProblem(1, heads, 1, rows, rows, depth, depth))
        heads = max(round(waves * hardware.multiprocessors / plan.tiles), 1)
    yield AttentionTrial(planner.plan(AttentionProblem(1, heads, 1, rows, rows, depth, depth)))


def _whole(k: float, granule: int) -> int:
    """Returns the multiple of `granule` next to k, at least one."""
    return max(round(k / granule), 1) * granule
