"""What stands around a schedule in a graph, written into its loads and stores.

A pointwise operand of a schedule is computed where the schedule loads it (the prologue), and
pointwise operators that read its result where it stores (the epilogue). Both are nests
(`core.index_expr`); what they and the schedule read and write are views of the graph's buffers,
whose elements a program loads and stores by their number in the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ftuner.core.dim import (
    Dim,
    maximum,
    minimum,
    never_negative,
    product,
    quotient,
    remainder,
    symbol,
    symbols_of,
)
from ftuner.core.dtype import INT64, DType
from ftuner.core.expr import MAX_REPEATED_STEPS
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.index_expr import ABSENT, Nest, Step
from ftuner.graph.buffers import View
from ftuner.graph.fused_nest import FusedNest, number_of
from ftuner.tasks import program as tir

OWN = -1
"""The operand of an epilogue's nest that is the element of the schedule."""
_OF_INDICES: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": lambda x, y: x + y, "subtract": lambda x, y: x - y, "multiply": lambda x, y: x * y,
    "maximum": maximum, "minimum": minimum,
}  # fmt: skip
_DIVISIONS = {"divide": quotient, "remainder": remainder}
"""Of numbers that are zero or more: those of dims round down, those of nests towards zero."""
_Load = Callable[[Step, Sequence[Dim]], tir.Expr]


def element(
    nest: Nest, index: Sequence[Dim], load: _Load, dim: Callable[[Dim], Dim]
) -> tir.Expr | None:
    """The element of an injective nest at an index; None if the language of schedules cannot say
    it. `load`: an operand's element; `dim`: the name that a program has for a dim."""
    dtype = nest.steps[nest.stores[0].value].dtype
    found: list[tir.Expr | Dim] = []
    value: tir.Expr | Dim | None = None
    for step in nest.steps:
        value = _step(step, [found[a] for a in step.arguments], index, load, dim, dtype)
        if value is None:
            return None
        found.append(value)
    value = found[nest.stores[0].value]
    return value if isinstance(value, tir.Expr) else None


def _step(
    step: Step, given: list[tir.Expr | Dim], index: Sequence[Dim], load: _Load,
    dim: Callable[[Dim], Dim], dtype: DType,
) -> tir.Expr | Dim | None:  # fmt: skip
    indices = [x for x in given if not isinstance(x, tir.Expr)]
    whole = len(indices) == len(given)
    payload: Any = step.payload
    match step.op:
        case "index":
            position: Dim = index[payload]
            return position
        case "constant" | "dim" if step.dtype == INT64:
            return dim(payload)
        case "constant" if step.dtype == dtype:
            return tir.Number(float(payload))
        case "load" if step.dtype == dtype and whole:
            return load(step, indices)
        case "cast" if step.dtype == dtype and whole and step.arguments:
            (x,) = indices
            return tir.Number(float(x)) if isinstance(x, int) else tir.IndexValue(x)
        case "where" if step.dtype == dtype and not indices:
            parts = tuple(x for x in given if isinstance(x, tir.Expr))
            return tir.Choose(*parts) if payload == ABSENT else tir.Apply("where", parts)
    if whole and len(given) == 2:
        x, y = indices
        if step.op in tir.COMPARED:
            return tir.COMPARED[step.op](x, y)
        if step.dtype == INT64 and step.op in _OF_INDICES:
            return _OF_INDICES[step.op](x, y)
        if step.dtype == INT64 and step.op in _DIVISIONS and isinstance(y, int) and y > 0:
            return _DIVISIONS[step.op](x, y) if never_negative(x) else None
    row = SCALAR_FUNCTIONS.get(step.op)
    if row is None or indices or step.dtype.name not in (dtype.name, "bool"):
        return None
    return tir.Apply(step.op, tuple(x for x in given if isinstance(x, tir.Expr)))


def expressible(nest: FusedNest, dtype: DType) -> bool:
    """Whether a program of a dtype can compute the elements of a nest."""
    value = nest.nest.stores[0].value
    if nest.nest.steps[value].dtype != dtype or not nest.injective:
        return False
    # A program may load at an index below zero where it then uses none of it.
    index = [symbol(f"i{axis}") - 1 for axis in range(len(nest.nest.axes))]
    name = lambda dim: dim if isinstance(dim, int) else symbol("d")  # noqa: E731
    return element(nest.nest, index, lambda step, at: tir.Number(0.0), name) is not None


def computed_in_loads(program: tir.Program, array: str, nest: FusedNest, read_once: bool) -> bool:
    """Whether it pays to compute an operand where a program loads it: once for each element, or
    again where that is cheap. `read_once`: whether nothing else reads the operand."""
    cheap = not nest.expensive and len(nest.nest.steps) <= MAX_REPEATED_STEPS
    return cheap or (read_once and not _again(program.body, array))


def _again(body: Sequence[tir.Statement], array: str) -> bool:
    """Whether a program loads elements of an array more than once: by several loads, or within
    loops whose variables the index does not have."""

    def found(body: Sequence[tir.Statement], names: frozenset[str]) -> Iterator[bool]:
        for statement in body:
            for part in tir.expressions(statement):
                if isinstance(part, tir.Load) and part.array == array:
                    yield names <= set(symbols_of(part.index))
            inner = getattr(statement, "body", ())
            more = frozenset(statement.names if isinstance(statement, tir.Loop) else ())
            yield from found(inner, names | more)

    return [*found(body, frozenset())] != [True]


class Fusion:
    """Writes programs of one schedule for the views of a graph."""

    def __init__(self, values: Mapping[str, Dim], programs: Sequence[tir.Program]) -> None:
        """`values`: of the extents of the programs, in their order."""
        self._programs, self._dtype = programs, programs[0].dtype
        self.extents: dict[str, Dim] = dict(values)
        """The values of the programs' extents."""
        self._names = {value: symbol(name) for name, value in reversed([*values.items()])}
        inside = (s for p in programs for s in tir.statements(p.body) if isinstance(s, tir.Loop))
        self._taken = {*values, *(name for loop in inside for name in loop.names)}
        self.views: list[View] = []
        """What the programs read; their arrays are these, and then the outputs."""

    def fused(
        self, inputs: Sequence[FusedNest], outputs: Sequence[View], epilogue: FusedNest | None
    ) -> tuple[tir.Program, ...]:
        """The programs that read and write views, one for each combination of tiles, over the same
        arrays and extents.

        Args:
            inputs: what each input is, an injective and expressible nest.
            outputs: where the outputs are stored.
            epilogue: what becomes of the elements of the only output, if anything does.
        """
        first = self._programs[0]
        loads: dict[str, Callable[[Sequence[Dim]], tir.Expr]] = {
            array.name: partial(self._element, nest)
            for array, nest in zip(first.inputs, inputs, strict=True)
        }
        names = {a.name: f"y{number}" for number, a in enumerate(first.outputs)}
        targets = dict(zip(names, zip(names.values(), outputs, strict=True), strict=True))
        bodies = [self._block(p.body, loads, targets, epilogue) for p in self._programs]
        read = [self._array(f"x{number}", view) for number, view in enumerate(self.views)]
        written = [replace(self._array(name, v), is_output=True) for name, v in targets.values()]
        arrays = (*read, *written)
        extents = tuple(self.extents)
        return tuple(
            replace(p, arrays=arrays, extents=extents, body=body, file="")
            for p, body in zip(self._programs, bodies, strict=True)
        )

    def _dim(self, dim: Dim) -> Dim:
        """The name that the programs have for a dim of the graph."""
        if isinstance(dim, int):
            return dim
        if dim not in self._names:
            name = next(n for i in range(len(self._taken) + 1) if (n := f"d{i}") not in self._taken)
            self._taken.add(name)
            self.extents[name], self._names[dim] = dim, symbol(name)
        return self._names[dim]

    def _array(self, name: str, view: View) -> tir.Array:
        return tir.Array(name, self._dtype, (self._dim(product(view.shape)),), False)

    def _flat(self, view: View, index: Sequence[Dim]) -> tuple[Dim]:
        total = self._dim(view.layout.offset)
        for position, stride in zip(index, view.layout.strides, strict=True):
            total = total + position * self._dim(stride)
        return (total,)

    def _element(
        self, nest: FusedNest, index: Sequence[Dim], own: tir.Expr | None = None
    ) -> tir.Expr:
        def load(step: Step, at: Sequence[Dim]) -> tir.Expr:
            if step.payload == OWN:
                assert own is not None
                return own
            assert isinstance(step.payload, int)
            view = nest.views[step.payload]
            return tir.Load(f"x{number_of(view, self.views)}", self._flat(view, at))

        found = element(nest.nest, index, load, self._dim)
        assert found is not None, nest.title
        return found

    def _block(
        self, body: Sequence[tir.Statement],
        loads: Mapping[str, Callable[[Sequence[Dim]], tir.Expr]],
        targets: Mapping[str, tuple[str, View]], epilogue: FusedNest | None,
    ) -> tuple[tir.Statement, ...]:  # fmt: skip
        def of(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(of, part))
            if isinstance(part, tir.Load):
                if part.array in loads:
                    return loads[part.array](part.index)
                if part.array not in targets:
                    return part
                name, view = targets[part.array]
                return replace(part, array=name, index=self._flat(view, part.index))
            if isinstance(part, tir.MakePanel) or not isinstance(part, (tir.Expr, tir.Statement)):
                return part
            made = replace(part, **{f.name: of(getattr(part, f.name)) for f in fields(part)})  # type: ignore[type-var, arg-type]
            if isinstance(made, tir.Store) and made.array in targets:
                name, view = targets[made.array]
                value = made.value
                if epilogue is not None:
                    value = self._element(epilogue, made.index, value)
                return replace(made, array=name, index=self._flat(view, made.index), value=value)
            return made

        found: tuple[tir.Statement, ...] = of(tuple(body))
        return found
