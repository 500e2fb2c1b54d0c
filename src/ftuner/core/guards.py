"""Where the values of a kernel's steps are needed: conditions that follow from indices alone.

What is read where its condition does not hold may lie outside the operand, which a pad of nothing
does, or name an element by an index that was never given. Such loads and checks are guarded.
"""

from __future__ import annotations

from collections.abc import Collection

from ftuner.core.access import Kernel, affine_index
from ftuner.core.dtype import INT64
from ftuner.core.index_expr import ABSENT

Guard = frozenset[tuple[int, bool]]
"""Conditions, and whether each must hold or not."""


def needs(kernel: Kernel, number: int) -> list[int]:
    """The steps that a step is computed from."""
    access = kernel.accesses[number]
    arguments = kernel.steps[number].arguments
    return list(arguments) if access is None else [step for step, _ in access.rest]


def inner_steps(kernel: Kernel) -> frozenset[int]:
    """Steps that differ along the reduced axes."""
    return differing(kernel, range(len(kernel.kept), len(kernel.axes)))


def outer_steps(kernel: Kernel, axes: Collection[int]) -> list[int]:
    """Steps that differ along some of these axes and no others, and that may be computed even where
    the other axes are empty: nothing that is guarded or checked."""
    found = differing(kernel, axes)
    others = set(differing(kernel, set(range(len(kernel.axes))).difference(axes)))
    for number, (step, guard) in enumerate(zip(kernel.steps, guards(kernel), strict=True)):
        waits = step.op == "checked" or (step.op == "load" and guard)
        if waits or not others.isdisjoint(needs(kernel, number)):
            others.add(number)
    return sorted(found - others)


def differing(kernel: Kernel, axes: Collection[int]) -> frozenset[int]:
    """Steps that differ along some of these axes."""
    found: set[int] = set()
    for number, (step, access) in enumerate(zip(kernel.steps, kernel.accesses, strict=True)):
        if step.op == "index":
            assert isinstance(step.payload, int)
            inner = step.payload in axes
        elif step.op == "stage":
            assert isinstance(step.payload, int)
            scans = kernel.stages[step.payload].kind == "scan"
            inner = scans or any(axis < len(kernel.kept) for axis in axes)
        else:
            inner = any(n in found for n in needs(kernel, number))
            if access is not None:
                inner = inner or any(access.coefficients[axis] != 0 for axis in axes)
        if inner:
            found.add(number)
    return frozenset(found)


def terms(kernel: Kernel, condition: int, wanted: bool) -> Guard:
    """What has to hold for a condition to be as wanted: each part of a conjunction for itself,
    because a place outside the loop over the reduced axes may know only some of them."""
    step = kernel.steps[condition]
    if not wanted or step.op != "logical_and":
        return frozenset({(condition, wanted)})
    return frozenset().union(*(terms(kernel, part, True) for part in step.arguments))


def guards(kernel: Kernel, necessary: bool = False) -> list[Guard]:
    """For each step, the conditions of `where` outside which no step takes its value: of those that
    follow from indices alone, so that no load waits for another. With `necessary`, only conditions
    outside which its loads may lie outside their operands."""
    count = len(kernel.steps)
    inner = inner_steps(kernel)
    known = [True] * count
    for number, step in enumerate(kernel.steps):
        unknown = step.op in ("load", "stage", "checked")
        known[number] = not unknown and all(known[a] for a in step.arguments)
    roots = {*kernel.values, *(n for stage in kernel.stages for n in stage.needed)}
    roots |= {step for target in kernel.targets for step, _ in target.rest}
    found: list[Guard | None] = [frozenset() if n in roots else None for n in range(count)]
    for number in reversed(range(count)):
        own = found[number]
        assert own is not None, "every step of a kernel is needed"
        step = kernel.steps[number]
        guarded = step.op == "where" and (step.payload == ABSENT or not necessary)
        for position, needed in enumerate(needs(kernel, number)):
            guard = own
            if guarded and position and known[step.arguments[0]]:
                guard = own | terms(kernel, step.arguments[0], position == 1)
            # A place outside the loop over the reduced axes knows no condition within it.
            guard = frozenset(g for g in guard if needed in inner or g[0] not in inner)
            other = found[needed]
            found[needed] = guard if other is None else other & guard
    return [g or frozenset() for g in found]


def slopes(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """For conditions of absent elements that compare affine indices: how much nearer each axis
    brings them to holding. Where they hold at the worst corner of a part of the axes they hold in
    all of it, as in most of a tensor that is padded, where masks are then not needed."""
    found = {}
    edges = [s.arguments[0] for s in kernel.steps if s.op == "where" and s.payload == ABSENT]
    for condition in sorted({term for edge in edges for term, _ in terms(kernel, edge, True)}):
        step = kernel.steps[condition]
        if step.op not in ("less", "less_equal") or kernel.steps[step.arguments[0]].dtype != INT64:
            continue
        low, high = (affine_index(kernel.steps, a, len(kernel.axes)) for a in step.arguments)
        pairs = zip(low.coefficients, high.coefficients, strict=True)
        nearer = [c for c in (b - a for a, b in pairs) if isinstance(c, int)]
        if len(nearer) == len(kernel.axes) and not (low.rest or high.rest):
            found[condition] = tuple(nearer)
    return found
