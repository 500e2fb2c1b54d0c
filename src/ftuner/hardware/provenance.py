"""Provenances of constants that were taken over from another machine.

What was measured on a machine itself has one of the words of `hardware.model`. A constant of
another machine has a prefix and the name of that machine: `prior: epyc-zen4`.
"""

from __future__ import annotations

import re

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
