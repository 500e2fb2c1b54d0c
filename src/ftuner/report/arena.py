"""The arena of a program over time: where each intermediate result is, and how long it is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.dim import symbols_of
from ftuner.core.evaluation import evaluate
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import Lowered
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import arena_buffers, stages
from ftuner.runtime.shapes.layout import Lifetime, first_fit


@dataclass(frozen=True)
class Place:
    """One intermediate result."""

    offset: int
    """In bytes."""
    size_bytes: int
    first: int
    """The step that writes it, counted from 1."""
    last: int
    """The last step of the stage that reads it last."""


@dataclass(frozen=True)
class ArenaMap:
    """The arena of one program."""

    places: tuple[Place, ...]
    size_bytes: int
    first: int
    """The first step of the program, counted from 1 over all programs of a model."""
    last: int


def arena_map(
    lowered: Lowered, extents: Mapping[str, int], first: int, unwritten: Collection[Buffer] = ()
) -> ArenaMap | None:
    """The arena of a program whose first step has the number `first`; None if extents are missing.
    The places are those of a run on a CPU that keeps no results of invariant steps. `unwritten`:
    buffers that no step has work to write."""
    begins = stages(lowered.steps)
    buffers = [found for found in arena_buffers(lowered, begins) if found[0] not in unwritten]
    if not extents.keys() >= set(symbols_of([b.elements for b, _, _ in buffers])):
        return None
    sizes = [evaluate(b.elements, extents) * b.dtype.itemsize for b, _, _ in buffers]
    lifetimes = [Lifetime(begin, end) for _, begin, end in buffers]
    offsets, total = first_fit(lifetimes, [aligned(size + SLACK_BYTES) for size in sizes])
    written = {b: n for n, step in enumerate(lowered.steps) for b in reversed(step.writes)}
    last_of = {begin: number for number, begin in enumerate(begins)}
    found = [
        Place(offset, size, first + written.get(buffer, begin), first + last_of[end])
        for offset, size, (buffer, begin, end) in zip(offsets, sizes, buffers, strict=True)
    ]
    return ArenaMap(tuple(found), total, first, first + len(lowered.steps) - 1)
