"""The intermediate form of a schedule, which the interpreter, the proofs, the estimate and the code
generators read.

Index arithmetic is a `Dim` over extents and loop variables. Elements are expressions of one
floating dtype, and of conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields

from ftuner.core.dim import Dim, ceil_quotient, product, row_major_strides, symbols_of
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Atom, Symbol, Symbolic
from ftuner.errors import ScheduleError

WORKERS = "workers"
"""The symbol of the number of workers that run a schedule."""
LINE_BYTES = 64
"""Panels begin at multiples of it: a cache line, and the longest vector of any ISA."""


@dataclass(frozen=True)
class Array:
    """A parameter of a schedule."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    is_output: bool
    line: int = field(default=0, compare=False, repr=False, kw_only=True)
    """In the user's file. Two nodes that differ in it alone are equal."""

    def flat(self, index: Sequence[Dim]) -> Dim:
        """The number of an element in row-major order."""
        total: Dim = 0
        for position, stride in zip(index, row_major_strides(self.shape), strict=True):
            total = total + position * stride
        return total


class Expr:
    """Base of the expressions."""


@dataclass(frozen=True)
class Number(Expr):
    value: float


@dataclass(frozen=True)
class Local(Expr):
    """The value of a local scalar."""

    name: str


@dataclass(frozen=True)
class Element(Expr):
    """An element of a register tile."""

    tile: str
    index: tuple[Dim, ...]


@dataclass(frozen=True)
class Load(Expr):
    """An element of an array."""

    array: str
    index: tuple[Dim, ...]
    line: int = field(default=0, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class IndexValue(Expr):
    """An index as a number."""

    dim: Dim


@dataclass(frozen=True)
class Test(Expr):
    """A condition on an index: it is zero or more; or it is zero (`exact`)."""

    dim: Dim
    exact: bool = False


COMPARED: Mapping[str, Callable[[Dim, Dim], Test]] = {
    "less": lambda x, y: Test(y - x - 1),
    "less_equal": lambda x, y: Test(y - x),
    "equal": lambda x, y: Test(x - y, exact=True),
}
"""Comparisons of indices."""


@dataclass(frozen=True)
class Apply(Expr):
    """A function of `core.functions`, or `where`, of which all arguments are evaluated."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True)
class Choose(Expr):
    """`x if condition else y`: memory is read by the chosen one alone."""

    condition: Expr
    x: Expr
    y: Expr


@dataclass(frozen=True)
class Statement:
    """Base of the statements."""

    line: int = field(default=0, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Assign(Statement):
    """`declares`: whether the local begins here; it lives to the end of the block."""

    name: str
    value: Expr
    declares: bool


@dataclass(frozen=True)
class MakeTile(Statement):
    """A register tile, each element of it `value`."""

    name: str
    shape: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class MakePanel(Statement):
    """Memory of the worker for an array, of which the statement after it stores all elements. Its
    extents are those of programs."""

    array: Array


@dataclass(frozen=True)
class SetElement(Statement):
    target: Element
    value: Expr


@dataclass(frozen=True)
class Reduce(Statement):
    """Within a `lanes` loop: combine `value` of all lanes with a local or an element from
    outside of the loop, in any order."""

    target: Local | Element
    kind: str
    """`sum`, `maximum` or `minimum`."""
    value: Expr


@dataclass(frozen=True)
class Store(Statement):
    array: str
    index: tuple[Dim, ...]
    value: Expr


@dataclass(frozen=True)
class If(Statement):
    condition: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Factor:
    """A mapping of tasks to workers (`interpret.tasks_of`): `repeat` gives all tasks to one worker,
    `spatial` one to each, and `partition` (`split`, `grid`) a block of near-even extents."""

    kind: str
    extents: tuple[Dim, ...]
    parts: tuple[Dim, ...] = ()
    """Of a partition."""
    ranks: tuple[int, ...] = ()
    """Of the others."""

    @property
    def workers(self) -> Dim:
        by_kind = {"repeat": (), "spatial": self.extents, "partition": self.parts}
        return product(by_kind[self.kind])


TASKS, RANGE, REPEAT, LANES = "tasks", "range", "repeat", "lanes"


@dataclass(frozen=True)
class Loop(Statement):
    """A loop over `begins[i] <= names[i] < ends[i]`, the first variable outermost."""

    kind: str
    """`tasks`, by the mapping `factors`; `range`; `repeat`, written out where all extents are
    numbers; `lanes`, whose iterations have no order."""
    names: tuple[str, ...]
    begins: tuple[Dim, ...]
    ends: tuple[Dim, ...]
    body: tuple[Statement, ...]
    factors: tuple[Factor, ...] = ()

    @property
    def constant(self) -> bool:
        return all(isinstance(d, int) for d in (*self.begins, *self.ends))

    @property
    def workers(self) -> Dim:
        """Virtual workers of a task loop: real ones share them out evenly."""
        return product(f.workers for f in self.factors)


@dataclass(frozen=True)
class Program:
    """A schedule with numbers for its tile parameters."""

    name: str
    arrays: tuple[Array, ...]
    extents: tuple[str, ...]
    """The symbols of shapes, in the order of their first use."""
    body: tuple[Statement, ...]
    file: str = field(default="", compare=False, repr=False)

    @property
    def dtype(self) -> DType:
        return self.arrays[0].dtype

    @property
    def inputs(self) -> tuple[Array, ...]:
        return tuple(a for a in self.arrays if not a.is_output)

    @property
    def outputs(self) -> tuple[Array, ...]:
        return tuple(a for a in self.arrays if a.is_output)

    @property
    def tasks(self) -> Loop:
        """The task loop."""
        (loop,) = self.body
        assert isinstance(loop, Loop)
        return loop

    @property
    def panels(self) -> dict[str, Array]:
        """The panels of a task, by name."""
        made = (s for s in statements(self.body) if isinstance(s, MakePanel))
        return {s.array.name: s.array for s in made}

    def panel_places(self) -> tuple[dict[str, Dim], Dim]:
        """Where each panel begins in the memory of a worker, and the bytes of all."""
        places: dict[str, Dim] = {}
        total: Dim = 0
        for name, array in self.panels.items():
            places[name] = total
            size = product(array.shape) * array.dtype.itemsize
            total = total + ceil_quotient(size, LINE_BYTES) * LINE_BYTES
        return places, total

    def error(self, kind: type[ScheduleError], line: int, message: str) -> ScheduleError:
        return kind(f"{self.file}:{line}: schedule {self.name!r}: {message}")

    def array(self, name: str) -> Array:
        """The array or the panel of a name."""
        return next((a for a in self.arrays if a.name == name), None) or self.panels[name]


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, outer ones first."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, If)):
            yield from statements(statement.body)


def expressions(node: Statement | Expr) -> Iterator[Expr]:
    """The expressions of a statement, without those of its body, and their parts."""
    if isinstance(node, Expr):
        yield node
    for part in fields(node):  # type: ignore[arg-type]
        value = getattr(node, part.name)
        for inner in value if part.name == "arguments" else (value,):
            if isinstance(inner, Expr):
                yield from expressions(inner)


def uses(dim: Dim, name: str) -> bool:
    return name in symbols_of((dim,))


def linear(dim: Dim, name: str) -> tuple[Dim, Dim] | None:
    """`c, rest` if the dim is `c * name + rest`, both free of the name; None if it is not."""
    if isinstance(dim, int):
        return 0, dim
    factor: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in dim.terms:
        others: Dim = coefficient
        times = 0
        for atom in monomial:
            if isinstance(atom, Symbol) and atom.name == name:
                times += 1
            else:
                others = others * Symbolic((((atom,), 1),))
        if times > 1 or uses(others, name):
            return None
        factor, rest = (factor + others, rest) if times else (factor, rest + others)
    return factor, rest


def replaced(dim: Dim, values: dict[str, Dim]) -> Dim:
    """The dim with values for symbols, outside of quotients and remainders."""

    def part(atom: Atom | Symbol) -> Dim:
        value = values.get(atom.name) if isinstance(atom, Symbol) else None
        return Symbolic((((atom,), 1),)) if value is None else value

    return mapped(dim, part)


def mapped(dim: Dim, part: Callable[[Atom | Symbol], Dim]) -> Dim:
    """The dim with other values for its symbols, quotients and remainders."""
    if isinstance(dim, int):
        return dim
    terms = (product((coefficient, *map(part, monomial))) for monomial, coefficient in dim.terms)
    return sum(terms, start=0)


def tiles_across(program: Program) -> frozenset[str]:
    """The tiles whose last axis is along lanes."""
    found = set()

    def visit(body: Sequence[Statement], lane: str, inside: frozenset[str]) -> None:
        """`inside`: the tiles that were made in the lanes loop."""
        for statement in body:
            if isinstance(statement, MakeTile) and lane:
                inside |= {statement.name}
            for expr in expressions(statement):
                if not isinstance(expr, Element) or not lane or expr.tile in inside:
                    continue
                if uses(expr.index[-1], lane):
                    found.add(expr.tile)
            if isinstance(statement, Loop):
                own = statement.names[0] if statement.kind == LANES else lane
                visit(statement.body, own, inside)
            elif isinstance(statement, If):
                visit(statement.body, lane, inside)

    visit(program.body, "", frozenset())
    return frozenset(found)


def reduced(body: Sequence[Statement]) -> list[tuple[str | Local, str]]:
    """What the reductions of a `lanes` loop go into, a local or a tile, and their kinds."""
    found: dict[tuple[str | Local, str], None] = {}
    for statement in statements(body):
        if isinstance(statement, Reduce):
            target = statement.target
            name = target if isinstance(target, Local) else target.tile
            found[name, statement.kind] = None
    return list(found)
