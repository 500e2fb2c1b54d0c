"""Elements: what a definition says of one element of a result, as an expression over indices.

Running a user's function once on `Tensor`s gives elements; nothing is computed. An element has a
*type*: the name of a dtype; `float` or `int` for any dtype of that kind, the same one everywhere in
the operator; or a *weak* one, `index` or `number`, of indices, extents and Python's numbers, which
take the type of what they meet.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import NoReturn

from ftuner.core.dtype import ELEMENT_DTYPES, STRING
from ftuner.core.frozen import dataclass
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import DefinitionError

_HERE = str(Path(__file__).parent)
FLOAT, INT, BOOL = "float", "int", "bool"
INDEX, NUMBER = "index", "number"
WEAK = (INDEX, NUMBER)
TYPES = (FLOAT, INT, *(name for name in ELEMENT_DTYPES if name != STRING.name))
"""What a signature may call the type of a tensor."""
_NUMBERS = itertools.count()


def place() -> str:
    """The file and line of the user's code that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def wrong(what: str, where: str | None = None) -> DefinitionError:
    """The error that a definition is malformed, at a place or else where the user's code is."""
    return DefinitionError(f"{where or place()}: {what}")


def kind_of(type_: str) -> str:
    """The kind of dtype that a type is of."""
    if type_ in ELEMENT_DTYPES:
        return ELEMENT_DTYPES[type_].kind
    return {INDEX: "int", NUMBER: "float"}.get(type_, type_)


def _applying(function: str) -> Callable[..., Element]:
    """The method that applies a function to an element and its operand, if it has one."""
    return lambda *given: apply(function, *given)


def _exchanged(function: str) -> Callable[[Element, Operand], Element]:
    return lambda one, other: apply(function, other, one)


def _bitwise(name: str) -> Callable[..., Element]:
    """The method that applies a function of bits, or the logical one of conditions."""

    def method(*given: Operand) -> Element:
        arguments = [element(one) for one in given]
        logical = all(one.type == BOOL for one in arguments)
        return apply(f"{'logical' if logical else 'bitwise'}_{name}", *arguments)

    return method


def _divided(dividend: Operand, divisor: Operand) -> Element:
    x, y = element(dividend), element(divisor)
    if kind_of(x.type) != "float" and kind_of(y.type) != "float":
        if {x.type, y.type} - {INDEX}:
            raise wrong(f"/ of {x.type} and {y.type}; write // or convert with cast(x, type)")
        x = converted(x, NUMBER)
    return apply("divide", x, y)


@dataclass(frozen=True, eq=False)
class Element:
    """Base of all expressions. Python's operators make larger ones."""

    type: str
    free: frozenset[Index] = field(repr=False)
    """The indices that it depends on."""
    place: str = field(repr=False)

    def __bool__(self) -> NoReturn:
        raise wrong(
            "the truth of an element is not known while an operator is defined; write "
            "where(condition, x, y) for `x if condition else y`, (a <= b) & (b < c) for "
            "`a <= b < c`, and &, | and ~ for and, or and not"
        )

    def __iter__(self) -> NoReturn:
        raise wrong("an element is no sequence; iterate over `axis`")

    def __index__(self) -> NoReturn:
        raise wrong("an extent or index is not known while an operator is defined; use axis(n)")

    __int__ = __float__ = __index__
    __hash__ = object.__hash__

    __add__, __radd__ = _applying("add"), _exchanged("add")
    __sub__, __rsub__ = _applying("subtract"), _exchanged("subtract")
    __mul__, __rmul__ = _applying("multiply"), _exchanged("multiply")
    __floordiv__, __rfloordiv__ = _applying("quotient"), _exchanged("quotient")
    __mod__, __rmod__ = _applying("remainder"), _exchanged("remainder")
    __lt__, __gt__ = _applying("less"), _exchanged("less")
    __le__, __ge__ = _applying("less_equal"), _exchanged("less_equal")
    __lshift__, __rshift__ = _applying("shift_left"), _applying("shift_right")
    __neg__, __abs__, __eq__ = map(_applying, ("negative", "absolute", "equal"))  # type: ignore[assignment]
    __and__, __or__, __xor__, __invert__ = map(_bitwise, ("and", "or", "xor", "not"))
    __truediv__, __rpow__ = _divided, _exchanged("power")

    def __rtruediv__(self, other: Operand) -> Element:
        return _divided(other, self)

    def __rand__(self, other: Operand) -> Element:
        return element(other) & self

    def __pow__(self, other: Operand) -> Element:
        return self * self if isinstance(other, int) and other == 2 else apply("power", self, other)

    def __ne__(self, other: object) -> Element:  # type: ignore[override]
        return apply("logical_not", self == other)


Operand = Element | float | bool


@dataclass(frozen=True, eq=False)
class Number(Element):
    """A number of Python's."""

    value: float


@dataclass(frozen=True, eq=False)
class Extent(Element):
    """An extent that the signature names."""

    name: str


@dataclass(frozen=True, eq=False)
class Index(Element):
    """A position along an axis, from 0 below its extent."""

    extent: Element | None
    """None: that of the axes it selects from, which all are as long."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """In the order of creation: those of a result come before those of reductions."""
    uses: list[tuple[Element, str]] = field(default_factory=list)
    """The extents of the axes that it selects from, and where, if it has none of its own."""

    @property
    def extents(self) -> list[tuple[Element, str]]:
        return self.uses if self.extent is None else [(self.extent, self.place)]


@dataclass(frozen=True, eq=False)
class Read(Element):
    """The element of an operand at an index."""

    tensor: Tensor
    at: tuple[Element, ...]


@dataclass(frozen=True, eq=False)
class Apply(Element):
    """A row of `SCALAR_FUNCTIONS`, `where`, `cast`, or `quotient`, which rounds down."""

    function: str
    arguments: tuple[Element, ...]


@dataclass(frozen=True, eq=False)
class Reduction(Element):
    """A reduction of an element over all positions along axes."""

    kind: str
    axes: tuple[Index, ...]
    body: Element


def new_index(extent: Element | None, where: str) -> Index:
    """A new index, which is free in itself."""
    found = Index(INDEX, frozenset(), where, extent)
    object.__setattr__(found, "free", frozenset({found}))
    return found


class Tensor:
    """An operand of the operator that is being defined. `x[i, j]` is an element of it; `x.shape`
    are the extents of its axes, without those that `...` of the signature stands for."""

    def __init__(
        self, name: str, type_: str, shape: tuple[Element, ...], number: int, batched: bool
    ) -> None:
        self.name, self.type, self.shape = name, type_, shape
        self.number, self.batched = number, batched

    def __getitem__(self, index: Operand | tuple[Operand, ...]) -> Element:
        at: tuple[object, ...] = index if isinstance(index, tuple) else (index,)
        if len(at) != len(self.shape):
            raise wrong(f"{self.name} has {len(self.shape)} axes, and is read at {len(at)} indices")
        found = []
        for given, extent in zip(at, self.shape, strict=True):
            if isinstance(given, slice) or given is None or given is ...:
                raise wrong(f"{self.name} is read element by element; iterate over `axis`")
            one = element(given)
            if kind_of(one.type) not in ("int", "uint"):
                raise wrong(f"an index of {self.name} is a {one.type}; expected an integer")
            if isinstance(one, Index) and one.extent is None:
                one.uses.append((extent, place()))
            found.append(one)
        free = frozenset[Index]().union(*(one.free for one in found))
        return Read(self.type, free, place(), self, tuple(found))

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise wrong(
            f"{self.name} is an operand and cannot be written; return a function of indices"
        )

    def __iter__(self) -> NoReturn:
        raise wrong(f"the extents of {self.name} are not known; iterate over `axis`")

    def __getattr__(self, name: str) -> NoReturn:
        raise wrong(f"{self.name} has no {name}; it has shape, and elements {self.name}[i, ...]")


def operands_of(one: Element) -> tuple[Element, ...]:
    """The elements that an element is computed from."""
    match one:
        case Read():
            return one.at
        case Apply():
            return one.arguments
        case Reduction():
            return (one.body, *one.axes)
    return ()


def elements_of(root: Element) -> Iterator[Element]:
    """Each element within one, once, after those that it is computed from."""
    left, visited = [(root, False)], set[int]()
    while left:
        one, ready = left.pop()
        if ready:
            yield one
        elif id(one) not in visited:
            visited.add(id(one))
            left.append((one, True))
            left += [(inner, False) for inner in operands_of(one)]


def element(value: object) -> Element:
    """A number of Python's as an element."""
    if isinstance(value, Element):
        return value
    for kind, type_ in ((bool, BOOL), (int, INDEX), (float, NUMBER)):
        if isinstance(value, kind):
            return Number(type_, frozenset(), place(), value)
    if isinstance(value, Tensor):
        raise wrong(f"{value.name} is a tensor; read an element of it, {value.name}[i, ...]")
    raise wrong(f"{type(value).__name__} in a definition; expected an element or a number")


def common(elements: Sequence[Element], what: str) -> str:
    """The type of elements together: weak ones take that of the others."""
    types = [one.type for one in elements]
    strong = dict.fromkeys(t for t in types if t not in WEAK)
    if not strong:
        return NUMBER if NUMBER in types else INDEX
    if len(strong) > 1:
        raise wrong(f"{what} of {' and '.join(strong)}; convert one with cast(x, type)")
    (found,) = strong
    if kind_of(found) == "bool" and len(types) > types.count(found):
        raise wrong(f"{what} of a bool and a number; use where")
    if kind_of(found) != "float" and NUMBER in types:
        raise wrong(f"{what} of {found} and a fraction; convert the integer with cast(x, type)")
    return found


def apply(function: str, *given: Operand) -> Element:
    """A function of elements and numbers."""
    arguments = tuple(map(element, given))
    row = SCALAR_FUNCTIONS.get(function)
    type_ = common(arguments, function)
    if row is not None:
        if type_ == INDEX and row.kinds == frozenset({"float"}):
            type_ = NUMBER
        if kind_of(type_) not in row.kinds:
            raise wrong(f"{function} of {type_}; it takes {', '.join(sorted(row.kinds))}")
        if function == "power" and type_ == INDEX:
            type_ = NUMBER
    result = BOOL if row is not None and row.result == "bool" else type_
    return made(function, result, tuple(converted(one, type_) for one in arguments))


def made(function: str, type_: str, arguments: tuple[Element, ...]) -> Element:
    """The application of a function, of a given type."""
    free = frozenset[Index]().union(*(one.free for one in arguments))
    return Apply(type_, free, place(), function, arguments)


def converted(one: Element, type_: str) -> Element:
    """An element in a type, which it is converted to if it is another."""
    return one if one.type == type_ else made("cast", type_, (one,))


def typed(value: Element, type_: str, what: str) -> Element:
    """An element in the type that is declared for it, which weak ones take. `what`: the element.

    Raises:
        DefinitionError: it has another type.
    """
    if value.type == type_:
        return value
    if value.type == INDEX or (value.type == NUMBER and type_ != INDEX):
        common([value, Element(type_, frozenset(), "")], what)
        return converted(value, type_)
    raise wrong(
        f"{what} is {value.type}, its signature says {type_}; convert it with cast(x, type)",
        value.place,
    )
