"""Explaining a plan: its patches, or its bands and waves on a GPU; the terms of its estimate, its
place under the roofline.

This is arithmetic on the hardware model alone. Nothing is compiled or measured, so a plan can be
explained for any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, SupportsIndex

from ftuner.core.dtype import DTYPES, FLOAT32, GPU_DTYPES
from ftuner.core.frozen import dataclass
from ftuner.core.given import ElementType, checked_integer, dtype_name
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile, Multiply, common_alignment
from ftuner.core.product import Contraction, ProductTypes, extents_text, product_types
from ftuner.core.shown import Saved
from ftuner.core.units import count
from ftuner.cost.gpu.product import ProductEstimate
from ftuner.cost.step import Estimate, Machine
from ftuner.errors import ConfigurationError, DTypeError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.candidates import MAX_ROWS
from ftuner.planner.cpu.plan import Plan
from ftuner.planner.cpu.planner import panel_problem, planner_for
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.report.picture import PatchOfWorker, Region, patches_of, regions_of
from ftuner.report.roofline import (
    Roofline,
    contraction_document,
    estimate_document,
    estimated_text,
    roofline_of,
    under_roofs,
)
from ftuner.ukernels.cpu.library import build_library
from ftuner.ukernels.gpu.library import build_gpu_library

TF32 = "tf32"
"""A dtype of commands: float32, multiplied as tf32."""


class BandOfPlan(NamedTuple):
    """Rows that tiles of one height cover."""

    tile: BlockTile
    rows: tuple[int, int]
    tiles: int
    """Tiles of one batch element."""
    wasted_rows: int
    """Rows beyond m that the last row tile computes."""


@dataclass(frozen=True, repr=False)
class BlockExplanation(Saved):
    """The plan of a product on a GPU, with its estimate and roofline."""

    contraction: Contraction
    multiply: Multiply
    hardware: GpuHardware
    plan: ProductPlan
    estimate: ProductEstimate
    roofline: Roofline
    enumerated: int
    """Tiles before any filter."""
    kept: int
    """Tiles of the library."""

    @property
    def title(self) -> str:
        """The product, the chip and how it multiplies."""
        c = self.contraction
        return (
            f"{extents_text(c)} {c.types.a} on {self.hardware.name}, multiplied as {self.multiply}"
        )

    def summary(self) -> str:
        waves = count(self.plan.waves, "wave")
        return f"{self.title}: {waves}, {estimated_text(self.estimate, self.roofline)}"

    def bands(self) -> tuple[BandOfPlan, ...]:
        """The bands of the plan."""
        found = []
        for tile, first, last in self.plan.bands:
            heights = -(-(last - first) // tile.bm)
            wasted = heights * tile.bm - (last - first)
            found.append(BandOfPlan(tile, (first, last), heights * self.plan.columns, wasted))
        return tuple(found)

    @property
    def wasted_fraction(self) -> float:
        """The fraction of computed elements that is not stored."""
        c, width = self.contraction, self.plan.columns * self.plan.kernel.main.bn
        computed = sum(b.rows[1] - b.rows[0] + b.wasted_rows for b in self.bands()) * width
        return 1.0 - c.m * c.n / computed

    def to_document(self) -> dict[str, Any]:
        """The explanation as nested dicts and lists, which JSON can hold."""
        c, plan = self.contraction, self.plan
        return {
            "contraction": {
                **contraction_document(c, c.types.a.name), "multiply": self.multiply,
            },
            "hardware": self.hardware.name,
            "library": {"enumerated": self.enumerated, "kept": self.kept},
            "plan": {
                "bands": [
                    {"tile": str(b.tile), "rows": list(b.rows), "tiles": b.tiles,
                     "wasted_rows": b.wasted_rows}
                    for b in self.bands()
                ],
                "loads": plan.kernel.loads, "split_k": plan.split_k, "swizzle": plan.swizzle,
                "programs": plan.programs, "units": plan.units, "waves": plan.waves,
                "idle": plan.idle,
            },
            "estimate": estimate_document(self.estimate),
            "roofline": self.roofline.to_document(),
            "waste": {"fraction": self.wasted_fraction},
        }  # fmt: skip


def explain_block(
    m: int, n: int, k: int, batch: int, dtype: ElementType, hardware: GpuHardware
) -> BlockExplanation:
    """Returns the plan and estimate of `batch` products of `(m, k)` by `(k, n)`, contiguous along k
    as a layer's weight is. Extents are positive.

    Args:
        dtype: `float16`, `bfloat16` or `float32`; or `tf32`, which is float32 multiplied so.

    Raises:
        DTypeError: another dtype.
        HardwareError: the chip does not multiply so.
    """
    name = dtype_name(dtype)
    if name is None or name not in (*GPU_DTYPES, TF32):
        raise DTypeError(
            f"dtype is {dtype!r}; supported on a GPU are {', '.join((*GPU_DTYPES, TF32))}"
        )
    element = FLOAT32 if name == TF32 else GPU_DTYPES[name]
    library = build_gpu_library(hardware, element, TF32 if name == TF32 else None)
    planner = product_planner_for(library)
    alignment = common_alignment(k * element.itemsize)
    c_aligned = common_alignment(n * element.itemsize) == ALIGNMENT_BYTES
    problem = ProductProblem(m, n, k, batch, alignment=alignment, c_aligned=c_aligned)
    plan = planner.plan(problem)
    estimate = planner.estimate(plan)
    contraction = Contraction(m, n, k, ProductTypes(element, element, FLOAT32, element), batch)
    line = _roofline(contraction, library.multiply, estimate.seconds, hardware)
    funnel = library.funnel
    return BlockExplanation(
        contraction, library.multiply, hardware, plan, estimate, line, funnel.enumerated,
        len(library.tiles),
    )  # fmt: skip


def _roofline(
    contraction: Contraction, multiply: Multiply, seconds: float, hardware: GpuHardware
) -> Roofline:
    """Returns the roofline with the nearest level that holds all operands."""
    peak = {**hardware.vector_flops_per_s, **hardware.matrix_flops_per_s}[multiply]
    flops, moved = contraction.flops, contraction.bytes_moved
    rates = {"l2": hardware.l2_bandwidth_bytes_per_s, "dram": hardware.dram_bandwidth_bytes_per_s}
    home = "l2" if moved <= hardware.tuning.l2_share * hardware.l2_bytes else "dram"
    return under_roofs(flops, moved, seconds, peak, rates.items(), home)


@dataclass(frozen=True)
class PanelWidth:
    """A panel width for the weight, and the estimated seconds of the product with it."""

    vectors: int
    columns: int
    seconds: float


@dataclass(frozen=True, repr=False)
class Explanation(Saved):
    """The plan of a product of one shape, with its estimate and its roofline."""

    contraction: Contraction
    hardware: CpuHardware
    isa: Isa
    plan: Plan
    estimate: Estimate
    widths: tuple[PanelWidth, ...]
    """All panel widths of the library, cheapest first; the plan uses the first one."""
    roofline: Roofline

    @property
    def title(self) -> str:
        """The product, the machine and the ISA."""
        c = self.contraction
        return f"{extents_text(c)} {c.types} on {self.hardware.name}, {self.isa.name}"

    def summary(self) -> str:
        workers = count(self.plan.workers, "worker")
        return f"{self.title}: {workers}, {estimated_text(self.estimate, self.roofline)}"

    @property
    def wasted_rows(self) -> int:
        """Computed rows beyond m."""
        return max(region.rows[1] for region in self.regions()) - self.contraction.m

    @property
    def wasted_columns(self) -> int:
        """Columns computed inside the last vector and not stored."""
        lanes = self.isa.lanes(self.contraction.types.accumulator)
        return -self.contraction.n % lanes

    @property
    def wasted_fraction(self) -> float:
        """The fraction of the computed elements that is not stored."""
        m, n = self.contraction.m, self.contraction.n
        computed = (m + self.wasted_rows) * (n + self.wasted_columns)
        return 1.0 - m * n / computed

    def patches(self) -> Iterator[PatchOfWorker]:
        """All patches, worker by worker, in the order in which a worker begins them."""
        return patches_of(self.plan)

    def regions(self) -> tuple[Region, ...]:
        """The rectangles of C, each once, in the order of the first worker that computes it."""
        return regions_of(self.plan)

    def to_document(self) -> dict[str, Any]:
        """The explanation as nested dicts and lists, which JSON can hold."""
        choice, estimate = self.plan.choice, self.estimate
        return {
            "contraction": contraction_document(self.contraction, str(self.contraction.types)),
            "hardware": self.hardware.name,
            "isa": self.isa.name,
            "workers": self.plan.problem.workers,
            "plan": {
                "grid": choice.grid._asdict(),
                "panel_vectors": choice.vectors,
                "kc": choice.kc,
                "mc": self.plan.mc,
                "pack_a": choice.pack_a,
                "patches": [patch.to_document() for patch in self.patches()],
            },
            "panel_widths": [asdict(width) for width in self.widths],
            "estimate": {**estimate_document(estimate), "correction": estimate.correction},
            "roofline": self.roofline.to_document(),
            "waste": {
                "rows": self.wasted_rows,
                "columns": self.wasted_columns,
                "fraction": self.wasted_fraction,
            },
        }


def explain(
    m: SupportsIndex,
    n: SupportsIndex,
    k: SupportsIndex,
    batch: SupportsIndex,
    dtype: ElementType,
    workers: SupportsIndex | None,
    hardware: CpuHardware | GpuHardware,
    isa: str | None = None,
) -> Explanation | BlockExplanation:
    """Explain the plan of `batch` products of `(m, k)` and a packed `(k, n)`.

    Args:
        m, n, k, batch: extents, from 1 to below 2^62.
        dtype: `float32` or `float64`; on a GPU see `explain_block`.
        workers: from 1 to the cores of the CPU; all cores if None.
        isa: an ISA of the CPU; the widest if None.

    Raises:
        ShapeError: other extents.
        DTypeError: another dtype.
        ConfigurationError: a number of workers out of range; workers or an ISA given for a GPU.
        HardwareError: an ISA that the machine does not have, or a GPU that does not multiply so.
    """
    m, n, k, batch = (
        checked_integer(extent, name, 1, MAX_ROWS, expected="an integer from 1 to below 2^62")
        for name, extent in (("m", m), ("n", n), ("k", k), ("batch", batch))
    )
    if not isinstance(hardware, CpuHardware):
        for name, value in (("workers", workers), ("isa", isa)):
            if value is not None:
                raise ConfigurationError(f"{name} is {value!r}; plans for a GPU have none")
        return explain_block(m, n, k, batch, dtype, hardware)
    element = DTYPES.get(dtype_name(dtype) or "")
    if element is None:
        raise DTypeError(f"dtype is {dtype!r}; supported are {', '.join(DTYPES)}")
    if workers is None:
        workers = hardware.cores
    cores = f"at least 1 and at most {hardware.cores}, the cores of {hardware.name}"
    workers = checked_integer(workers, "workers", 1, hardware.cores + 1, ConfigurationError, cores)
    contraction = Contraction(m, n, k, product_types(element), batch)
    library = build_library(hardware, isa or hardware.widest.name, contraction.types)
    planner = planner_for(library)
    # A weight is packed once, for the width that its products are cheapest with.
    plans = []
    for vectors in library.widths:
        plan = planner.plan(panel_problem(n, k, vectors, m, workers)._replace(batch=batch))
        plans.append((planner.estimate(plan), vectors, plan))
    plans.sort(key=lambda found: (found[0].seconds, found[1]))
    estimate, _, plan = plans[0]
    widths = tuple(PanelWidth(v, v * library.lanes, e.seconds) for e, v, _ in plans)
    machine, seconds = Machine(hardware, library.isa, workers), estimate.seconds
    flops, moved = contraction.flops, contraction.bytes_moved
    line = roofline_of(flops, moved, seconds, contraction.types, machine)
    return Explanation(contraction, hardware, library.isa, plan, estimate, widths, line)
