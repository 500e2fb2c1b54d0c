"""Recurrences of definitions as programs: all axes but one in parallel, one step after the other.

A task is a block of lanes along the innermost axis that is independent, at one position of all
others. It goes through the steps in order: each computes the elements of all arrays of a group,
from those before, which are in registers, or in memory of the worker where an axis is reduced at
the end of each step. What does not depend on the step is computed or loaded before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftuner.core.dim import (
    Dim,
    ceil_quotient,
    maximum,
    minimum,
    product,
    quotient,
    remainder,
    symbol,
    symbols_of,
)
from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.evaluation import Renaming
from ftuner.core.functions import neutral
from ftuner.define import elements as written
from ftuner.define.elements import BOOL, INDEX, Index, Read, elements_of, kind_of, operands_of
from ftuner.define.groups import MOST_DELAYS, Group, Uses, delays, position_of, reads_of
from ftuner.define.recurrences import Recurrence
from ftuner.define.values import Lowering
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.einsum import BROADCAST, Term
from ftuner.graph.ir import TensorType, Value, building
from ftuner.graph.operator import Require
from ftuner.tasks.cost import Tiles
from ftuner.tasks.interpret import interpret
from ftuner.tasks.program import (
    LANES,
    RANGE,
    TASKS,
    Apply,
    Array,
    Assign,
    Choose,
    Element,
    Expr,
    Factor,
    If,
    IndexValue,
    Load,
    Local,
    Loop,
    MakePanel,
    MakeTile,
    Number,
    Program,
    SetElement,
    Statement,
    Store,
    Test,
)
from ftuner.tasks.schedule import shares
from ftuner.tasks.step import OPERATOR

LANES_OF_A_STEP = (64, 16)
"""Lanes of a task. Derived: four vectors of AVX-512 hide the latency of a multiply-add; a vector of
it is the least."""
LANES_OF_REDUCTIONS = (16,)
"""Where a step has a loop, whose iterations do not depend on each other."""
FEW = 8
"""Fewer elements along an axis than lanes are worth, where another axis has more."""
_LANE, _BLOCK = "lane", "block"
_COMBINED = {"sum": "add", "mean": "add", "product": "multiply"}
_TESTS = {
    "less": lambda x, y: Test(y - x - 1),
    "less_equal": lambda x, y: Test(y - x),
    "equal": lambda x, y: Test(x - y, exact=True),
}


class Recurring:
    """The programs of a group, as those of a schedule."""

    def __init__(self, name: str, programs: Mapping[Tiles, Program], where: str) -> None:
        self.__name__, self.programs, self._where = name, programs, where

    def workers_of(self, extents: Mapping[str, Dim]) -> Dim:
        """The value of `workers` in a graph."""
        (first, *_) = self.programs.values()
        return shares(Renaming(extents)(product(first.outputs[0].shape)))

    def results_of(
        self, types: Sequence[TensorType], extents: Mapping[str, Dim], require: Require
    ) -> tuple[TensorType, ...]:
        """The types of the results for operands in a graph."""
        (first, *_) = self.programs.values()
        renamed = Renaming(extents)
        for declared, given in zip(first.inputs, types, strict=True):
            for dim, extent in zip(declared.shape, given.shape, strict=True):
                require(renamed(dim), extent, f"{declared.name} of {self.__name__} is {given}")
        return tuple(TensorType(first.dtype, tuple(map(renamed, a.shape))) for a in first.outputs)

    def reference(self, arrays: Sequence[Any], extents: Sequence[int]) -> Any:
        """The results of operands, by the interpreter."""
        (first, *_) = self.programs.values()
        found = interpret(first, arrays, dict(zip(first.extents, extents, strict=True)), 1)
        return found[0] if len(found) == 1 else tuple(found)

    def defined(self, operands: Sequence[Value]) -> list[Value]:
        """Raises UnsupportedOperatorError: there is no other way to compute them."""
        raise UnsupportedOperatorError(f"{self._where}: recurrences run on CPUs alone so far")


def scan(lowering: Lowering, group: Group, uses: Uses) -> list[Value]:
    """What is used of the arrays of a group, as results of one node."""
    own = lowering.dtype(group.members[0].type)
    given = _Given(lowering, FLOAT64 if own == FLOAT64 else FLOAT32)
    programs: dict[Tiles, Program] = {}
    for lanes in LANES_OF_REDUCTIONS if uses.reductions else LANES_OF_A_STEP:
        writer = _Writer(given, group, uses, lanes)
        programs[("lanes", lanes),] = writer.program()
        if not writer.has_lanes:
            break
    arrays, names = (*given.arrays(),), tuple(map(str, given.names.values()))
    whole = {
        tiles: Program(p.name, (*arrays, *p.arrays), names, p.body) for tiles, p in programs.items()
    }
    made = Recurring(lowering.name, whole, group.members[0].place)
    operands = [term.value for _, term in given.terms.values()]
    results = building().add_many(OPERATOR, *operands, schedule=made, extents=(*given.names,))
    return [value.cast(own) for value in results]


@dataclass
class _Given:
    """The operands of programs, which are what elements of a group are made of beside each other;
    and the dims that they name."""

    lowering: Lowering
    dtype: DType
    terms: dict[written.Element, tuple[str, Term]] = field(default_factory=dict)
    names: dict[Dim, Dim] = field(default_factory=dict)
    """The symbols of dims in programs."""

    def dim(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        return self.names.setdefault(dim, symbol(f"e{len(self.names)}"))

    def operand(self, one: written.Element) -> tuple[str, Term]:
        found = self.terms.get(one)
        if found is None:
            term = self.lowering.term(one, self.dtype)
            term = Term(term.labels, term.value.cast(self.dtype))
            found = self.terms[one] = (f"a{len(self.terms)}", term)
        return found

    def arrays(self) -> Iterable[Array]:
        for name, term in self.terms.values():
            yield Array(name, self.dtype, tuple(map(self.dim, term.value.shape)), False)


class _Writer:
    """Writes the program of a group for some lanes of a task."""

    def __init__(self, given: _Given, group: Group, uses: Uses, lanes: int) -> None:
        self._given, self._group, self._uses = given, group, uses
        lowering, first = given.lowering, group.members[0]
        self._lowering, self._bounds = lowering, lowering.bounds
        self._batch = lowering.batch if group.batched else ()
        self._shape = (*self._batch, *(self._bounds.extent(i) for i in first.index))
        self._extents = [given.dim(d) for d in self._shape]
        before = len(self._batch)
        assert group.axis is not None
        self._time = before + group.axis
        self._reduced = [before + axis for axis in uses.reduced]
        self._others = [
            a for a in range(len(self._shape)) if a != self._time and a not in self._reduced
        ]
        self._along = self._innermost()
        self._positions: list[Dim] = [symbol(f"i{a}") for a in range(len(self._shape))]
        self._lanes = lanes
        if self._along is not None:
            self._positions[self._along] = symbol(_BLOCK) * lanes + symbol(_LANE)
        self._axes = {
            i: before + n for one in group.members for n, i in enumerate(one.index)
        }  # fmt: skip
        self._known: dict[written.Element, Expr] = {}
        self._times = Counter[written.Element]()
        self._depending = set[written.Element]()
        self._of: Recurrence | None = None
        """The array of which an element is written; None after all are."""
        self._locals = 0
        # The statements of each place, and the values that lanes keep from one to the next.
        self._begin = list[Statement]()
        self._before = list[Statement]()
        self._panels = list[Statement]()
        self._rows = list[Statement]()
        self._step = list[Statement]()
        self._made = list[Statement]()
        self._inner = list[Statement]()

    @property
    def has_lanes(self) -> bool:
        return self._along is not None

    def _innermost(self) -> int | None:
        """The axis of lanes: the last one that is long enough; None if there is none."""

        def at_least(count: int) -> list[int]:
            long = [
                a for a in self._others if not isinstance(d := self._shape[a], int) or d >= count
            ]
            return long[-1:]

        return next(iter([*at_least(FEW), *at_least(2)]), None)

    # The program.

    def program(self) -> Program:
        """The program, without its inputs."""
        members, uses = self._group.members, self._uses
        self._make_states()
        self._count([one.value for one in members], members)
        for one in members:
            self._of = one
            value = self._value(one.value)
            self._inner.append(Assign(_name(one, members), value, declares=True))
        outputs = list[Array]()
        for number, one in enumerate(uses.whole):
            outputs.append(Array(f"o{number}", self._given.dtype, (*self._extents,), True))
            index = tuple(self._positions)
            self._inner.append(Store(f"o{number}", index, Local(_name(one, members))))
        self._of, ends = None, list[Statement]()
        kept = [a for a in range(len(self._shape)) if a not in self._reduced]
        for number, reduction in enumerate(uses.reductions, len(uses.whole)):
            shape = tuple(self._extents[a] for a in kept)
            outputs.append(Array(f"o{number}", self._given.dtype, shape, True))
            total = self._total(reduction, f"t{number}")
            index = tuple(self._positions[a] for a in kept)
            ends.append(Store(f"o{number}", index, total))
        for one in members:
            self._shift(one)
        step: list[Statement] = [*self._made, *self._in_lanes(self._step)]
        if self._reduced:
            step += [self._over_rows(self._in_lanes(self._inner)), *self._in_lanes(ends)]
        else:
            step = [*self._made, *self._in_lanes([*self._step, *self._inner])]
        body = [*self._begin, *self._in_lanes(self._before)]
        if self._panels:
            body.append(self._over_rows(self._in_lanes(self._panels)))
        body.append(self._loop([self._time], step))
        return Program(self._lowering.name, tuple(outputs), (), (self._tasks(body),))

    def _tasks(self, body: Sequence[Statement]) -> Loop:
        names = [f"i{a}" for a in self._others if a != self._along]
        extents = [self._extents[a] for a in self._others if a != self._along]
        if self._along is not None:
            names.append(_BLOCK)
            extents.append(ceil_quotient(self._extents[self._along], self._lanes))
        shape = tuple(extents) or (1,)
        factor = Factor("spatial", shape, ranks=tuple(range(len(shape))))
        begins = (0,) * len(shape)
        return Loop(TASKS, tuple(names) or ("task",), begins, shape, tuple(body), (factor,))

    def _loop(self, axes: Sequence[int], body: Sequence[Statement]) -> Loop:
        names, ends = tuple(f"i{a}" for a in axes), tuple(self._extents[a] for a in axes)
        return Loop(RANGE, names, (0,) * len(axes), ends, tuple(body))

    def _over_rows(self, body: Sequence[Statement]) -> Loop:
        return self._loop(self._reduced, body)

    def _in_lanes(self, body: Sequence[Statement]) -> list[Statement]:
        if self._along is None or not body:
            return [*body]
        inside = Test(self._extents[self._along] - 1 - self._positions[self._along])
        return [Loop(LANES, (_LANE,), (0,), (self._lanes,), (If(inside, tuple(body)),))]

    # States.

    def _make_states(self) -> None:
        for one in self._group.members:
            name, count = self._state(one), self._delays(one)
            if count and self._reduced:
                shape = (count, *(self._extents[a] for a in self._reduced), self._lanes)
                self._begin.append(MakePanel(Array(name, self._given.dtype, shape, False)))
                self._panels += [Store(name, self._row(n), Number(0.0)) for n in range(count)]
            elif count:
                self._make_tile(self._begin, name, 0.0, count)

    def _delays(self, one: Recurrence) -> int:
        """How many earlier elements of an array a step keeps."""
        found = [0]
        for member in self._group.members:
            for read in reads_of(member.value, [one]):
                back = self._back(read, member)
                found.append(back if isinstance(back, int) and back <= MOST_DELAYS else 0)
        return max(found)

    def _back(self, read: Read, of: Recurrence) -> Dim:
        return next(iter(delays(read, of, self._bounds.names).values()), 0)

    def _state(self, one: Recurrence) -> str:
        return f"s{self._group.members.index(one)}"

    def _row(self, *before: Dim) -> tuple[Dim, ...]:
        return (*before, *(self._positions[a] for a in self._reduced), symbol(_LANE))

    def _earlier(self, one: Recurrence, back: int) -> Expr:
        """The element of an array some steps before."""
        if self._reduced:
            return Load(self._state(one), self._row(back - 1))
        return self._element(self._state(one), back - 1)

    def _shift(self, one: Recurrence) -> None:
        for back in range(self._delays(one), 0, -1):
            new = (
                self._earlier(one, back - 1) if back > 1 else Local(_name(one, self._group.members))
            )
            place = self._earlier(one, back)
            if isinstance(place, Load):
                self._inner.append(Store(place.array, place.index, new))
            else:
                assert isinstance(place, Element)
                self._inner.append(SetElement(place, new))

    # Tiles across lanes, or of scalars.

    def _make_tile(self, into: list[Statement], name: str, value: float, *leading: int) -> None:
        last = (self._lanes,) if self.has_lanes else ()
        into.append(MakeTile(name, (*leading, *last) or (1,), value))

    def _element(self, name: str, *leading: int) -> Element:
        last = (symbol(_LANE),) if self.has_lanes else ()
        return Element(name, (*leading, *last) or (0,))

    def _total(self, reduction: written.Reduction, name: str) -> Expr:
        """Add a reduction to a step; gives its result."""
        before = len(self._batch)
        at = position_of(reduction, self._group)
        for number, index in enumerate(at):
            assert isinstance(index, Index)
            self._axes[index] = before + number
        self._known.clear()
        self._count([reduction.body], self._group.members)
        value = self._value(reduction.body)
        combined = _COMBINED.get(reduction.kind, reduction.kind)
        start = neutral("sum" if reduction.kind == "mean" else reduction.kind, self._given.dtype)
        self._make_tile(self._made, name, float(start))
        total = self._element(name)
        self._inner.append(SetElement(total, Apply(combined, (total, value))))
        if reduction.kind == "mean":
            count = product(self._extents[a] for a in self._reduced)
            return Apply("divide", (total, IndexValue(count)))
        return total

    # Elements.

    def _count(self, roots: Sequence[written.Element], members: Sequence[Recurrence]) -> None:
        """Count how often each element is used, and find those that depend on the group."""
        visited = set[written.Element]()
        for root in roots:
            for one in elements_of(root):
                if one in visited:
                    continue
                visited.add(one)
                self._times.update(operands_of(one))
                own = isinstance(one, Read) and one.tensor in members
                if own or not self._depending.isdisjoint(operands_of(one)):
                    self._depending.add(one)

    def _value(self, one: written.Element) -> Expr:
        if isinstance(one, written.Number):
            return Number(float(one.value))
        found = self._known.get(one)
        if found is None:
            if one in self._depending:
                found = self._dependent(one)
                if isinstance(one, written.Apply) and self._times[one] > 1:
                    found = self._kept(found)
            else:
                found = self._independent(one)
            self._known[one] = found
        return found

    def _kept(self, value: Expr) -> Local:
        name = f"v{self._locals}"
        self._locals += 1
        self._inner.append(Assign(name, value, declares=True))
        return Local(name)

    def _dependent(self, one: written.Element) -> Expr:
        match one:
            case Read():
                tensor = one.tensor
                assert isinstance(tensor, Recurrence)
                back = 0 if self._of is None else self._back(one, self._of)
                if isinstance(back, int) and back == 0:
                    return Local(_name(tensor, self._group.members))
                if isinstance(back, int) and back <= MOST_DELAYS:
                    return self._earlier(tensor, back)
                at = [*self._positions]
                at[self._time] = before = at[self._time] - self._given.dim(back)
                load = Load(f"o{self._uses.whole.index(tensor)}", tuple(at))
                return Choose(Test(before), load, Number(0.0))
            case written.Apply():
                return self._applied(one)
        raise AssertionError(one)

    def _applied(self, one: written.Apply) -> Expr:
        arguments = one.arguments
        if one.function == "where":
            condition, x, y = arguments
            return Choose(self._condition(condition), self._value(x), self._value(y))
        if one.function == "cast":
            (x,) = arguments
            if x.type == BOOL:
                return Choose(self._condition(x), Number(1.0), Number(0.0))
            return self._value(x)
        values = tuple(map(self._value, arguments))
        if one.function == "quotient":
            return Apply("floor", (Apply("divide", values),))
        return Apply(one.function, values)

    def _independent(self, one: written.Element) -> Expr:
        """An element that is not made of the arrays of the group."""
        if one.type == INDEX and (dim := self._dim(one)) is not None:
            return Number(float(dim)) if isinstance(dim, int) else IndexValue(dim)
        axes = {self._axes[index] for index in one.free}
        if self._time not in axes:
            return self._before_steps(one, axes)
        value: Expr
        if isinstance(one, written.Apply) and self._is_pointwise(one):
            value = self._applied(one)
        else:
            value = self._loaded(one)
        if not self._reduced or not axes.isdisjoint(self._reduced):
            return value
        # The same for all positions of the axes that are reduced.
        name = f"p{self._locals}"
        self._locals += 1
        self._make_tile(self._made, name, 0.0)
        self._step.append(SetElement(self._element(name), value))
        return self._element(name)

    def _is_pointwise(self, one: written.Apply) -> bool:
        """Whether a step computes the function, and not an operand."""
        if one.function == "where" and self._lowering.padded(one) is not None:
            return False
        given = one.arguments[1:] if one.function == "where" else one.arguments
        own = self._group.members[0].type
        return one.type == own and all(x.type in (own, INDEX, written.NUMBER) for x in given)

    def _before_steps(self, one: written.Element, axes: set[int]) -> Expr:
        load = self._loaded(one)
        across = _LANE in symbols_of(load.index)
        name = f"p{self._locals}"
        self._locals += 1
        if across and not axes.isdisjoint(self._reduced):
            shape = (*(self._extents[a] for a in self._reduced), self._lanes)
            self._begin.append(MakePanel(Array(name, self._given.dtype, shape, False)))
            self._panels.append(Store(name, self._row(), load))
            return Load(name, self._row())
        if across:
            self._make_tile(self._begin, name, 0.0)
            self._before.append(SetElement(self._element(name), load))
            return self._element(name)
        if axes.isdisjoint(self._reduced):
            self._begin.append(Assign(name, load, declares=True))
            return Local(name)
        return load

    def _loaded(self, one: written.Element) -> Load:
        name, term = self._given.operand(one)
        index = list[Dim]()
        for label, extent in zip(term.labels, term.value.shape, strict=True):
            if label in BROADCAST:
                axis = len(self._batch) - 1 - int(label)
                index.append(0 if extent == 1 else self._positions[axis])
            else:
                index.append(self._positions[self._axes[self._lowering.index_of(label)]])
        return Load(name, tuple(index))

    def _condition(self, one: written.Element) -> Expr:
        known = self._known.get(one)
        if known is None:
            known = self._known[one] = self._tested(one)
        return known

    def _tested(self, one: written.Element) -> Expr:
        if isinstance(one, written.Number):
            return Test(int(bool(one.value)) - 1)
        if isinstance(one, written.Apply):
            arguments = one.arguments
            if one.function in _TESTS and arguments[0].type == INDEX:
                first, second = map(self._dim, arguments)
                if first is not None and second is not None:
                    return _TESTS[one.function](first, second)
            elif one.function in _TESTS and kind_of(arguments[0].type) == "float":
                return Apply(one.function, tuple(map(self._value, arguments)))
            if one.function.startswith("logical_"):
                return Apply(one.function, tuple(map(self._condition, arguments)))
            if one.function == "where" and one in self._depending:
                condition, x, y = map(self._condition, arguments)
                chosen = Apply("logical_and", (condition, x))
                other = Apply("logical_and", (Apply("logical_not", (condition,)), y))
                return Apply("logical_or", (chosen, other))
        return Apply("less", (Number(0.5), self._independent(one)))

    def _dim(self, one: written.Element) -> Dim | None:
        """Arithmetic on indices as a dim; None if it is none that programs have."""
        match one:
            case written.Number(value=int() as value):
                return int(value)
            case written.Extent(name=name):
                return self._given.dim(self._bounds.names[name])
            case Index():
                return self._positions[self._axes[one]]
            case written.Apply(function=function, arguments=arguments) if one.type == INDEX:
                given = [self._dim(x) for x in arguments]
                known = [x for x in given if x is not None]
                return _computed(function, known) if len(known) == len(given) else None
        return None


def _computed(function: str, given: Sequence[Dim]) -> Dim | None:
    match function, given:
        case "add", [x, y]:
            return x + y
        case "subtract", [x, y]:
            return x - y
        case "multiply", [x, y]:
            return x * y
        case "negative", [x]:
            return -x
        case (("maximum" | "minimum"), [x, y]):
            return maximum(x, y) if function == "maximum" else minimum(x, y)
        case (("quotient" | "remainder"), [x, int() as y]) if y > 0:
            return quotient(x, y) if function == "quotient" else remainder(x, y)
    return None


def _name(one: Recurrence, members: Sequence[Recurrence]) -> str:
    """The local that has the element of an array that is being computed."""
    return f"h{members.index(one)}"
