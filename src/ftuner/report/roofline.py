"""The roofline model (Williams, Waterman and Patterson, 2009): upper bounds on the rate of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

from ftuner.core.frozen import dataclass
from ftuner.core.product import Contraction, ProductTypes
from ftuner.core.shown import Shown
from ftuner.core.units import duration, rate
from ftuner.cost.step import Machine, level_of
from ftuner.hardware.model import CpuHardware

COMPUTE = "compute"
"""The bound of work that is limited by the multiply-add units and not by a memory level."""


@dataclass(frozen=True)
class Roof:
    """The bound set by one memory level that holds the operands."""

    level: str
    bandwidth_bytes_per_s: float
    """Bandwidth of all workers together."""
    attainable_flops_per_s: float


@dataclass(frozen=True, repr=False)
class Roofline(Shown):
    """Work under the roofline. Each byte is assumed to cross each level once, which is the minimum
    of any plan."""

    flops_per_byte: float
    peak_flops_per_s: float
    """Peak of one core for each worker."""
    roofs: tuple[Roof, ...]
    """L1 first, DRAM last."""
    home: str
    """The first level that holds all bytes, with room left for data that streams by."""
    predicted_flops_per_s: float
    """Rate of the estimate."""

    def summary(self) -> str:
        return (
            f"{self.flops_per_byte:.3g} flop/byte, bound by {self.bound}: "
            f"{rate(self.predicted_flops_per_s, 'flop/s')} estimated, {self.fraction_of_peak:.0%} "
            f"of {rate(self.peak_flops_per_s, 'flop/s')}"
        )

    @property
    def attainable_flops_per_s(self) -> float:
        """The bound set by the home level."""
        return next(r.attainable_flops_per_s for r in self.roofs if r.level == self.home)

    @property
    def bound(self) -> str:
        """`compute`, or the memory level whose bandwidth is the lower roof."""
        return COMPUTE if self.attainable_flops_per_s >= self.peak_flops_per_s else self.home

    @property
    def fraction_of_peak(self) -> float:
        return self.predicted_flops_per_s / self.peak_flops_per_s

    def to_document(self) -> dict[str, Any]:
        """The roofline as nested dicts and lists, which JSON can hold."""
        return {
            **asdict(self),
            "roofs": [asdict(roof) for roof in self.roofs],
            "bound": self.bound,
            "attainable_flops_per_s": self.attainable_flops_per_s,
            "fraction_of_peak": self.fraction_of_peak,
        }


class Estimated(Protocol):
    """The estimate of a plan, for any device."""

    @property
    def seconds(self) -> float: ...
    @property
    def bound(self) -> str: ...
    def terms(self) -> dict[str, float]: ...


def estimate_document(estimate: Estimated) -> dict[str, Any]:
    """The terms of an estimate, and their sum, as JSON can hold them."""
    return {**estimate.terms(), "seconds": estimate.seconds, "bound": estimate.bound}


def contraction_document(contraction: Contraction, dtype: str) -> dict[str, Any]:
    """The extents and the work of a product, as JSON can hold them."""
    names = ("m", "n", "k", "batch", "flops", "bytes_moved")
    return {"dtype": dtype, **{name: getattr(contraction, name) for name in names}}


def estimated_text(estimate: Estimated, roofline: Roofline) -> str:
    """How long a plan is estimated to take, what bounds it, and its share of the peak."""
    return (
        f"{duration(estimate.seconds)} estimated, bound by {estimate.bound}, "
        f"{roofline.fraction_of_peak:.0%} of the peak"
    )


def roofline_of(
    flops: int, bytes_moved: int, seconds: float, types: ProductTypes, machine: Machine
) -> Roofline:
    """The roofline of work that is estimated at `seconds`, with multiply-adds of `types`."""
    hardware, workers = machine.hardware, machine.workers
    peak = hardware.peak_flops_per_s(machine.isa, types, workers)
    home = level_of(hardware, bytes_moved).name
    return under_roofs(flops, bytes_moved, seconds, peak, level_rates(hardware, workers), home)


def under_roofs(
    flops: int, bytes_moved: int, seconds: float, peak_flops_per_s: float,
    rates: Iterable[tuple[str, float]], home: str,
) -> Roofline:  # fmt: skip
    """The roofline of work below memory levels of some rates in bytes per second."""
    each = flops / bytes_moved
    roofs = (Roof(level, rate, min(peak_flops_per_s, each * rate)) for level, rate in rates)
    return Roofline(each, peak_flops_per_s, tuple(roofs), home, flops / seconds)


def level_rates(hardware: CpuHardware, workers: int) -> Iterator[tuple[str, float]]:
    """Each memory level with the bytes per second of all workers together, L1 first."""
    for level in hardware.levels:
        yield (
            level.name,
            min(workers * level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s),
        )
