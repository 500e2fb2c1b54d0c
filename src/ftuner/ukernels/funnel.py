"""A funnel of named filters, applied in order: what each filter takes out, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress
from typing import Generic, TypeVar

from ftuner.core.frozen import dataclass
from ftuner.core.shown import Shown
from ftuner.core.units import count

THRESHOLD = 0.95
"""Where thresholds start in FTuner (arXiv 2407.21418)."""
THRESHOLD_STEP = 0.05
"""A threshold is lowered by this until a tile is left, so that no machine ends with an empty
library."""

Tile = TypeVar("Tile")


@dataclass(frozen=True, repr=False)
class Pruned(Shown, Generic[Tile]):
    """The tiles that one filter took out."""

    name: str
    reason: str
    tiles: tuple[Tile, ...]

    def summary(self) -> str:
        return f"{self.name}: {count(len(self.tiles), 'tile')}; {self.reason}"


@dataclass(frozen=True, repr=False)
class Funnel(Shown, Generic[Tile]):
    """The way from all enumerated tiles to the kept ones."""

    enumerated: int
    """Tiles before the first filter."""
    pruned: tuple[Pruned[Tile], ...]
    """One entry for each filter, in order."""
    kept: tuple[Tile, ...]
    """One tile for each height and width."""

    def summary(self) -> str:
        filters = ", ".join(f"{p.name} {len(p.tiles)}" for p in self.pruned)
        return f"{len(self.kept)} of {count(self.enumerated, 'tile')} kept; pruned: {filters}"


class Sieve(Generic[Tile]):
    """The tiles that are left while filters are applied."""

    def __init__(self, tiles: Iterable[Tile]) -> None:
        self.left = list(tiles)
        self.enumerated = len(self.left)
        self.pruned: tuple[Pruned[Tile], ...] = ()

    def keep(self, name: str, reason: str, passes: Callable[[Tile], bool]) -> None:
        """Take out the tiles that do not pass."""
        passing = [passes(t) for t in self.left]
        out = tuple(t for t, passed in zip(self.left, passing, strict=True) if not passed)
        self.left = list(compress(self.left, passing))
        self.pruned += (Pruned(name, reason, out),)
