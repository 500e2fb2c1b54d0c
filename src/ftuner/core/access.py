"""Where a nest's loads and stores lie in memory: offsets as affine functions of the axes.

A `Kernel` is a nest with layouts: each access is `constant + sum(coefficient * index of axis)` in
elements of its buffer, plus what no affine function says (indices that are data, remainders).
Axes that all accesses walk together are merged into one.

What is read where its condition does not hold may lie outside the operand, which a pad of nothing
does, or name an element by an index that was never given. Such loads and checks are guarded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ftuner.core.dim import Dim, Shape, product, symbol
from ftuner.core.dtype import INT64
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import ABSENT, Nest, Operand, Stage, Step

AxisCoefficients = tuple[Dim, ...]


@dataclass(frozen=True)
class Access:
    """The offset of an element in its buffer: a constant, a coefficient for each axis, and steps
    with the elements that each unit of their value counts."""

    constant: Dim
    coefficients: AxisCoefficients
    rest: tuple[tuple[int, Dim], ...]


@dataclass(frozen=True)
class Kernel:
    """A nest ready for code generation. `accesses[i]` belongs to the i-th step, None unless that
    is a load; `targets[i]` to the i-th result."""

    kept: Shape
    reduced: Shape
    steps: tuple[Step, ...]
    accesses: tuple[Access | None, ...]
    stages: tuple[Stage, ...]
    values: tuple[int, ...]
    """For each result, the step that is stored."""
    targets: tuple[Access, ...]
    wide: tuple[bool, ...]
    """For each result, whether it is stored for each reduced index too."""
    combine: str = ""
    """How the one result of a scattering nest is stored: see `Store.combine`."""

    @property
    def axes(self) -> Shape:
        return self.kept + self.reduced

    def parameters(self) -> tuple[Dim, ...]:
        """All dims that code needs at run time, each once."""
        found: dict[Dim, None] = {}
        dims: list[Dim] = [*self.axes]
        for access in (*self.targets, *(a for a in self.accesses if a is not None)):
            dims += [access.constant, *access.coefficients, *(m for _, m in access.rest)]
        for step in self.steps:
            if step.op == "dim":
                assert not isinstance(step.payload, str | None)
                dims.append(step.payload)  # type: ignore[arg-type]
        for dim in dims:
            if not isinstance(dim, int):
                found.setdefault(dim)
        return tuple(found)

    def checks(self) -> tuple[str, ...]:
        """The texts of checked indices, each once: the status of the n-th that fails is n + 1."""
        return tuple(dict.fromkeys(str(s.payload) for s in self.steps if s.op == "checked"))

    def numbered(self) -> Kernel:
        """The kernel that code is made of: each parameter is a symbol with its number for a name,
        and the text of each check is its number.

        Kernels that only compute their parameters differently, or belong to other nodes of a model,
        have the same code.
        """
        symbols = {dim: symbol(f"p{i}") for i, dim in enumerate(self.parameters())}
        texts = {text: str(i) for i, text in enumerate(self.checks())}

        def step_of(step: Step) -> Step:
            if step.op == "dim":
                return step._replace(payload=named(step.payload))  # type: ignore[arg-type]
            if step.op == "checked":
                return step._replace(payload=texts[str(step.payload)])
            return step

        def named(dim: Dim) -> Dim:
            return dim if isinstance(dim, int) else symbols[dim]

        def access_of(access: Access) -> Access:
            rest = tuple((step, named(m)) for step, m in access.rest)
            coefficients = tuple(map(named, access.coefficients))
            return Access(named(access.constant), coefficients, rest)

        return replace(
            self,
            kept=tuple(map(named, self.kept)),
            reduced=tuple(map(named, self.reduced)),
            steps=tuple(map(step_of, self.steps)),
            accesses=tuple(None if a is None else access_of(a) for a in self.accesses),
            targets=tuple(map(access_of, self.targets)),
        )


def kernel_of(nest: Nest, targets: Sequence[Operand]) -> Kernel:
    """A nest whose results lie as `targets` say; axes merged where all accesses allow."""
    count = len(nest.axes)
    accesses: list[Access | None] = []
    for step in nest.steps:
        if step.op != "load":
            accesses.append(None)
            continue
        operand = nest.operands[step.number]
        access = _constant(operand.offset, count)
        for argument, stride in zip(step.arguments, operand.strides, strict=True):
            access = _plus(access, _scaled(affine_index(nest.steps, argument, count), stride))
        accesses.append(access)
    places = []
    for store, target in zip(nest.stores, targets, strict=True):
        place = _constant(target.offset, count)
        for number, stride in zip(store.at, target.strides, strict=bool(store.at)):
            place = _plus(place, _scaled(affine_index(nest.steps, number, count), stride))
        coefficients = list(place.coefficients)
        for axis, stride in zip(store.axes, target.strides, strict=bool(store.axes)):
            coefficients[axis] = coefficients[axis] + stride
        places.append(Access(place.constant, tuple(coefficients), place.rest))
    wide = tuple(bool(s.at) or any(a >= len(nest.kept) for a in s.axes) for s in nest.stores)
    # A result of all axes is stored for each reduced index even where those have extent one.
    wide = tuple(w or (bool(nest.reduced) and len(s.axes) == count)
                 for w, s in zip(wide, nest.stores, strict=True))  # fmt: skip
    kernel = Kernel(
        nest.kept, nest.reduced, nest.steps, tuple(accesses), nest.stages,
        tuple(s.value for s in nest.stores), tuple(places), wide, nest.stores[0].combine,
    )  # fmt: skip
    return _merged(without_unused(kernel))


def _constant(value: Dim, count: int) -> Access:
    return Access(value, (0,) * count, ())


def _plus(x: Access, y: Access) -> Access:
    coefficients = tuple(a + b for a, b in zip(x.coefficients, y.coefficients, strict=True))
    return Access(x.constant + y.constant, coefficients, x.rest + y.rest)


def _scaled(x: Access, factor: Dim) -> Access:
    return Access(
        x.constant * factor,
        tuple(c * factor for c in x.coefficients),
        tuple((step, m * factor) for step, m in x.rest if m * factor != 0),
    )


def affine_index(steps: Sequence[Step], number: int, count: int) -> Access:
    """An index step as an affine function of `count` axes."""
    step = steps[number]
    if step.op == "index":
        unit: list[Dim] = [0] * count
        unit[step.number] = 1
        return Access(0, tuple(unit), ())
    if step.dim is not None:
        return _constant(step.dim, count)
    if step.op in ("add", "subtract"):
        x, y = (affine_index(steps, a, count) for a in step.arguments)
        return _plus(x, y if step.op == "add" else _scaled(y, -1))
    if step.op == "multiply":
        for this, other in (step.arguments, step.arguments[::-1]):
            factor = steps[this].dim
            if factor is not None:
                return _scaled(affine_index(steps, other, count), factor)
    return Access(0, (0,) * count, ((number, 1),))


def live_steps(kernel: Kernel) -> list[bool]:
    """Which steps are computed: those that results or stages need, beside what accesses say."""
    live = [False] * len(kernel.steps)
    written = [step for t in kernel.targets for step, _ in t.rest]
    for value in (*kernel.values, *written, *(n for s in kernel.stages for n in s.needed)):
        live[value] = True
    for number in reversed(range(len(kernel.steps))):
        if not live[number]:
            continue
        for argument in needs(kernel, number):
            live[argument] = True
    return live


def without_unused(kernel: Kernel) -> Kernel:
    """This with only the steps that are computed."""
    live = live_steps(kernel)
    went: dict[int, int] = {}
    steps: list[Step] = []
    accesses: list[Access | None] = []
    for number, (step, access) in enumerate(zip(kernel.steps, kernel.accesses, strict=True)):
        if not live[number]:
            continue
        went[number] = len(steps)
        if access is None:
            steps.append(step._replace(arguments=tuple(went[a] for a in step.arguments)))
            accesses.append(None)
        else:
            steps.append(step._replace(arguments=()))
            rest = tuple((went[s], m) for s, m in access.rest)
            accesses.append(Access(access.constant, access.coefficients, rest))
    stages = tuple(stage.moved(went) for stage in kernel.stages)
    targets = tuple(replace(t, rest=tuple((went[s], m) for s, m in t.rest)) for t in kernel.targets)
    return Kernel(
        kernel.kept, kernel.reduced, tuple(steps), tuple(accesses), stages,
        tuple(went[v] for v in kernel.values), targets, kernel.wide, kernel.combine,
    )  # fmt: skip


def _merged(kernel: Kernel) -> Kernel:
    """Neighbouring axes that every access walks as one become one; axes of one element go."""
    used = {s.payload for s in kernel.steps if s.op == "index"}
    # The position along a reduced axis is what argmax and argmin are about.
    positions = any(stage.positional for stage in kernel.stages)
    accesses = [*kernel.targets, *(a for a in kernel.accesses if a is not None)]
    groups: list[list[int]] = []
    axes, split = kernel.axes, len(kernel.kept)

    def together(first: int, second: int) -> bool:
        if first in used or second in used or (first < split) != (second < split):
            return False
        if positions and second >= split:
            return False
        return all(a.coefficients[first] == a.coefficients[second] * axes[second] for a in accesses)

    for axis in range(len(axes)):
        if axes[axis] == 1 and axis not in used and not (positions and axis >= split):
            continue
        if groups and together(groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    extents = [product(axes[axis] for axis in group) for group in groups]
    number = {axis: i for i, group in enumerate(groups) for axis in group}
    kept = sum(1 for group in groups if group[0] < split)

    def renamed(access: Access) -> Access:
        coefficients = tuple(access.coefficients[group[-1]] for group in groups)
        return Access(access.constant, coefficients, access.rest)

    steps = tuple(
        s._replace(payload=number[s.payload]) if s.op == "index" else s  # type: ignore[index]
        for s in kernel.steps
    )
    return Kernel(
        tuple(extents[:kept]), tuple(extents[kept:]), steps,
        tuple(None if a is None else renamed(a) for a in kernel.accesses),
        kernel.stages, kernel.values, tuple(renamed(t) for t in kernel.targets), kernel.wide,
        kernel.combine,
    )  # fmt: skip


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
            inner = step.number in axes
        elif step.op == "stage":
            scans = kernel.stages[step.number].kind == "scan"
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
