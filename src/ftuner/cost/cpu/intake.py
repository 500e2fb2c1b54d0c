"""How tiles take in a panel of B from a level after L2, and how long they wait for it.

The tile that reads a panel first waits for its cache misses. How many of them are under way, and so
how fast the panel arrives, depends on the tile: a low one has little else to do, parts read narrow
strips, and where several tiles share a panel, each fetches a part of the next one. What is measured
of each is an `Intake` of the tuning.
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.cpu.tile import RegisterTile
from ftuner.hardware.intake_tuning import Intake, IntakeTuning


class Reading(NamedTuple):
    """How the tile that reads a panel first does so."""

    streams_log2: int
    """Binary logarithm of the streams along k."""
    ahead_bytes: int
    """Prefetch distance, over all streams."""


AT_HAND = Reading(0, 0)
"""Of a panel that was written just before."""


def overlapped(x: float, y: float, exponent: float) -> float:
    """The time of two things at once: the p-norm of their times."""
    more, less = (x, y) if x > y else (y, x)
    if less <= 0.0:
        return more
    return float(more * (1.0 + (less / more) ** exponent) ** (1.0 / exponent))


LOW, TALL, PARTS, SEVERAL = "low", "tall", "parts", "several"
"""Kinds of covers of a panel: one low tile, a taller one, one in parts, several tiles."""


def kind_of(tuning: IntakeTuning, tile: RegisterTile) -> str:
    """The kind of a cover by one tile."""
    if tile.parts > 1:
        return PARTS
    return LOW if tile.mr <= tuning.low_tile_rows else TALL


def intake_field(kind: str, from_dram: bool, shared: bool) -> str:
    """The field of the tuning that has the `Intake` of a kind of cover."""
    return f"{kind}_{'dram' if from_dram else 'l3'}{'_shared' if shared else ''}"


class FarPanel(NamedTuple):
    """A panel of B that comes from a level after L2."""

    cycles: float
    """Of fetching one k step of it at the bandwidth that a worker has."""
    from_dram: bool
    shared: bool
    """Whether other workers read panels of theirs from the level."""

    def intake(self, tuning: IntakeTuning, tile: RegisterTile, alone: bool) -> Intake:
        """How a panel is taken in if `tile` reads it first. `alone`: no other tile follows."""
        kind = kind_of(tuning, tile) if alone else SEVERAL
        found: Intake = getattr(tuning, intake_field(kind, self.from_dram, self.shared))
        return found

    def wait(self, intake: Intake, cycles: float) -> float:
        """Cycles that a k step of all tiles of the panel takes longer than `cycles`, their own."""
        return overlapped(cycles, self.cycles / intake.share, intake.overlap) - cycles


def reading(intake: Intake) -> Reading:
    """How a tile reads a panel that it takes in so."""
    return Reading(intake.k_streams.bit_length() - 1, intake.prefetch_bytes)
