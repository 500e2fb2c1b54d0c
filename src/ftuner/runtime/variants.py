"""Models of one file for inputs whose shapes are other than the file says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ftuner.core.caching import RecentlyUsed
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.errors import DTypeError, FTunerError, InputError, OperandError, ShapeError
from ftuner.graph.ir import Graph
from ftuner.runtime.cpu.arrays import as_array
from ftuner.runtime.shapes.binding import bind

_LOG = logging.getLogger(__name__)
M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
Shapes = Mapping[str, Sequence[int]]
"""Shapes of inputs by name."""
Check = Callable[[Graph], None]
"""Raises ShapeError if the shapes of a call contradict a graph."""
MAX_VARIANTS = 32
"""Variants of a model that are kept."""
MAX_KNOWN = 256
"""Shapes of inputs of which it is kept which variant they need."""
MAX_REFUSED = 4
"""Shapes that no program can be made for, before others with the same extents equal are refused
untried: to try takes seconds."""
MOST_SHOWN = 300
"""Characters of shapes in a message: a decoder has two for each layer."""


class Variants(Generic[M_co]):
    """The variants of a model: each is compiled in the first call that needs it, and kept. Which
    one a call needs depends on its shapes alone, not on earlier calls. Safe to use from several
    threads."""

    def __init__(
        self, wanted: Callable[[Shapes], Hashable | None], compiled: Callable[[Any, Check], M_co]
    ) -> None:
        """`wanted`: which variant shapes need; None for the model as its file says. `compiled`:
        makes a variant, and has its graph checked before that is compiled."""
        self._wanted, self._compiled = wanted, compiled
        self._checks: RecentlyUsed[Hashable, Graph] = RecentlyUsed(MAX_VARIANTS)
        """Inputs and constraints of graphs, so that shapes which contradict each other do not have
        the file read each time."""
        self._lock = fork_safe_lock()
        self._made: RecentlyUsed[Hashable, M_co] = RecentlyUsed(MAX_VARIANTS)
        self._known: RecentlyUsed[object, tuple[Hashable | None]] = RecentlyUsed(MAX_KNOWN)

    @property
    def used(self) -> bool:
        """Whether a call has needed a variant."""
        return len(self._made) > 0

    def model(self, feeds: Mapping[str, object]) -> M_co | None:
        """The variant that arrays need; None for the model as its file says.

        Raises:
            InputError: a value that is no array.
            GraphError, ShapeError: what the file computes of such inputs.
        """
        key = tuple([(name, _shape_of(x, name)) for name, x in feeds.items()])
        known = self._known.get(key)
        if known is None:
            known = (self._wanted(dict(key)),)
            self._known.add(key, known)
        return None if known[0] is None else self._variant(known[0], dict(key))

    def of(self, shapes: Shapes) -> M_co | None:
        """Like `model`, for shapes of which some may be missing."""
        wanted = self._wanted(shapes)
        return None if wanted is None else self._variant(wanted, shapes)

    def _variant(self, wanted: Hashable, shapes: Shapes) -> M_co:
        found = self._made.get(wanted)
        if found is not None:
            return found

        def check(graph: Graph) -> None:
            self._checks.add(wanted, replace(graph, nodes=()))
            _check_shapes(graph, shapes)

        with self._lock:
            found = self._made.get(wanted)
            if found is None:
                known = self._checks.get(wanted)
                if known is not None:
                    check(known)
                found = self._compiled(wanted, check)
                self._made.add(wanted, found)
        return found


def variants_of_extents(first: Graph, made: Callable[[Shapes], tuple[Graph, M]]) -> Variants[M]:
    """The variants of a program that was traced for some extents, such as those on one side of a
    branch. Each variant is for the shapes of the first call that needs it, and for all others that
    it holds for.

    Args:
        first: the inputs and constraints of the program.
        made: traces and compiles for shapes, with the inputs and constraints of that program.
    """
    known: list[tuple[Graph, Hashable | None]] = [(first, None)]
    refused: dict[Any, str] = {}

    def wanted(shapes: Shapes) -> Hashable | None:
        if any(v.rank and len(shapes.get(v.name, v.shape)) != v.rank for v in first.inputs):
            return None  # It says what is wrong.
        for graph, key in known:
            try:
                _check_shapes(graph, shapes)
            except ShapeError:
                continue
            return key
        return tuple((name, tuple(shape)) for name, shape in shapes.items())

    def compiled(key: Any, _: Check) -> M:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in key)[:MOST_SHOWN]
        alike = [other for other in refused if _equal_extents(other) == _equal_extents(key)]
        if key not in refused and len(alike) < MAX_REFUSED:
            try:
                graph, model = made(dict(key))
            except FTunerError as error:
                refused[key] = str(error)
            else:
                known.append((graph, key))
                _LOG.warning("another program is compiled, for inputs such as %s", shown)
                return model
        why = refused.get(key, f"{MAX_REFUSED} shapes like these were refused")
        raise ShapeError(f"no program for {shown}: {why}")

    return Variants(wanted, compiled)


def _equal_extents(key: Iterable[tuple[str, Sequence[int]]]) -> tuple[int, ...]:
    """For each extent of all shapes, the place of the first one that is equal to it."""
    extents = [n for _, shape in key for n in shape]
    return tuple(map(extents.index, extents))


def _check_shapes(graph: Graph, shapes: Shapes) -> None:
    """Check shapes, of which some may be missing, against the inputs and constraints of a graph.

    Raises:
        ShapeError: they contradict it.
    """
    given = [v for v in graph.inputs if v.name in shapes]
    extents = [shapes[v.name] if v.rank else () for v in given]
    bind(replace(graph, inputs=tuple(given)), extents)


def _shape_of(value: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(value.shape if hasattr(value, "shape") else as_array(value, name).shape)
    except (OperandError, DTypeError) as error:
        raise InputError(str(error)) from None
