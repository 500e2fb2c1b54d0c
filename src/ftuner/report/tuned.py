"""The result of tuning, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ftuner.core.frozen import dataclass
from ftuner.core.shown import Shown
from ftuner.core.units import count, duration
from ftuner.ukernels.funnel import Funnel

if TYPE_CHECKING:
    from ftuner.hardware.constants import Calibration
    from ftuner.learn.sampling import Learned


class Prior(NamedTuple):
    """What this machine took over from an exported file."""

    machine: str
    """The name of the machine that the file describes."""
    same_machine: bool
    """Whether the file describes a machine with this one's fingerprint, whose whole tuning was
    taken over."""
    constants: tuple[str, ...]
    """Names of the constants that this machine has from the file."""


@dataclass(frozen=True, repr=False)
class TuneReport(Shown):
    """The result of tuning."""

    dtype: str
    isa: str
    """The ISA, or the architecture of the GPU, that was compiled for."""
    funnel: Funnel[Any]
    compiled: int
    """Objects compiled now: bundles of uKernels on a CPU, single ones on a GPU."""
    cached: int
    """Objects found in the cache."""
    seconds: float
    """Seconds until every shape is ready, including the probe of the machine."""
    prior: Prior | None = None
    """What was taken over from the file given."""
    calibration: Calibration | None = None
    """What was measured of the machine, if this process did so."""
    learned: Learned | None = None
    """What a thorough calibration learned of the errors of estimates."""

    def summary(self) -> str:
        kept = f"{len(self.funnel.kept)} of {count(self.funnel.enumerated, 'tile')} kept"
        return (
            f"{self.dtype} on {self.isa}: {kept}; {count(self.compiled, 'object')} compiled, "
            f"{self.cached} from the cache; ready for every shape in {duration(self.seconds)}"
        )
