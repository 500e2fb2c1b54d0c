"""What a check of `ftuner doctor` says."""

from __future__ import annotations

from dataclasses import dataclass

RIGHT, WARNING, PROBLEM = "right", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    part: str
    """What it belongs to: `versions`, `cache`, `hardware`..."""
    state: str
    """`right`; `warning`: ftuner works, but slower than it could or without a part; `problem`:
    ftuner, or what the user asked for, does not work."""
    text: str
    todo: str = ""
    """What to do about it; empty if there is nothing to do."""
