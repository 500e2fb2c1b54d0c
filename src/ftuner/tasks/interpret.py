"""The meaning of a program: a NumPy interpreter.

It executes the tasks of one worker after the other. A `lanes` loop is one array operation for all
its iterations, so that nothing can depend on their order. Elements outside of arrays raise an
error, unless the condition around them is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.dim import Dim
from ftuner.core.dim import symbol as symbol_of
from ftuner.core.evaluation import evaluate
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.ranges import bounds
from ftuner.errors import BoundsError
from ftuner.tasks import program as tir

Array = npt.NDArray[Any]
_COMBINED: Mapping[str, tuple[Any, Callable[[Any, Any], Any], float]] = {
    "sum": (np.sum, np.add, 0.0),
    "maximum": (np.max, np.maximum, -np.inf),
    "minimum": (np.min, np.minimum, np.inf),
}


def interpret(
    program: tir.Program, inputs: Sequence[Array], extents: Mapping[str, int], workers: int
) -> list[Array]:
    """The outputs for inputs of the program's dtype and shapes. What no task stores is NaN.

    Raises:
        BoundsError: an element outside of an array.
    """
    return _Interpreter(program, inputs, {**extents, tir.WORKERS: workers}).run()


class _Interpreter:
    def __init__(
        self, program: tir.Program, inputs: Sequence[Array], values: Mapping[str, int]
    ) -> None:
        self._program = program
        self._values: dict[str, int] = dict(values)
        self._dtype = np.dtype(program.dtype.name)
        self._arrays = {a.name: x for a, x in zip(program.inputs, inputs, strict=True)}
        for a in program.outputs:
            shape = [evaluate(d, values) for d in a.shape]
            self._arrays[a.name] = np.full(shape, np.nan, self._dtype)
        self._locals: dict[str, Array] = {}
        self._tiles: dict[str, dict[tuple[int, ...], Array]] = {}
        self._lane = ""
        self._positions: Array = np.zeros(0, np.int64)
        self._mask: Any = True

    def run(self) -> list[Array]:
        loop = self._program.tasks
        with np.errstate(all="ignore"):
            for task in tasks_of(loop.factors, self._values):
                self._values.update(zip(loop.names, task, strict=True))
                self._block(loop.body)
        return [self._arrays[a.name] for a in self._program.outputs]

    def _block(self, body: Sequence[tir.Statement]) -> None:
        for statement in body:
            self._execute(statement)

    def _execute(self, statement: tir.Statement) -> None:
        match statement:
            case tir.Assign(name, value, declares):
                before = None if declares else self._locals[name]
                self._locals[name] = self._kept(self._of(value), before)
            case tir.MakeTile(name, shape, value):
                one = np.asarray(value, self._dtype)
                self._tiles[name] = dict.fromkeys(product(*map(range, shape)), one)
            case tir.MakePanel(array):
                extents = [evaluate(d, self._values) for d in array.shape]
                self._arrays[array.name] = np.full(extents, np.nan, self._dtype)
            case tir.SetElement(tir.Element() as target, value):
                self._set(target, self._of(value))
            case tir.Reduce(target, kind, value):
                self._reduce(target, kind, self._of(value))
            case tir.Store(array, index, value):
                self._store(statement, array, index, self._of(value))
            case tir.If(condition, body):
                outer, self._mask = self._mask, np.logical_and(self._mask, self._of(condition))
                if np.any(self._mask):
                    self._block(body)
                self._mask = outer
            case tir.Loop(kind, names, _, ends, body):
                assert kind != tir.TASKS
                if kind == tir.LANES:
                    extent = self._dim(ends[0])
                    self._lane, self._positions = names[0], np.arange(max(int(extent), 0))
                    self._block(body)
                    self._lane = ""
                else:
                    self._iterate(statement, 0)

    def _iterate(self, loop: tir.Loop, number: int) -> None:
        if number == len(loop.names):
            self._block(loop.body)
            return
        for value in range(int(self._dim(loop.begins[number])), int(self._dim(loop.ends[number]))):
            self._values[loop.names[number]] = value
            self._iterate(loop, number + 1)

    def _kept(self, value: Any, before: Any) -> Array:
        if before is None:
            return np.asarray(value, self._dtype)
        found: Array = np.where(self._mask, value, before).astype(self._dtype)
        return found

    def _places(self, element: tir.Element) -> list[tuple[int, ...]]:
        """The elements of a tile, one for each lane or one."""
        index = np.broadcast_arrays(*(self._dim(d) for d in element.index))
        return [tuple(map(int, place)) for place in zip(*map(np.ravel, index), strict=True)]

    def _set(self, target: tir.Element, value: Any) -> None:
        tile = self._tiles[target.tile]
        places = self._places(target)
        if self._lane and self._across(target):
            values = np.broadcast_to(value, len(places))
            masks = np.broadcast_to(self._mask, len(places))
            for place, one, wanted in zip(places, values, masks, strict=True):
                tile[place] = one if wanted else tile[place]
        else:
            (place,) = places
            tile[place] = self._kept(value, tile[place])

    def _across(self, element: tir.Element) -> bool:
        return bool(element.index) and element.index[-1] == symbol_of(self._lane)

    def _reduce(self, target: tir.Local | tir.Element, kind: str, value: Any) -> None:
        reduced, combined, neutral = _COMBINED[kind]
        lanes = np.broadcast_to(np.where(self._mask, value, neutral), self._positions.shape)
        total = reduced(lanes.astype(self._dtype), initial=self._dtype.type(neutral))
        if isinstance(target, tir.Local):
            self._locals[target.name] = np.asarray(combined(self._locals[target.name], total))
        else:
            (place,) = self._places(target)
            tile = self._tiles[target.tile]
            tile[place] = np.asarray(combined(tile[place], total))

    def _store(self, statement: tir.Store, name: str, index: Sequence[Dim], value: Any) -> None:
        array = self._arrays[name]
        places, inside = self._inside(array, name, index, statement.line)
        shape = np.broadcast_shapes(*(p.shape for p in places), np.shape(value), inside.shape)
        wanted = np.broadcast_to(inside, shape)
        chosen = tuple(np.broadcast_to(p, shape)[wanted] for p in places)
        array[chosen] = np.broadcast_to(value, shape)[wanted]

    def _inside(
        self, array: Array, name: str, index: Sequence[Dim], line: int
    ) -> tuple[list[Array], Array]:
        """The indices along each axis, and where the condition holds."""
        places = [np.asarray(self._dim(d)) for d in index]
        lanes = self._positions.shape if self._lane else ()
        mask = np.broadcast_to(np.asarray(self._mask), lanes)
        for axis, (position, extent) in enumerate(zip(places, array.shape, strict=True)):
            outside = np.logical_and(mask, np.logical_or(position < 0, position >= extent))
            if np.any(outside):
                what = f"{name!r}, axis {axis} of extent {extent}, is read or written at {position}"
                raise self._program.error(BoundsError, line, what)
        return places, mask

    def _dim(self, dim: Dim) -> Any:
        """The value of a dim; of one that depends on the lanes, an array."""
        if not self._lane:
            return evaluate(dim, self._values)
        parts = tir.linear(dim, self._lane)
        if parts is not None:
            factor, rest = (evaluate(d, self._values) for d in parts)
            return rest + factor * self._positions if factor else rest
        values = [evaluate(dim, {**self._values, self._lane: int(p)}) for p in self._positions]
        return np.asarray(values, np.int64)

    def _of(self, expr: tir.Expr) -> Any:
        match expr:
            case tir.Number(value):
                return self._dtype.type(value)
            case tir.Local(name):
                return self._locals[name]
            case tir.Element(tile):
                places = [self._tiles[tile][place] for place in self._places(expr)]
                lanes = self._lane and self._across(expr)
                return np.asarray(places, self._dtype) if lanes else places[0]
            case tir.Load(name, index):
                array = self._arrays[name]
                places, inside = self._inside(array, name, index, expr.line)
                if not array.size:
                    return np.zeros(inside.shape, self._dtype)
                safe = [np.where(inside, p, 0) for p in places]
                return np.where(inside, array[tuple(safe)], self._dtype.type(0))
            case tir.IndexValue(dim):
                return np.asarray(self._dim(dim)).astype(self._dtype)
            case tir.Test(dim, exact):
                value = self._dim(dim)
                return np.equal(value, 0) if exact else np.greater_equal(value, 0)
            case tir.Choose(condition, x, y):
                outer, wanted = self._mask, self._of(condition)
                self._mask = np.logical_and(outer, wanted)
                first = self._of(x)
                self._mask = np.logical_and(outer, np.logical_not(wanted))
                second = self._of(y)
                self._mask = outer
                return np.where(wanted, first, second)
            case tir.Apply("where", (condition, x, y)):
                return np.where(self._of(condition), self._of(x), self._of(y))
            case tir.Apply(function, arguments):
                return SCALAR_FUNCTIONS[function].meaning(*map(self._of, arguments))
        raise AssertionError(expr)


def tasks_of(factors: Sequence[tir.Factor], values: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The tasks of a composition of mappings, those of one worker after the other.

    The algebra is Hidet's (arXiv 2210.09603): worker `w1 * inner_workers + w2` executes, at each
    task of the outer mapping's worker w1, all tasks of the inner mapping's worker w2.
    """
    extents = [[evaluate(d, values) for d in factor.extents] for factor in factors]
    for worker in product(*(_tasks_by_worker(factor, values) for factor in factors)):
        for tasks in product(*worker):
            found = [0] * len(extents[0])
            for task, sizes in zip(tasks, extents, strict=True):
                found = [o * n + i for o, n, i in zip(found, sizes, task, strict=True)]
            yield tuple(found)


def _tasks_by_worker(
    factor: tir.Factor, values: Mapping[str, int]
) -> Sequence[Sequence[tuple[int, ...]]]:
    """The tasks of each worker of a mapping, in the order in which it executes them."""
    extents = [evaluate(d, values) for d in factor.extents]
    if factor.kind == "partition":
        cut = zip(extents, (evaluate(d, values) for d in factor.parts), strict=True)
        rows = ([range(*bounds(n, parts, i)) for i in range(parts)] for n, parts in cut)
        return [list(product(*block)) for block in product(*rows)]
    order = sorted(range(len(extents)), key=factor.ranks.__getitem__)
    visits = product(*(range(extents[axis]) for axis in order))
    tasks = [tuple(visit[level] for level in factor.ranks) for visit in visits]
    return [tasks] if factor.kind == "repeat" else [[task] for task in tasks]
