"""Steps that depend on constants and extents alone: position biases, causal masks, rotary cosines.

Their results are equal in every run of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import Step
from ftuner.schedules.nest.step import NestStep

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
            group[number] = number = group[group[number]]
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
    touching: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for buffer in {*step.reads, *step.writes}:
            touching.setdefault(buffer, []).append(number)
    varying = {n for n, step in enumerate(steps) if not _reads_known(step)}
    left = list(varying)
    while left:
        for buffer in steps[left.pop()].writes:
            found = [n for n in touching.pop(buffer, ()) if n not in varying]
            varying.update(found)
            left += found
    return [n for n in range(len(steps)) if n not in varying]


def _reads_known(step: Step) -> bool:
    """Whether all operands are constants, or may be, and whether the results stay in the arena."""
    return all(b.kind == "arena" for b in step.writes) and all(
        b.is_constant or b.kind == "arena" for b in step.reads
    )


def _computes(step: Step) -> bool:
    return not isinstance(step, NestStep) or any(s.op not in _MOVES for s in step.kernel.steps)
