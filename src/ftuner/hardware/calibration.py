"""What a calibration found: values of constants that were measured on the machine itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, NamedTuple

NOISY_SHARE = 0.5
"""A machine is said to be noisy if this share of the bursts ran beside other load."""


class Fitted(NamedTuple):
    """A value that a fit found."""

    value: Any
    """Of the field of the tuning."""
    error: float
    """Relative error that is expected of it, or of the times that it was chosen by."""


def confidence(error: float) -> float:
    """From 1, where another measurement will find the same, to 0. One half at an error of 20%."""
    return 1.0 / (1.0 + (error / 0.2) ** 2)


@dataclass(frozen=True)
class Calibration:
    """What was found on a machine."""

    tuning: Any
    """With what was found; of the device's kind: `CpuTuning` or `GpuTuning`."""
    found: Mapping[str, Fitted]
    before: Any
    """The tuning from before."""
    seconds: float
    slow_share: float
    """Share of the bursts that ran beside other load."""

    @property
    def noisy(self) -> bool:
        return self.slow_share > NOISY_SHARE

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Values before and after, of the fields that changed."""
        pairs = {name: (getattr(self.before, name), f.value) for name, f in self.found.items()}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def document(self) -> dict[str, Any]:
        """What was found, as JSON can hold it."""
        return {
            "seconds": self.seconds,
            "slow_share": self.slow_share,
            "noisy": self.noisy,
            "found": {
                name: {
                    "before": _plain(getattr(self.before, name)),
                    "value": _plain(fitted.value),
                    "confidence": self.tuning.confidence[name],
                }
                for name, fitted in self.found.items()
            },
        }


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
