"""The recurrences of a definition in the order in which they are computed, and proofs that they can
be: each reads itself at earlier positions along one axis alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ftuner.core.dim import Dim, never_negative
from ftuner.core.frozen import dataclass
from ftuner.define.bounds import Bounds, Names, dim_of, linear
from ftuner.define.elements import (
    BOOL,
    NUMBER,
    Apply,
    Element,
    Index,
    Read,
    Reduction,
    Tensor,
    elements_of,
    kind_of,
    operands_of,
    wrong,
)
from ftuner.define.recurrences import Recurrence
from ftuner.define.tracing import Definition

MOST_DELAYS = 8
"""Earlier elements that a step keeps in registers; what is further back is read from memory.
Derived: a quarter of the registers of any ISA, or half of them."""


@dataclass(frozen=True)
class Group:
    """Arrays that read each other, in the order in which a step computes them."""

    members: tuple[Recurrence, ...]
    axis: int | None
    """Along which they are computed step by step; None if an array does not read itself."""

    @property
    def batched(self) -> bool:
        return any(one.batched for one in self.members)


def reads_of(root: Element, tensors: Iterable[Tensor]) -> Iterator[Read]:
    """The reads of some tensors within an element."""
    wanted = {*tensors}
    for one in elements_of(root):
        if isinstance(one, Read) and one.tensor in wanted:
            yield one


def groups(recurrences: Sequence[Recurrence], names: Names, proven: bool = False) -> list[Group]:
    """The groups of recurrences, each after those that it reads.

    Args:
        names: the extents of the signature.
        proven: they were found before, for all extents.

    Raises:
        DefinitionError: an array reads itself where it cannot have been computed.
    """
    direct = {
        one: {r.tensor for r in reads_of(one.value, recurrences)} & {*recurrences}
        for one in recurrences
    }
    whole = {one: _closure(one, direct) for one in recurrences}
    found, placed = list[Group](), set[Recurrence]()
    # Of two with as large a closure, the one that does not read itself reads the other.
    for one in sorted(recurrences, key=lambda x: (len(whole[x]), x not in whole[x])):
        if one in placed:
            continue
        members = [x for x in recurrences if x is one or (x in whole[one] and one in whole[x])]
        placed |= {*members}
        recursive = one in whole[one]
        found.append(_checked(members, names, proven) if recursive else Group((one,), None))
    return found


def _closure(one: Recurrence, direct: dict[Recurrence, set[Tensor]]) -> set[Tensor]:
    found, left = set[Tensor](), [*direct[one]]
    while left:
        other = left.pop()
        if other not in found:
            found.add(other)
            assert isinstance(other, Recurrence)
            left += direct[other]
    return found


def _checked(members: Sequence[Recurrence], names: Names, proven: bool) -> Group:
    axis: int | None = None
    same: dict[Recurrence, set[Tensor]] = {one: set() for one in members}
    """The members that each reads at the step that computes it."""
    first = members[0]
    for one in members:
        shapes = [[dim_of(extent, names) for extent in x.shape] for x in (first, one)]
        if shapes[0] != shapes[1] or one.type != first.type:
            what = f"{one.name} and {first.name} read each other"
            raise wrong(f"{what}; expected one shape and one type", one.place)
    for one in members:
        _expect_computable(one, members)
        for read in reads_of(one.value, members):
            moved = delays(read, one, names, proven)
            if len(moved) > 1 or (moved and axis not in (None, *moved)):
                axes = " and ".join(map(str, sorted({*moved, *(() if axis is None else (axis,))})))
                what = f"{read.tensor.name} is read at earlier positions along the axes {axes}"
                raise wrong(f"{what}; expected one axis for all of its reads", read.place)
            axis = next(iter(moved), axis)
            if not moved:
                same[one].add(read.tensor)
    ordered = list[Recurrence]()
    while len(ordered) < len(members):
        ready = [x for x in members if x not in ordered and same[x] <= {*ordered}]
        if not ready:
            stuck = next(x for x in members if x not in ordered)
            what = f"{stuck.name} at an index is made of itself at that index"
            raise wrong(f"{what}; expected earlier positions along one axis", stuck.place)
        ordered += ready
    return Group(tuple(ordered), axis)


def delays(read: Read, of: Recurrence, names: Names, proven: bool) -> dict[int, Dim]:
    """How many positions before the own one an element reads, for each axis along which it is not
    the own one.

    Raises:
        DefinitionError: it is not read at earlier positions.
    """
    found: dict[int, Dim] = {}
    for axis, (one, own) in enumerate(zip(read.at, of.index, strict=True)):
        form = linear(one, names)
        what = f"{read.tensor.name} is read by {of.name} along axis {axis}"
        if form is None or {**form.coefficients} != {own: 1}:
            what = f"{what} at an index that is not its own, or its own less a number"
            wanted = "such as h[i - 1, j] for the element at i, j"
            raise wrong(f"{what}: expected {wanted}", read.place)
        if isinstance(form.constant, int) and form.constant == 0:
            continue
        if not proven and not never_negative(-form.constant - 1):
            raise wrong(f"{what} at a later position; expected an earlier one", read.place)
        found[axis] = -form.constant
    return found


def _expect_computable(one: Recurrence, members: Sequence[Recurrence]) -> None:
    """Raise DefinitionError if an element is not made of earlier ones by functions of floats."""
    own = {*reads_of(one.value, members)}
    depends = set[Element](own)
    for part in elements_of(one.value):
        if depends.isdisjoint(operands_of(part)):
            continue
        depends.add(part)
        match part:
            case Read(tensor=tensor):
                what = f"{tensor.name} is read at an index that {one.name} decides"
            case Reduction():
                what = f"{one.name} reads itself within a reduction over an axis"
                what = f"{what}; expected its own index along all axes but one"
            case Apply(function=("isnan" | "isinf") as function):
                what = f"{one.name} is made of {function} of itself"
                what = f"{what}; expected comparisons, such as x != x for a NaN"
            case _ if part.type not in (one.type, BOOL, NUMBER):
                what = f"{one.name} is made of itself as {part.type}; expected {one.type}"
            case _:
                continue
        raise wrong(what, part.place)


@dataclass(frozen=True)
class Uses:
    """The arrays and the sums that a definition uses of a group that goes along an axis."""

    whole: tuple[Recurrence, ...]
    """Arrays that are read as they are, or further back than a step keeps them."""
    reductions: tuple[Reduction, ...]
    """Reductions that a step computes once its elements are known, over the same axes."""
    reduced: tuple[int, ...]
    """The axes of the arrays that the reductions are over."""


def uses_of(
    definition: Definition, group: Group, bounds: Bounds, known: Iterable[Recurrence], lead: int
) -> Uses:
    """The arrays and the sums that a definition uses of a group.

    Args:
        bounds: of the definition.
        known: the recurrences that are computed before.
        lead: the number of axes `...`.
    """
    own = {id(one.value) for one in group.members}
    left = [root for root in definition.roots if id(root) not in own]
    later = {*definition.recurrences} - {*known} - {*group.members}
    whole, fused, visited = set[Tensor](), list[Reduction](), set[int]()
    reduced: tuple[int, ...] = ()
    while left:
        one = left.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, Reduction):
            axes = _over(one, group, bounds, later, lead if group.batched else 0)
            if axes and reduced in ((), axes):
                fused.append(one)
                reduced = axes
                continue
        if isinstance(one, Read) and one.tensor in group.members:
            whole.add(one.tensor)
        left += operands_of(one)
    for member in group.members:
        for read in reads_of(member.value, group.members):
            (back,) = delays(read, member, bounds.names, proven=True).values() or (0,)
            if not isinstance(back, int) or back > MOST_DELAYS:
                whole.add(read.tensor)
    return Uses(tuple(x for x in group.members if x in whole), tuple(fused), reduced)


def position_of(one: Reduction, group: Group) -> tuple[Element, ...]:
    """The index at which a reduction reads the arrays of a group, which is the same for all."""
    return next(reads_of(one.body, group.members)).at


def _over(
    one: Reduction, group: Group, bounds: Bounds, later: Iterable[Recurrence], lead: int
) -> tuple[int, ...]:
    """The axes of a group's arrays that a reduction is over; none if a step of the group cannot
    compute it."""
    reads = [*reads_of(one.body, group.members)]
    positions = {read.at for read in reads}
    if len(positions) != 1 or kind_of(one.type) != "float" or one.kind[:3] == "arg":
        return ()
    (at,) = positions
    over = {*one.axes}
    axes = tuple(number for number, x in enumerate(at) if x in over)
    first, inner = group.members[0], [*elements_of(one.body)]
    fits = (
        one.type == first.type and len(set(at)) == len(at) and group.axis not in axes
        and {at[number] for number in axes} == over and one.body.free <= {*at}
        # Something is left along which a step has vectors.
        and len(axes) < len(at) - 1 + lead
        and all(isinstance(x, Index) and bounds.extent(x) == bounds.axis_extent(first, number)
                for number, x in enumerate(at))
        and not any(isinstance(x, Reduction) and _depends(x, group.members) for x in inner)
        and not _depends(one.body, later)
        and (group.batched or not any(isinstance(x, Read) and x.tensor.batched for x in inner))
        and all(x.type in (one.type, "bool") for x in inner if _depends(x, group.members))
    )  # fmt: skip
    return axes if fits else ()


def _depends(one: Element, tensors: Iterable[Tensor]) -> bool:
    return next(reads_of(one, tensors), None) is not None
