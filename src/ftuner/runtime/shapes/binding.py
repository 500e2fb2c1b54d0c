"""The symbols of a graph, bound to the extents of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.core.dim import Dim, Symbolic
from ftuner.core.evaluation import all_symbols_in, compiled, evaluate
from ftuner.errors import ShapeError
from ftuner.graph.ir import Constraint, Graph


class Binding:
    """Computes the values of a graph's symbols from the shapes of its inputs. What does not depend
    on the shapes is prepared once."""

    def __init__(self, graph: Graph) -> None:
        self._inputs = graph.inputs
        numbers: dict[str, int] = {}
        self._axes: list[list[tuple[int, int]]] = []
        """For each axis of each input, the number of its symbol or -1, and its extent."""
        for value in graph.inputs:
            axes = []
            for dim in value.shape:
                if isinstance(dim, Symbolic):
                    axes.append((numbers.setdefault(str(dim), len(numbers)), 0))
                else:
                    axes.append((-1, dim))
            self._axes.append(axes)
        self.names = list(numbers)
        # The others have data-dependent symbols.
        sides = [side for c in graph.constraints for side in (c.x, c.y)]
        known = all_symbols_in(sides, numbers)
        self._constraints = [
            c for c, x, y in zip(graph.constraints, known[::2], known[1::2], strict=True) if x and y
        ]
        sides = [side for c in self._constraints for side in (c.x, c.y)]
        self._sides = compiled(sides, self.names)

    def __call__(self, shapes: Sequence[Sequence[int]]) -> list[int]:
        """The values of `names`.

        Raises:
            ShapeError: shapes that contradict the graph or each other.
        """
        values = [-1] * len(self.names)
        for number, (axes, shape) in enumerate(zip(self._axes, shapes, strict=True)):
            if len(shape) != len(axes):
                raise ShapeError(f"input {self._inputs[number]} was given {tuple(shape)}")
            for axis, (symbol, known) in enumerate(axes):
                extent = shape[axis]
                if symbol >= 0:
                    known = values[symbol]
                    if known < 0:
                        known = values[symbol] = extent
                if known != extent:
                    value = self._inputs[number]
                    why = "" if symbol < 0 else f": {value.shape[axis]} is {known} elsewhere"
                    raise ShapeError(f"input {value} was given {tuple(shape)}{why}")
        try:
            sides = self._sides(values)
        except ZeroDivisionError:
            extents = ", ".join(f"{n} = {v}" for n, v in zip(self.names, values, strict=True))
            raise ShapeError(f"an extent is divided by zero where {extents}") from None
        for constraint, x, y in zip(self._constraints, sides[::2], sides[1::2], strict=True):
            if not constraint.holds(x, y):
                named = dict(zip(self.names, values, strict=True))
                raise ShapeError(_contradiction(constraint, x, y, named))
        return values


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
