"""Constants of a tuning: fields of a frozen dataclass, each with what is known of it besides its
value.

A field states its unit, its meaning, the values that it may have, and where the default comes from.

What was measured on a machine itself has one of the words of `hardware.model`. A constant of
another machine has a prefix and the name of that machine: `prior: epyc-zen4`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

from ftuner.core.caching import cached_attribute
from ftuner.core.frozen import dataclass
from ftuner.core.shown import Shown

UNMEASURED = "assumed; not measured on a device yet"
"""The provenance of a constant of GPUs that no measurement has set."""
_T = TypeVar("_T")


class Constant(NamedTuple):
    """What is known of one field of a tuning besides its value."""

    unit: str
    """Empty for a count or a ratio."""
    meaning: str
    provenance: str
    """`fitted`, `measured`, `derived` or `assumed`, and on what machine or from what."""
    least: float | None
    """The smallest value that is accepted; None: any positive one."""
    most: float | None
    """The largest value that is accepted, if there is a limit."""
    power_of_two: bool
    """Whether only powers of two are accepted."""

    def expectation(self, value: float) -> str | None:
        """What a positive value was expected to be, or None if it is accepted."""
        if self.least is not None and value < self.least:
            return f"at least {self.least}"
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        if self.power_of_two and math.frexp(value)[0] != 0.5:
            return "a power of two"
        return None


def constant(
    default: Any, unit: str, meaning: str, provenance: str, *, least: float | None = None,
    most: float | None = None, power_of_two: bool = False,
) -> Any:  # fmt: skip
    """The field of a tuning dataclass; its values are positive. `default`: `MISSING` if there is
    none."""
    known = Constant(unit, meaning, provenance, least, most, power_of_two)
    return field(default=default, metadata={Constant: known})


def constants(tuning: Any) -> dict[str, Constant]:
    """What is known of each field, by name; of a tuning dataclass or a value of one."""
    return {f.name: f.metadata[Constant] for f in fields(tuning) if Constant in f.metadata}


def part_of(tuning: Any, part: type[_T]) -> _T:
    """The fields of a tuning that one of its base classes has, as a value of that class."""
    return part(**{name: getattr(tuning, name) for name in constants(part)})


@dataclass(frozen=True, repr=False)
class Tuning(Shown):
    """The constants of a machine, and where those come from that differ from the defaults."""

    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """The origin of values that differ from the defaults, by field; as in the hardware model."""
    confidence: Mapping[str, float] = field(default_factory=dict, compare=False, hash=False)
    """How sure fitted values are, by field: 1 where another measurement would find the same; less
    as measurements differ from each other or from what the estimate can explain."""

    def summary(self) -> str:
        """The number of constants by origin: `80 constants: 12 fitted, 68 defaults`."""
        names = constants(self)
        found = Counter(self.provenance.get(name, "defaults") for name in names)
        parts = (f"{number} {origin}" for origin, number in found.most_common())
        return f"{len(names)} constants: {', '.join(parts)}"

    @property
    def is_calibrated(self) -> bool:
        """Whether constants were measured on the machine itself."""
        return any(source == "fitted" for source in self.provenance.values())

    @property
    def digest(self) -> str:
        """Names the values of the constants."""
        values = [(name, getattr(self, name)) for name in constants(self)]
        return hashlib.sha256(repr(values).encode()).hexdigest()[:8]

    @cached_attribute
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in constants(self)))

    def __hash__(self) -> int:
        """Computed once, because planning looks libraries and tiles up by their machine. Subclasses
        assign it again: the decorator `dataclass` would give them another."""
        return self._hash


PRIOR = "prior: "
"""Taken over from the nearest recorded machine. Follows what is recorded."""
GIVEN = "given: "
"""Taken over from a file that the user gave, of another machine. Stays until another is given."""
_NAME = re.compile(r"[\w.+-]{1,64}")
_UNUSUAL = re.compile(r"[^\w.+-]+")


def taken_from(prefix: str, machine: str) -> str:
    """The provenance of a constant of a machine, whose name is shortened to plain characters."""
    return prefix + (_UNUSUAL.sub("-", machine).strip("-")[:64] or "unnamed")


def is_taken(provenance: str) -> bool:
    """Whether a provenance says that a constant is of another machine."""
    return any(
        provenance.startswith(prefix) and _NAME.fullmatch(provenance[len(prefix) :]) is not None
        for prefix in (PRIOR, GIVEN)
    )


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
