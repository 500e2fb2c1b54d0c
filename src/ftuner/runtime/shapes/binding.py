"""The symbols of a graph, bound to the extents of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftuner.core.caching import cached_attribute
from ftuner.core.dim import Dim, Symbolic, symbols_of
from ftuner.core.evaluation import all_symbols_in, compiled, evaluate
from ftuner.core.symbolic import Symbol
from ftuner.errors import ShapeError
from ftuner.graph.ir import Constraint, Graph, Value, equal_symbols


class Binding:
    """Computes the values of a graph's symbols from the shapes of its inputs. What does not depend
    on the shapes is prepared once."""

    def __init__(self, graph: Graph) -> None:
        self._inputs = graph.inputs
        self._read, self.names = _reader(graph.inputs)
        # The others have data-dependent symbols.
        sides = [side for c in graph.constraints for side in (c.x, c.y)]
        known = all_symbols_in(sides, self.names)
        self.constraints = [
            c for c, x, y in zip(graph.constraints, known[::2], known[1::2], strict=True) if x and y
        ]
        """Those of the symbols of inputs."""
        self.equal = equal_symbols(self.constraints)
        """For symbols whose values are always those of an earlier one, its name."""

    @cached_attribute
    def _sides(self) -> Callable[[Sequence[int]], list[int]]:
        return compiled([side for c in self.constraints for side in (c.x, c.y)], self.names)

    def __call__(self, shapes: Sequence[Sequence[int]]) -> list[int]:
        """The values of `names`.

        Raises:
            ShapeError: shapes that contradict the graph or each other.
        """
        values = self.read(shapes)
        self.check(values)
        return values

    def read(self, shapes: Sequence[Sequence[int]]) -> list[int]:
        """The values of `names`, of which `check` has to admit those that nothing else checks.

        Raises:
            ShapeError: shapes that contradict the inputs' or each other.
        """
        try:
            values = self._read(shapes)
        except ValueError:
            values = None
        if values is None:
            raise self._contradicted(shapes)
        return values

    def check(self, values: Sequence[int]) -> None:
        """Raises ShapeError for values of `names` that contradict the graph."""
        if not self.constraints:
            return
        try:
            sides = self._sides(values)
        except ZeroDivisionError:
            extents = ", ".join(f"{n} = {v}" for n, v in zip(self.names, values, strict=True))
            raise ShapeError(f"an extent is divided by zero where {extents}") from None
        if sides[::2] != sides[1::2]:
            for constraint, x, y in zip(self.constraints, sides[::2], sides[1::2], strict=True):
                if not constraint.holds(x, y):
                    named = dict(zip(self.names, values, strict=True))
                    raise ShapeError(_contradiction(constraint, x, y, named))

    def counting(self, count: Symbolic) -> Callable[[int], list[int]]:
        """Returns a function from a value of a dim, which is a product of symbols, to values of all
        symbols: one of the dim, and those that always equal it, have the value; others are one."""
        counted, *_ = symbols_of((count,))
        equal = [self.equal.get(name, name) for name in self.names]
        chosen = [name == self.equal.get(counted, counted) for name in equal]
        return lambda value: [value if counts else 1 for counts in chosen]

    def _contradicted(self, shapes: Sequence[Sequence[int]]) -> ShapeError:
        """The error for shapes that contradict the inputs' or each other."""
        known: dict[str, int] = {}
        for value, shape in zip(self._inputs, shapes, strict=True):
            given = f"input {value} was given {tuple(shape)}"
            if len(shape) != value.rank:
                return ShapeError(given)
            for dim, extent in zip(value.shape, shape, strict=True):
                if isinstance(dim, int):
                    if dim != extent:
                        return ShapeError(given)
                elif known.setdefault(str(dim), extent) != extent:
                    return ShapeError(f"{given}: {dim} is {known[str(dim)]} elsewhere")
        raise AssertionError(shapes)


def _reader(
    inputs: Sequence[Value],
) -> tuple[Callable[[Sequence[Sequence[int]]], list[int] | None], list[str]]:
    """A function from the shapes of inputs to the values of their symbols, and the names of these.
    The function gives None for extents that contradict each other, and raises ValueError for other
    ranks than those of the inputs. In source code a hundred inputs take some microseconds."""
    numbers: dict[str, int] = {}
    targets: list[str] = []
    contradictions: list[str] = []
    for value in inputs:
        axes = []
        for dim in value.shape:
            name = _name(dim) if isinstance(dim, Symbolic) else None
            number = None if name is None else numbers.get(name)
            if name is not None and number is None:
                axes.append(f"s{numbers.setdefault(name, len(numbers))}")
                continue
            axes.append(f"x{len(contradictions)}")
            known = dim if number is None else f"s{number}"
            contradictions.append(f"{axes[-1]} != {known}")
        targets.append(f"({''.join(f'{axis}, ' for axis in axes)})")
    lines = [
        "def made(shapes):",
        f" [{', '.join(targets)}] = shapes",
        f" if {' or '.join(contradictions) or 'False'}: return None",
        f" return [{', '.join(f's{number}' for number in numbers.values())}]",
    ]
    # The source is made of integers and the fixed words above, never of names that were given.
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["made"], list(numbers)


def _name(dim: Symbolic) -> str:
    """The name of a symbol, whose text is cut if it is long; the text of any other dim."""
    (monomial, factor), *others = dim.terms
    if not others and factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
        return monomial[0].name
    return str(dim)


def bind(graph: Graph, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The values of all symbols by name.

    Raises:
        ShapeError: shapes that contradict the graph or each other.
    """
    binding = Binding(graph)
    return dict(zip(binding.names, binding(shapes), strict=True))


def _contradiction(constraint: Constraint, x: int, y: int, values: Mapping[str, int]) -> str:
    def text(dim: Dim, value: int) -> str:
        return str(value) if isinstance(dim, int) else f"{dim} is {value}"

    what = f"{constraint.what}: {text(constraint.x, x)} and {text(constraint.y, y)}"
    shapes = [
        str(tuple(evaluate(dim, values) for dim in shape))
        for shape in constraint.operands if all(all_symbols_in(shape, values))
    ]  # fmt: skip
    return f"{what}; the operands have the shapes {' and '.join(shapes)}" if shapes else what


def check(graph: Graph, values: Mapping[str, int]) -> None:
    """Check the constraints of a graph whose symbols are all bound. Constraints with data-dependent
    symbols that are not bound yet are skipped.

    Raises:
        ShapeError: one of them does not hold.
    """
    for constraint in graph.constraints:
        if not all(all_symbols_in((constraint.x, constraint.y), values)):
            continue
        x, y = evaluate(constraint.x, values), evaluate(constraint.y, values)
        if not constraint.holds(x, y):
            raise ShapeError(_contradiction(constraint, x, y, values))
