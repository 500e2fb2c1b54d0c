"""Constants of a tuning: fields of a frozen dataclass, each with what is known of it besides its
value.

A field states its unit, its meaning, the values that it may have, and where the default comes from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from ftuner.core.cached_attribute import cached_attribute
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

    @cached_attribute
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in constants(self)))

    def __hash__(self) -> int:
        """Computed once, because planning looks libraries and tiles up by their machine. Subclasses
        assign it again: the decorator `dataclass` would give them another."""
        return self._hash
