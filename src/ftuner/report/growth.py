"""Which outputs of a model append to inputs in place, and which inputs are copied, as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NAMED = 4
"""Most names that a text has one by one."""


def growth_facts(appended: Mapping[str, str], copied: Mapping[str, str]) -> dict[str, str]:
    """`Model.appended` and `Model.copied` by what they are, without those that are empty."""
    facts = {}
    if appended:
        pairs = [f"{output} to {given}" for given, output in appended.items()]
        facts["appended in place"] = _some(pairs)
    by_reason: dict[str, list[str]] = {}
    for given, why in copied.items():
        by_reason.setdefault(why, []).append(given)
    if by_reason:
        parts = (f"{_some(names)} ({why})" for why, names in by_reason.items())
        facts["copied"] = "; ".join(parts)
    return facts


def _some(names: Sequence[str]) -> str:
    """The first of some names, and the number of the others."""
    left = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {left} more" if left > 0 else "")
