"""Steps that depend on constants and extents alone: position biases, causal masks, rotary cosines.

Their results are equal in every run of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import NestStep, Step

_MOVES = frozenset({"index", "load", "constant", "dim", "cast"})
"""Steps of nests that compute no element: a copy, a fill or a gather takes as long as reading its
result again does."""


@dataclass(frozen=True)
class Invariant:
    """Steps that depend on extents alone, connected by buffers that they write and read."""

    steps: tuple[int, ...]
    """Their numbers, in order."""
    results: tuple[Buffer, ...]
    """What other steps read."""


def invariants(steps: Sequence[Step]) -> tuple[Invariant, ...]:
    """The invariant steps, apart where no buffer connects them. Groups of steps that only move
    elements are left out."""
    once = _invariant_steps(steps)
    group = {number: number for number in once}

    def root(number: int) -> int:
        while group[number] != number:
            number = group[number]
        return number

    touched: dict[Buffer, int] = {}
    for number in once:
        for buffer in (*steps[number].reads, *steps[number].writes):
            if buffer.kind == "arena":
                group[root(number)] = root(touched.setdefault(buffer, number))
    read = {b for n, step in enumerate(steps) if n not in group for b in step.reads}
    groups: dict[int, list[int]] = {}
    for number in once:
        groups.setdefault(root(number), []).append(number)
    return tuple(
        Invariant(
            tuple(found),
            tuple(dict.fromkeys(b for n in found for b in steps[n].writes if b in read)),
        )
        for found in groups.values()
        if any(map(_computes, (steps[n] for n in found)))
    )


def _invariant_steps(steps: Sequence[Step]) -> list[int]:
    """The steps of which all operands are constants or results of such steps. A buffer that
    any other step writes, too, is not one."""
    once = list(range(len(steps)))
    while True:
        known = set(once)
        others = {b for n, step in enumerate(steps) if n not in known for b in step.writes}
        kept = [n for n in once if _reads_known(steps[n], others)]
        if len(kept) == len(once):
            return kept
        once = kept


def _reads_known(step: Step, others: set[Buffer]) -> bool:
    written = all(b.kind == "arena" and b not in others for b in step.writes)
    return written and all(
        b.is_constant or (b.kind == "arena" and b not in others) for b in step.reads
    )


def _computes(step: Step) -> bool:
    return not isinstance(step, NestStep) or any(s.op not in _MOVES for s in step.kernel.steps)
