"""How row tiles take in a B from after L2: part of the tuning of a CPU (`hardware.tuning`)."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.hardware.constants import constant

_ZEN3 = "fitted on AMD Zen 3"
_ZEN4 = "fitted on AMD Zen 4"
_AS_ALONE = "assumed to be as of one worker"


@dataclass(frozen=True)
class Intake:
    """How row tiles take in a panel of B that comes from a cache after L2, or from DRAM: how they
    read it, and how long it takes beside their multiply-adds."""

    k_streams: int = constant(
        MISSING, "", "Interleaved streams along k of the tile that reads the panel first: more "
        "cache misses in flight", "", most=64, power_of_two=True,
    )  # fmt: skip
    prefetch_bytes: int = constant(
        MISSING, "bytes", "Prefetch distance of that tile, over all its streams", "", most=1 << 20
    )
    share: float = constant(
        MISSING, "", "Share of the level's bandwidth that the panel arrives with", "", most=2
    )
    overlap: float = constant(
        MISSING, "", "Computing and fetching take the p-norm of their times: 1 if neither hides "
        "any of the other, more if they overlap", "", least=1, most=32,
    )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.k_streams} streams, {self.prefetch_bytes} bytes ahead, {self.share:.2f} of "
            f"the bandwidth, overlap {self.overlap:.1f}"
        )


def _alone(default: Intake, where: str) -> Any:
    """A field: how B is taken in by some tiles, from a level, where no other worker reads it."""
    return constant(default, "", f"How B is taken in: {where}", _ZEN4)


def _shared(default: Intake, where: str) -> Any:
    """A field for what is read by all workers at once."""
    where = f"{where}, all workers at once"
    return constant(default, "", f"How B is taken in: {where}", _AS_ALONE)


@dataclass(frozen=True)
class IntakeTuning:
    """How tiles take in a B from after L2, by the tiles that share a panel, by the level, and by
    whether other workers read panels of theirs from it (`shared`)."""

    low_tile_rows: int = constant(
        3, "rows", "Greatest height of a low tile, whose multiply-adds hide little of its loads",
        _ZEN3,
    )  # fmt: skip
    low_l3: Intake = _alone(Intake(4, 2048, 0.9, 3.0), "a low tile alone, B from L3")
    low_dram: Intake = _alone(Intake(1, 8192, 0.9, 4.0), "a low tile alone, B from DRAM")
    tall_l3: Intake = _alone(Intake(1, 4096, 0.9, 3.0), "a taller tile alone, B from L3")
    tall_dram: Intake = _alone(Intake(1, 8192, 0.9, 4.0), "a taller tile alone, B from DRAM")
    parts_l3: Intake = _alone(Intake(1, 4096, 0.7, 3.0), "a tile in parts, B from L3")
    parts_dram: Intake = _alone(Intake(4, 16384, 0.6, 1.5), "a tile in parts, B from DRAM")
    several_l3: Intake = _alone(Intake(1, 4096, 0.9, 3.0), "several tiles, B from L3")
    several_dram: Intake = _alone(Intake(1, 8192, 0.9, 1.8), "several tiles, B from DRAM")
    low_l3_shared: Intake = _shared(Intake(4, 2048, 0.9, 3.0), "a low tile alone, B from L3")
    low_dram_shared: Intake = _shared(Intake(1, 8192, 0.9, 4.0), "a low tile alone, B from DRAM")
    tall_l3_shared: Intake = _shared(Intake(1, 4096, 0.9, 3.0), "a taller tile alone, B from L3")
    tall_dram_shared: Intake = _shared(
        Intake(1, 8192, 0.9, 4.0), "a taller tile alone, B from DRAM"
    )
    parts_l3_shared: Intake = _shared(Intake(1, 4096, 0.7, 3.0), "a tile in parts, B from L3")
    parts_dram_shared: Intake = _shared(Intake(4, 16384, 0.6, 1.5), "a tile in parts, B from DRAM")
    several_l3_shared: Intake = _shared(Intake(1, 4096, 0.9, 3.0), "several tiles, B from L3")
    several_dram_shared: Intake = _shared(Intake(1, 8192, 0.9, 1.8), "several tiles, B from DRAM")
    l2_share: float = constant(
        0.8, "", "Share of L2's bandwidth that a panel arrives with from there", _ZEN4, most=2
    )
    l2_overlap: float = constant(
        6.0, "", "The overlap of multiply-adds and a B that comes from L2, as in `Intake`", _ZEN4,
        least=1, most=32,
    )  # fmt: skip
