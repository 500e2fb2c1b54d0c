"""Proves that operands are read within their extents, for all extents at once.

An index is a linear form of positions, whose range over the axes is a dim. Where a condition of
`where` must hold for the range to be inside, the read is *padded*: it reads nothing elsewhere. What
depends on extents alone becomes a *need*, which is checked when these are known; what data says is
checked element by element at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import add, mul, neg
from types import MappingProxyType

from ftuner.core.dim import Dim, maximum, minimum, never_negative, product, quotient
from ftuner.core.frozen import dataclass
from ftuner.define.elements import (
    INDEX,
    Apply,
    Element,
    Extent,
    Index,
    Number,
    Read,
    Reduction,
    Tensor,
    elements_of,
    operands_of,
)
from ftuner.define.tracing import Definition

Names = Mapping[str, Dim]
INSIDE, PADDED, DATA = "inside", "padded", "data"


def dim_of(
    one: Element, names: Names, positions: Mapping[Index, Dim] = MappingProxyType({})
) -> Dim | None:
    """An element as a dim; None if it depends on data, or on an index that `positions` has not."""
    match one:
        case Number(value=int() as value):
            return int(value)
        case Extent(name=name):
            return names[name]
        case Index():
            return positions.get(one)
        # Arithmetic on data, whose nesting may be deep, is not walked.
        case Apply(function=function, arguments=arguments) if one.type == INDEX:
            found = (dim_of(argument, names, positions) for argument in arguments)
            return _known(partial(_combined, function), *found)
    return None


def _combined(function: str, *given: Dim) -> Dim | None:
    match function, given:
        case "add", [x, y]:
            return x + y
        case "subtract", [x, y]:
            return x - y
        case "multiply", [x, y]:
            return x * y
        case "negative", [x]:
            return -x
        case "maximum", [x, y]:
            return maximum(x, y)
        case "minimum", [x, y]:
            return minimum(x, y)
        case (("quotient" | "remainder"), [x, int() as y]) if y != 0:
            return x // y if function == "quotient" else x % y
    return None


@dataclass(frozen=True)
class Linear:
    """A constant and a multiple of positions."""

    coefficients: Mapping[Index, Dim]
    constant: Dim

    def plus(self, other: Linear, factor: Dim = 1) -> Linear:
        found = dict(self.coefficients)
        for index, coefficient in other.coefficients.items():
            found[index] = found.get(index, 0) + coefficient * factor
        kept = {index: c for index, c in found.items() if not (isinstance(c, int) and c == 0)}
        return Linear(kept, self.constant + other.constant * factor)


def linear(one: Element, names: Names) -> Linear | None:
    """An element as a linear form; None if it is none."""
    dim = dim_of(one, names)
    if dim is not None:
        return Linear({}, dim)
    match one:
        case _ if one.type != INDEX:
            return None
        case Index():
            return Linear({one: 1}, 0)
        case Apply(function=("add" | "subtract") as function, arguments=(x, y)):
            left, right = linear(x, names), linear(y, names)
            if left is None or right is None:
                return None
            return left.plus(right, 1 if function == "add" else -1)
        case Apply(function="negative", arguments=(x,)):
            found = linear(x, names)
            return None if found is None else Linear({}, 0).plus(found, -1)
        case Apply(function="multiply", arguments=(x, y)):
            for factor, other in ((dim_of(x, names), y), (dim_of(y, names), x)):
                found = linear(other, names)
                if factor is not None and found is not None:
                    return Linear({}, 0).plus(found, factor)
    return None


@dataclass(frozen=True)
class Need:
    """A dim that must be zero or more, wherever there are any elements."""

    dim: Dim
    count: Dim
    """Zero if nothing is read."""
    text: str


class Bounds:
    """How the operands of a definition are read, for certain extents."""

    def __init__(self, definition: Definition, names: Names) -> None:
        self.names = names
        self.needs: list[Need] = []
        self._found: dict[Read, list[str]] = {}
        self._visited: set[tuple[int, tuple[int, ...]]] = set()
        self._facts: dict[tuple[int, bool], list[Linear]] = {}
        for root in definition.roots:
            for one in elements_of(root):
                if isinstance(one, Index) and one.extent is None:
                    self._expect_equal(one)
            self._visit(root)

    def kinds(self, read: Read) -> Sequence[str]:
        """For each axis of a read, whether it is `INSIDE`, `PADDED` or chosen by `DATA`."""
        return self._found[read]

    def extent(self, index: Index) -> Dim:
        """The number of positions of an index."""
        found = dim_of(index.extents[0][0], self.names)
        assert found is not None
        return found

    def rounds_down(self, x: Element, y: Element) -> bool:
        """Whether a quotient of indices that rounds towards zero is one that rounds down."""
        low, by = self._range(x)[0], dim_of(y, self.names)
        return never_negative(low) and never_negative(by)

    def only_bounds(self, condition: Element, read: Read) -> bool:
        """Whether a condition holds wherever a read is inside of its tensor."""
        edges = list[Linear]()
        for axis, one in enumerate(read.at):
            form = linear(one, self.names)
            if form is not None:
                last = Linear({}, self.axis_extent(read.tensor, axis) - 1)
                edges += [form, last.plus(form, -1)]
        return all(
            any(edge.plus(fact, -1) == Linear({}, 0) for edge in edges)
            for part, holds in _parts(condition, True)
            for fact in self._all_facts_of(part, holds) or [_IMPOSSIBLE]
        )

    def _all_facts_of(self, condition: Element, holds: bool) -> list[Linear]:
        """Linear forms that are zero or more where a condition holds, and nowhere else; none if
        there are no such."""
        match condition:
            case Apply(function="equal", arguments=arguments):
                if None in [linear(x, self.names) for x in arguments]:
                    return []
        return self._facts_of(condition, holds)

    def axis_extent(self, tensor: Tensor, axis: int) -> Dim:
        found = dim_of(tensor.shape[axis], self.names)
        assert found is not None
        return found

    def _expect_equal(self, index: Index) -> None:
        first = self.extent(index)
        for extent, where in index.extents[1:]:
            other = dim_of(extent, self.names)
            assert other is not None
            text = f"{where}: the index of one `axis` selects from axes of {first} and {other}"
            self.needs += [Need(first - other, 1, text), Need(other - first, 1, text)]

    def _visit(self, root: Element) -> None:
        left: list[tuple[Element, tuple[Linear, ...]]] = [(root, ())]
        while left:
            one, facts = left.pop()
            key = (id(one), tuple(map(id, facts)))
            if key in self._visited:
                continue
            self._visited.add(key)
            if isinstance(one, Apply) and one.function == "where":
                condition, x, y = one.arguments
                left.append((condition, facts))
                left.append((x, (*facts, *self._facts_of(condition, True))))
                left.append((y, (*facts, *self._facts_of(condition, False))))
                continue
            if isinstance(one, Read):
                self._read(one, facts)
            left += [(inner, facts) for inner in operands_of(one)]

    def _facts_of(self, condition: Element, holds: bool) -> list[Linear]:
        """Linear forms that are zero or more where a condition holds, or where it does not."""
        key = (id(condition), holds)
        if key not in self._facts:
            self._facts[key] = self._new_facts(condition, holds)
        return self._facts[key]

    def _new_facts(self, condition: Element, holds: bool) -> list[Linear]:
        match condition:
            case Apply(function="logical_not", arguments=(x,)):
                return self._facts_of(x, not holds)
            case Apply(function=("logical_and" | "logical_or") as function, arguments=(x, y)):
                if (function == "logical_and") != holds:
                    return []
                return [*self._facts_of(x, holds), *self._facts_of(y, holds)]
            case Apply(function="equal", arguments=(x, y)) if holds:
                return [*self._at_least(x, y, 0), *self._at_least(y, x, 0)]
            case Apply(function=("less" | "less_equal") as function, arguments=(x, y)):
                strict = (function == "less") == holds
                low, high = (x, y) if holds else (y, x)
                return self._at_least(high, low, int(strict))
        return []

    def _at_least(self, high: Element, low: Element, by: int) -> list[Linear]:
        """`high - low - by` as linear forms; of an absolute value as two."""
        signs: list[tuple[Element, int]] = [(low, -1)]
        if isinstance(low, Apply) and low.function == "absolute":
            signs = [(low.arguments[0], -1), (low.arguments[0], 1)]
        top, found = linear(high, self.names), []
        for one, sign in signs:
            form = linear(one, self.names)
            if form is not None and top is not None:
                found.append(top.plus(form, sign).plus(Linear({}, -by)))
        return found

    def _read(self, read: Read, facts: Sequence[Linear]) -> None:
        known = self._found.setdefault(read, [INSIDE] * len(read.at))
        for axis, one in enumerate(read.at):
            if any(isinstance(inner, Read | Reduction) for inner in elements_of(one)):
                known[axis] = DATA
                continue
            extent = self.axis_extent(read.tensor, axis)
            form = linear(one, self.names)
            low, high = self._range(one)
            for need, exact in (
                (low, form),
                (None if high is None else extent - 1 - high,
                 None if form is None else Linear({}, extent - 1).plus(form, -1)),
            ):  # fmt: skip
                if never_negative(need):
                    continue
                if exact is not None and self._follows(exact, facts):
                    known[axis] = PADDED
                    continue
                self._require(read, axis, need, low, high, extent)

    def _require(
        self, read: Read, axis: int, need: Dim | None, low: Dim | None, high: Dim | None,
        extent: Dim,
    ) -> None:  # fmt: skip
        what = f"axis {axis} of {read.tensor.name} has {extent} elements"
        if need is None or low is None or high is None:
            text = f"{read.place}: {what}, and ftuner cannot tell that the index is among them"
            self.needs.append(Need(-1, 1, text))
            return
        text = f"{read.place}: {what}, and is read from {low} to {high}"
        indices = sorted(read.at[axis].free, key=lambda i: i.number)
        some = product(minimum(self.extent(index), 1) for index in indices)
        self.needs.append(Need(need, some, text))

    def _follows(self, form: Linear, facts: Sequence[Linear]) -> bool:
        """Whether a form is zero or more where the facts are."""
        lows = (self._range_of(form.plus(fact, -1))[0] for fact in facts)
        return any(map(never_negative, lows))

    def _range_of(self, form: Linear) -> tuple[Dim | None, Dim | None]:
        low: Dim | None = form.constant
        high: Dim | None = form.constant
        for index, coefficient in form.coefficients.items():
            reach = coefficient * (self.extent(index) - 1)
            if never_negative(coefficient):
                high = _known(add, high, reach)
            elif never_negative(-coefficient):
                low = _known(add, low, reach)
            else:
                return None, None
        return low, high

    def _range(self, one: Element) -> tuple[Dim | None, Dim | None]:
        """The least and the largest value of an index; None if that is not known."""
        form = linear(one, self.names)
        if form is not None:
            return self._range_of(form)
        if not isinstance(one, Apply):
            return None, None
        given = [self._range(argument) for argument in one.arguments]
        lows, highs = [low for low, _ in given], [high for _, high in given]
        match one.function, one.arguments:
            case "where", _:
                return _known(minimum, *lows[1:]), _known(maximum, *highs[1:])
            case "maximum", _:
                known = [low for low in lows if low is not None]
                low = known[0] if len(known) == 1 else _known(maximum, *lows)
                return low, _known(maximum, *highs)
            case "minimum", _:
                known = [high for high in highs if high is not None]
                high = known[0] if len(known) == 1 else _known(minimum, *highs)
                return _known(minimum, *lows), high
            case "quotient", (_, y):
                by = dim_of(y, self.names)
                if isinstance(by, int) and by > 0:
                    low, high = given[0]
                    return _known(quotient, low, by), _known(quotient, high, by)
            case "remainder", (_, y):
                by = dim_of(y, self.names)
                if never_negative(by):
                    return 0, maximum(by, 1) - 1
            case (("add" | "subtract"), _):
                (a, b), (c, d) = given
                if one.function == "subtract":
                    c, d = _known(neg, d), _known(neg, c)
                return _known(add, a, c), _known(add, b, d)
            case "multiply", (x, y):
                for factor, (a, b) in ((dim_of(x, self.names), given[1]),
                                       (dim_of(y, self.names), given[0])):  # fmt: skip
                    if never_negative(factor):
                        return _known(mul, a, factor), _known(mul, b, factor)
        return None, None


_IMPOSSIBLE = Linear({}, -1)


def _parts(condition: Element, holds: bool) -> list[tuple[Element, bool]]:
    """The conditions that together are one, or its opposite, and whether each of them holds."""
    match condition:
        case Apply(function="logical_not", arguments=(x,)):
            return _parts(x, not holds)
        case Apply(function=("logical_and" | "logical_or") as function, arguments=arguments):
            if (function == "logical_and") == holds:
                return [part for argument in arguments for part in _parts(argument, holds)]
    return [(condition, holds)]


def _known(function: Callable[..., Dim | None], *dims: Dim | None) -> Dim | None:
    """A function of dims; None if one of them is not known."""
    return None if None in dims else function(*dims)
