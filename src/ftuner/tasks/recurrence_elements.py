"""Elements of recurrences as expressions of programs.

What depends on the arrays that are computed, or on the step, is written out by its functions; what
else it is made of are operands. Elements that mean the same are computed once, whichever array they
are of.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from ftuner.core.dim import Dim, symbol, symbols_of
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.define import elements as written
from ftuner.define.bounds import Names, dim_of, linear
from ftuner.define.elements import BOOL, INDEX, Index, Read, elements_of, kind_of, operands_of
from ftuner.define.groups import MOST_DELAYS, Group, Uses
from ftuner.define.values import Lowering
from ftuner.graph.einsum import BROADCAST
from ftuner.graph.ir import Value
from ftuner.tasks import program as tir

FEW = 8
"""Fewer elements along an axis than lanes are worth, where another axis has more."""
LANE, BLOCK = "lane", "block"
"""The index of a lane within a block, and that of the block."""


@dataclass(frozen=True)
class Operand:
    """What elements are made of beside the arrays of a group."""

    array: tir.Array
    value: Value
    axes: tuple[int | None, ...]
    """The axis of the group's arrays along which each axis is; None for one element."""


@dataclasses.dataclass
class Given:
    """The operands of the programs of a group, and the dims that these name."""

    lowering: Lowering
    dtype: DType
    operands: dict[int, Operand] = field(default_factory=dict)
    names: dict[Dim, Dim] = field(default_factory=dict)
    """The symbols of dims in programs."""
    numbers: dict[object, int] = field(default_factory=dict)
    """Of elements that mean the same."""

    def dim(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        return self.names.setdefault(dim, symbol(f"e{len(self.names)}"))


class _Named(dict[str, Dim]):
    """The symbols of extents in programs, by their names in the definition."""

    def __init__(self, given: Given, names: Names) -> None:
        super().__init__()
        self._given, self._names = given, names

    def __missing__(self, name: str) -> Dim:
        return self._given.dim(self._names[name])


class Elements:
    """Writes elements at the positions of a program."""

    def __init__(self, given: Given, group: Group, uses: Uses, lanes: int) -> None:
        self._given, self._group, self._uses = given, group, uses
        self._lowering = given.lowering
        self._bounds = given.lowering.bounds
        self._batch = given.lowering.batch if group.batched else ()
        assert group.axis is not None
        self._time = len(self._batch) + group.axis
        self._reduced = {len(self._batch) + axis for axis in uses.reduced}
        self._shape = (*self._batch, *map(self._bounds.extent, group.members[0].index))
        self._extents, axes = [given.dim(d) for d in self._shape], range(len(self._shape))
        self._others = [a for a in axes if a != self._time and a not in self._reduced]
        self._along, self._lanes = self._innermost(), lanes
        self._positions: list[Dim] = [symbol(f"i{a}") for a in axes]
        """Along each axis of the arrays."""
        if self._along is not None:
            self._positions[self._along] = symbol(BLOCK) * lanes + symbol(LANE)
        self._axes: dict[Index, int] = {}
        for one in group.members:
            self.place(one.index)
        self._numbers: dict[written.Element, int] = {}
        self._known: dict[int, tir.Expr] = {}
        self._times = Counter[int]()
        self._depending = set[int]()
        self._locals = 0
        # The statements before all steps, of each step before a loop over axes that it reduces, and
        # of each iteration of that.
        self._begin, self._before, self._panels = (list[tir.Statement]() for _ in range(3))
        self._made, self._step, self._inner = (list[tir.Statement]() for _ in range(3))

    @property
    def has_lanes(self) -> bool:
        return self._along is not None

    def _innermost(self) -> int | None:
        """The axis of lanes: the last one that is long enough; None if there is none. What a step
        reduces is always in lanes."""
        for least in (FEW, 2, 0 if self._reduced else 2):
            extents = ((a, self._shape[a]) for a in reversed(self._others))
            for axis, extent in extents:
                if not isinstance(extent, int) or extent >= least:
                    return axis
        return None

    def place(self, index: Sequence[written.Element]) -> None:
        """Have indices stand for the axes of the arrays."""
        for number, one in enumerate(index, len(self._batch)):
            assert isinstance(one, Index)
            self._axes[one] = number

    def make_tile(self, into: list[tir.Statement], name: str, value: float, *leading: int) -> None:
        """Begin a tile with an element for each lane."""
        last = (self._lanes,) if self.has_lanes else ()
        into.append(tir.MakeTile(name, (*leading, *last) or (1,), value))

    def element(self, name: str, *leading: int) -> tir.Element:
        """The element of a tile for a lane."""
        last = (symbol(LANE),) if self.has_lanes else ()
        return tir.Element(name, (*leading, *last) or (0,))

    def make_panel(self, name: str, *leading: int) -> None:
        """Begin a panel with an element for each lane and each position of the reduced axes."""
        shape = (*leading, *(self._extents[a] for a in sorted(self._reduced)), self._lanes)
        self._begin.append(tir.MakePanel(tir.Array(name, self._given.dtype, shape, False)))

    def row(self, *leading: int) -> tuple[Dim, ...]:
        """The index of an element of a panel."""
        return (*leading, *(self._positions[a] for a in sorted(self._reduced)), symbol(LANE))

    def back(self, read: Read) -> Dim:
        """How many steps before an element of the arrays was computed."""
        form = linear(read.at[self._time - len(self._batch)], self._bounds.names)
        assert form is not None
        return -form.constant

    def state(self, tensor: written.Tensor) -> str:
        """The tile or the panel of earlier elements of an array."""
        return f"s{self._member(tensor)}"

    def now(self, tensor: written.Tensor) -> tir.Local:
        """The element of an array that is being computed."""
        return tir.Local(f"h{self._member(tensor)}")

    def earlier(self, tensor: written.Tensor, back: int) -> tir.Load | tir.Element:
        """The element of an array some steps before."""
        if self._reduced:
            return tir.Load(self.state(tensor), self.row(back - 1))
        return self.element(self.state(tensor), back - 1)

    def _member(self, tensor: written.Tensor) -> int:
        return next(n for n, one in enumerate(self._group.members) if one is tensor)

    def count(self, root: written.Element) -> None:
        """Number the elements within one by what they mean, count how often each is used, and find
        those that depend on the group."""
        self._numbers.clear()
        members = {*self._group.members}
        for one in elements_of(root):
            inner = [self._numbers[x] for x in operands_of(one)]
            number = self._given.numbers.setdefault((self._what(one), *inner),
                                                    len(self._given.numbers))  # fmt: skip
            self._numbers[one] = number
            if number not in self._times:
                self._times.update([number, *inner])
                own = isinstance(one, Read) and one.tensor in members
                if own or not self._depending.isdisjoint(inner):
                    self._depending.add(number)

    def _what(self, one: written.Element) -> object:
        match one:
            case written.Number(value=value):
                return one.type, repr(value)
            case written.Extent(name=name):
                return name
            case Index():
                return self._axes.get(one, one)
            case Read(tensor=tensor):
                return tensor
            case written.Apply(function=function):
                return one.type, function
        return one

    def value(self, one: written.Element) -> tir.Expr:
        if isinstance(one, written.Number):
            return tir.Number(float(one.value))
        number = self._numbers[one]
        found = self._known.get(number)
        if found is None:
            found = self._dependent(one) if number in self._depending else self._independent(one)
            # One use is counted when the element is numbered.
            if isinstance(found, tir.Apply | tir.Choose) and self._times[number] > 2:
                self._inner.append(tir.Assign(name := self._name("v"), found, declares=True))
                found = tir.Local(name)
            self._known[number] = found
        return found

    def _name(self, letter: str) -> str:
        self._locals += 1
        return f"{letter}{self._locals}"

    def _dependent(self, one: written.Element) -> tir.Expr:
        if not isinstance(one, Read):
            assert isinstance(one, written.Apply)
            return self._applied(one)
        tensor, back = one.tensor, self.back(one)
        if isinstance(back, int):
            if back == 0:
                return self.now(tensor)
            if back <= MOST_DELAYS:
                return self.earlier(tensor, back)
        at = [*self._positions]
        at[self._time] = before = at[self._time] - self._given.dim(back)
        number = next(n for n, array in enumerate(self._uses.whole) if array is tensor)
        return tir.Choose(tir.Test(before), tir.Load(f"o{number}", tuple(at)), tir.Number(0.0))

    def _applied(self, one: written.Apply) -> tir.Expr:
        arguments = one.arguments
        if one.function == "where":
            condition, x, y = arguments
            return tir.Choose(self.condition(condition), self.value(x), self.value(y))
        if one.function == "cast":
            (x,) = arguments
            if x.type == BOOL:
                return tir.Choose(self.condition(x), tir.Number(1.0), tir.Number(0.0))
            return self.value(x)
        values = tuple(map(self.value, arguments))
        if one.function == "quotient":
            return tir.Apply("floor", (tir.Apply("divide", values),))
        return tir.Apply(one.function, values)

    def _independent(self, one: written.Element) -> tir.Expr:
        """An element that is not made of the arrays of the group."""
        plain = one
        if (
            isinstance(one, written.Apply)
            and one.function == "cast"
            and kind_of(one.type) == "float"
        ):
            (plain,) = one.arguments
        if isinstance(plain, written.Number):
            return self.value(plain)
        if plain.type == INDEX and (dim := self._dim(plain)) is not None:
            return tir.Number(float(dim)) if isinstance(dim, int) else tir.IndexValue(dim)
        axes = {self._axes[index] for index in one.free}
        if self._time not in axes:
            return self._before_steps(one, axes)
        value: tir.Expr
        if isinstance(one, written.Apply) and self._is_pointwise(one):
            value = self._applied(one)
        else:
            value = self._loaded(one)
        if not self._reduced or not axes.isdisjoint(self._reduced):
            return value
        # The same for all positions of the axes that are reduced.
        name = self._name("p")
        self.make_tile(self._made, name, 0.0)
        self._step.append(tir.SetElement(self.element(name), value))
        return self.element(name)

    def _is_pointwise(self, one: written.Apply) -> bool:
        """Whether a step computes the function, and not an operand."""
        if one.function == "where" and self._lowering.padded(one) is not None:
            return False
        given = one.arguments[1:] if one.function == "where" else one.arguments
        return one.type == self._group.members[0].type and self._is_own(given)

    def _before_steps(self, one: written.Element, axes: set[int]) -> tir.Expr:
        load = self._loaded(one)
        across = LANE in symbols_of(load.index)
        rows = not axes.isdisjoint(self._reduced)
        if rows and not across:
            return load
        name = self._name("p")
        if rows:
            self.make_panel(name)
            self._panels.append(tir.Store(name, self.row(), load))
            return tir.Load(name, self.row())
        if across:
            self.make_tile(self._begin, name, 0.0)
            self._before.append(tir.SetElement(self.element(name), load))
            return self.element(name)
        self._begin.append(tir.Assign(name, load, declares=True))
        return tir.Local(name)

    def _loaded(self, one: written.Element) -> tir.Load:
        number = self._numbers[one]
        found = self._given.operands.get(number)
        if found is None:
            found = self._given.operands[number] = self._operand(one)
        index = tuple(0 if axis is None else self._positions[axis] for axis in found.axes)
        return tir.Load(found.array.name, index)

    def _operand(self, one: written.Element) -> Operand:
        given = self._given
        term = self._lowering.term(one, given.dtype)
        value, axes = term.value.cast(given.dtype), list[int | None]()
        for label, extent in zip(term.labels, value.shape, strict=True):
            if label in BROADCAST:
                axes.append(None if extent == 1 else len(self._batch) - 1 - int(label))
            else:
                axes.append(self._axes[self._lowering.indices[label]])
        shape = tuple(map(given.dim, value.shape))
        array = tir.Array(f"a{len(given.operands)}", given.dtype, shape, False)
        return Operand(array, value, tuple(axes))

    def condition(self, one: written.Element) -> tir.Expr:
        if isinstance(one, written.Number):
            return tir.Test(int(bool(one.value)) - 1)
        if isinstance(one, written.Apply):
            arguments = one.arguments
            if one.function in tir.COMPARED and arguments[0].type == INDEX:
                first, second = map(self._dim, arguments)
                if first is not None and second is not None:
                    return tir.COMPARED[one.function](first, second)
            elif one.function in tir.COMPARED and self._is_own(arguments):
                return tir.Apply(one.function, tuple(map(self.value, arguments)))
            if one.function.startswith("logical_"):
                return tir.Apply(one.function, tuple(map(self.condition, arguments)))
        if self._numbers[one] not in self._depending:
            return tir.Apply("less", (tir.Number(0.5), self._independent(one)))
        assert isinstance(one, written.Apply)
        if one.function == "where":
            condition, *chosen = one.arguments
            found = tir.Choose(self.condition(condition), *map(self._as_number, chosen))
            return tir.Apply("less", (tir.Number(0.5), found))
        if one.function == "equal":
            return tir.Apply("equal", tuple(map(self._as_number, one.arguments)))
        assert one.function == "cast"
        (x,) = one.arguments
        return tir.Apply("logical_not", (tir.Apply("equal", (self.value(x), tir.Number(0.0))),))

    def _as_number(self, one: written.Element) -> tir.Expr:
        """1 where a condition holds, else 0."""
        return tir.Choose(self.condition(one), tir.Number(1.0), tir.Number(0.0))

    def _is_own(self, given: Sequence[written.Element]) -> bool:
        """Whether elements have the type in which a step computes."""
        own = self._group.members[0].type
        return all(x.type in (own, INDEX, written.NUMBER) for x in given)

    def _dim(self, one: written.Element) -> Dim | None:
        """Arithmetic on indices as a dim; None if it is none that programs have."""
        positions = {index: self._positions[axis] for index, axis in self._axes.items()}
        return dim_of(one, _Named(self._given, self._bounds.names), positions)
