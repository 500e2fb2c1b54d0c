"""Shapes that a model is prepared for: extents of dims by name, which may be ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, SupportsIndex

from ftuner.core.dim import symbols_of
from ftuner.core.frozen import dataclass
from ftuner.core.given import checked_integer
from ftuner.core.shown import short_repr
from ftuner.core.units import count
from ftuner.errors import InputError
from ftuner.graph.ir import Graph
from ftuner.runtime.shapes.binding import bind

MAX_SHAPES = 1 << 16
"""Most shapes that one call prepares; more than a graph keeps."""
Extents = SupportsIndex | Sequence[SupportsIndex]
"""Of a dim: a value, or (lo, hi) or (lo, hi, step) for lo, lo + step, ..., and hi. Of an input: its
shape."""


@dataclass(frozen=True, repr=False)
class Prepared:
    """What `Model.prepare` has done."""

    shapes: int
    """Number of shapes that are ready."""
    skipped: tuple[str, ...]
    """What could not be prepared, and why."""

    def __repr__(self) -> str:
        return short_repr(self, f"{count(self.shapes, 'shape')}; skipped: {self.skipped or 'none'}")


def known_extents(graph: Graph, given: Mapping[str, Extents]) -> list[dict[str, int]]:
    """The values of the symbols of a graph for each combination of what was given, the largest
    last.

    Raises:
        InputError: unknown names, a dim that is missing, or what is no extent, range or shape; too
            many combinations.
        ShapeError: shapes of inputs that contradict the graph.
    """
    by_input = {v.name: v for v in graph.inputs}
    names = dict.fromkeys(s for v in graph.inputs for s in symbols_of(v.shape))
    unknown = given.keys() - by_input.keys() - names.keys()
    if unknown:
        raise InputError(
            f"no dim or input {', '.join(sorted(unknown))}; there are the dims "
            f"{', '.join(names) or '(none)'} and the inputs {', '.join(by_input)}"
        )
    shaped = [by_input[name] for name in given if name in by_input]
    shapes = [shape_of(v.name, given[v.name]) for v in shaped]
    known = bind(Graph(tuple(shaped), (), ()), shapes)
    values = {name: [n] for name, n in known.items() if name in names}
    values |= {n: _values(n, x) for n, x in given.items() if n in names and n not in by_input}
    missing = [name for name in names if name not in values]
    if missing:
        raise InputError(f"no extent is given for the dims {', '.join(missing)}")
    combinations = math.prod(map(len, values.values()))
    if combinations > MAX_SHAPES:
        raise InputError(f"{combinations} shapes are more than {MAX_SHAPES}; give a step")
    found = [dict(zip(values, extents, strict=True)) for extents in product(*values.values())]
    return sorted(found, key=lambda extents: math.prod(extents.values()))


def shape_of(name: str, given: Any) -> tuple[int, ...]:
    """The shape of an input, given as a shape or an array.

    Raises:
        InputError: what is neither.
    """
    extents: object = getattr(given, "shape", given)
    if isinstance(extents, str) or not isinstance(extents, Sequence):
        raise InputError(f"input {name} was given {given!r}; expected a shape or an array")
    return tuple(checked_integer(n, f"an extent of {name}", 0) for n in extents)


def _values(name: str, given: Any) -> list[int]:
    ends = [given] if isinstance(given, SupportsIndex) else given
    if isinstance(ends, str) or not isinstance(ends, Sequence) or not 1 <= len(ends) <= 3:
        raise InputError(f"dim {name} was given {given!r}; expected a value or (lo, hi[, step])")
    low = checked_integer(ends[0], f"dim {name}", 0, error=InputError)
    high = checked_integer(ends[:2][-1], f"the end of dim {name}", low, error=InputError)
    step = checked_integer([*ends[2:], 1][0], f"the step of dim {name}", 1, error=InputError)
    return [*range(low, high, step), high]
