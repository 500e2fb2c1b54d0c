"""The terms of an estimate on a CPU, and the one function that composes them."""

from __future__ import annotations

from typing import NamedTuple


class Estimate(NamedTuple):
    """Seconds of the busiest worker by cause.

    The planner makes one for each candidate of a new shape, hence a named tuple.
    """

    issue_s: float = 0.0
    """Multiply-adds over their ports."""
    stall_s: float = 0.0
    """What k steps take longer than their multiply-adds: latency, load ports, B from L2."""
    l3_s: float = 0.0
    """Transfers from the caches after L2."""
    dram_s: float = 0.0
    """Transfers from DRAM."""
    tile_s: float = 0.0
    """Entering and leaving tiles, the copies of tails and the sums of partial products."""
    pack_s: float = 0.0
    """Packing A and B."""
    synchronise_s: float = 0.0
    """Starting the workers and waiting for them."""
    correction: float = 1.0
    """Learned factor of the whole; 1 where nothing is known better than the terms."""

    @property
    def seconds(self) -> float:
        """The largest of what overlaps (computing, each memory level) plus what does not, times the
        correction.

        `Planner.plan` has a copy of this formula, which a test compares with it.
        """
        compute_s = self.issue_s + self.stall_s + self.tile_s
        overlapping_s = max(compute_s, self.l3_s, self.dram_s)
        return (overlapping_s + self.pack_s + self.synchronise_s) * self.correction

    @property
    def bound(self) -> str:
        """The limiting resource: `compute`, `l3` or `dram`."""
        compute_s = self.issue_s + self.stall_s + self.tile_s
        terms = {"compute": compute_s, "l3": self.l3_s, "dram": self.dram_s}
        return max(terms, key=lambda name: terms[name])

    def terms(self) -> dict[str, float]:
        """All terms by name, in seconds, before the correction."""
        return {name: float(getattr(self, name)) for name in TERMS}


TERMS = tuple(name for name in Estimate._fields if name.endswith("_s"))
"""The names of the terms."""
