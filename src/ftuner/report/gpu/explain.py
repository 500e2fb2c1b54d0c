"""Explaining a plan for a GPU: its bands and waves, the terms of its estimate, its roofline.

Only arithmetic on the hardware model: nothing is compiled or measured, and no GPU is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ftuner.core.dtype import FLOAT32, GPU_DTYPES
from ftuner.core.given import ElementType, dtype_name
from ftuner.core.gpu.tile import BlockTile, Multiply
from ftuner.core.product import Contraction, ProductTypes, extents_text
from ftuner.core.shown import Saved
from ftuner.core.units import count
from ftuner.cost.gpu.product import ProductEstimate
from ftuner.errors import ConfigurationError, DTypeError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.report.roofline import (
    Roof,
    Roofline,
    contraction_document,
    estimate_document,
    estimated_text,
)
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
    granule = 16 // element.itemsize
    problem = ProductProblem(m, n, k, batch, aligned=k % granule == 0)
    plan = planner.plan(problem)
    estimate = planner.estimate(plan)
    contraction = Contraction(m, n, k, ProductTypes(element, element, FLOAT32, element), batch)
    line = _roofline(contraction, library.multiply, estimate.seconds, hardware)
    funnel = library.funnel
    return BlockExplanation(
        contraction, library.multiply, hardware, plan, estimate, line, funnel.enumerated,
        len(library.tiles),
    )  # fmt: skip


def expect_no_cpu_settings(workers: object, isa: object) -> None:
    """Raises ConfigurationError if a setting is given that a plan for a GPU does not have."""
    for name, value in (("workers", workers), ("isa", isa)):
        if value is not None:
            raise ConfigurationError(f"{name} is {value!r}; plans for a GPU have none")


def _roofline(
    contraction: Contraction, multiply: Multiply, seconds: float, hardware: GpuHardware
) -> Roofline:
    """Returns the roofline with the nearest level that holds all operands."""
    rates = {**hardware.vector_flops_per_s, **hardware.matrix_flops_per_s}
    peak, per_byte = rates[multiply], contraction.flops / contraction.bytes_moved
    roofs = tuple(
        Roof(name, rate, min(peak, per_byte * rate))
        for name, rate in (
            ("l2", hardware.l2_bandwidth_bytes_per_s),
            ("dram", hardware.dram_bandwidth_bytes_per_s),
        )
    )
    fits = contraction.bytes_moved <= hardware.tuning.l2_share * hardware.l2_bytes
    return Roofline(per_byte, peak, roofs, "l2" if fits else "dram", contraction.flops / seconds)
