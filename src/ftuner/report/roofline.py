"""The roofline (Williams, Waterman and Patterson, 2009): what a machine lets through at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ftuner.core.dtype import DType
from ftuner.cost.step import Machine, level_of

COMPUTE = "compute"
"""What bounds work that the multiply-add units hold up, and no memory level."""


@dataclass(frozen=True)
class Roof:
    """What one memory level lets through, if the operands lie there."""

    level: str
    bandwidth_bytes_per_s: float
    """Of all workers together."""
    attainable_flops_per_s: float


@dataclass(frozen=True)
class Roofline:
    """Work under the roofline: all that it moves crosses each level once, which is the least that
    any plan moves."""

    flops_per_byte: float
    peak_flops_per_s: float
    """Of as many cores as there are workers."""
    roofs: tuple[Roof, ...]
    """L1 first, DRAM last."""
    home: str
    """The first level that all bytes fit together, room left for what passes by."""
    predicted_flops_per_s: float
    """By the estimate."""

    @property
    def attainable_flops_per_s(self) -> float:
        """Under the roof of the home level."""
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


def roofline_of(
    flops: int, bytes_moved: int, seconds: float, dtype: DType, machine: Machine
) -> Roofline:
    """The place of work whose estimate is `seconds`; `dtype` is what its multiply-adds are of."""
    hardware, workers = machine.hardware, machine.workers
    flops_per_byte = flops / bytes_moved
    peak = hardware.peak_flops_per_s(machine.isa, dtype, workers)
    roofs = []
    for level in hardware.levels:
        rate = min(workers * level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s)
        roofs.append(Roof(level.name, rate, min(peak, flops_per_byte * rate)))
    return Roofline(
        flops_per_byte=flops_per_byte,
        peak_flops_per_s=peak,
        roofs=tuple(roofs),
        home=level_of(hardware, bytes_moved).name,
        predicted_flops_per_s=flops / seconds,
    )
