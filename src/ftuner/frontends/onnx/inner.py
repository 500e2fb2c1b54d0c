"""Makes nodes that run graphs: loops, and choices between two graphs.

A graph within a node is imported into a builder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ftuner.core.dim import Dim, Symbolic, maximum, product, symbols_of
from ftuner.core.dtype import BOOL, INT64, DType
from ftuner.errors import IndexRangeError, ShapeError
from ftuner.frontends.onnx.context import (
    CarriedNumberError,
    CarriedTypeError,
    Context,
    Growing,
    Items,
    Operand,
    Pieces,
)
from ftuner.graph.algebra import concat, constant, scalar
from ftuner.graph.checks import unsupported
from ftuner.graph.inner import bound_within, choose, closed, symbols_used
from ftuner.graph.ir import TensorType, Value
from ftuner.graph.specialization import RunTimeNumberError


class Step(NamedTuple):
    """What one iteration of a loop gives."""

    condition: Operand | None
    """Whether to go on; None for as before."""
    carried: Sequence[Operand]
    stacked: Sequence[Operand]


Body = Callable[[Context, Sequence[Operand]], Step]
"""Imports an iteration for some carried values."""
Branch = Callable[[Context], Sequence[Operand]]


def _step(context: Context, body: Body, values: Sequence[Operand]) -> Step:
    """An iteration, in the graph of a context."""
    with context.builder.writing():
        return body(context, values)


def looped(
    context: Context, trips: Value, going: Value, initial: Sequence[Value], body: Body,
    optional: int, alike: int = 0,
) -> list[Value]:  # fmt: skip
    """The results of a loop whose graph is compiled once: the last carried values and the stacked
    ones. Extents of carried values may change from iteration to iteration.

    Args:
        initial: the carried values before the first iteration, of which the first is its number.
        optional: how many of the first carried values are left out, with their results, if
            iterations do not read them.
        alike: how many of the last stacked values must have extents that are known before the loop.

    Raises:
        CarriedNumberError: the graph differs from iteration to iteration.
        CarriedTypeError: a carried value changes its element type or its number of axes.
    """
    types, varying = [v.type for v in initial], set[str]()
    while True:
        inner = context.within()
        given = [inner.builder.input(inner.builder.name(), t.dtype, t.shape) for t in types]
        try:
            step = _step(inner, body, given)
        except RunTimeNumberError as need:
            _hoist(context, inner, need.value, given, varying)
            raise
        carried = [_tensor(context, v) for v in step.carried]
        wider = _widened(context, types, carried, varying)
        if wider == types:
            break
        types = wider
    conditions = [] if step.condition is None else [_tensor(context, step.condition)]
    if any(v.constant is not None and v.constant.all() for v in conditions):
        conditions = []
    stacked = [_tensor(context, v) for v in step.stacked]
    unread = _unread(inner, given[:optional], carried, [*conditions, *stacked])
    kept = [i for i in range(len(given)) if i not in unread]
    graph, captured = closed(
        inner.builder, [given[i] for i in kept],
        [*conditions, *(carried[i] for i in kept), *stacked],
    )  # fmt: skip
    own = varying | bound_within(inner.builder)
    for value in stacked[len(stacked) - alike :]:
        if not own.isdisjoint(symbols_of(value.shape)):
            raise CarriedNumberError(f"{inner.builder.where}: a sequence of unequal tensors")
    results = _Results(context, own)
    found = [results.type(types[i].dtype, types[i].shape) for i in kept]
    if stacked:
        count = _count(trips, going) if not conditions else None
        if count is None:
            count = results.symbol()
        found += [results.type(v.dtype, v.shape, (count,)) for v in stacked]
    empty = [_empty(t, results.symbols) for t in found[len(kept) :]]
    if any(not own.isdisjoint(symbols_of(v.shape)) for v in stacked):
        empty = _stacked_of_none(context, initial, body) or empty
    made = context.builder.add_many(
        "loop", trips, going, *(initial[i] for i in kept), *captured, *empty,
        body=graph, carried=len(kept), conditional=bool(conditions),
        types=tuple(found), counts=tuple(results.symbols),
    )  # fmt: skip
    return [*made[len(kept) - (len(initial) - optional) :]]


def appended(
    context: Context, trips: Value, going: Value, initial: Sequence[Operand], body: Body,
    optional: int,
) -> list[Operand]:  # fmt: skip
    """The results of a loop that carries sequences, each of which an iteration appends one tensor
    to and does not read. These tensors are stacked. Arguments and results are those of `looped`.

    Raises:
        CarriedNumberError: an iteration does something else to a sequence, tensors of a sequence
            have unequal shapes, or as `looped`.
        GraphError: as `looped`.
    """
    sequences = {i: Growing(object()) for i, v in enumerate(initial) if not isinstance(v, Value)}
    tensors = [v for v in initial if isinstance(v, Value)]

    def step(inner: Context, values: Sequence[Operand]) -> Step:
        given = iter(values)
        operands = [sequences[i] if i in sequences else next(given) for i in range(len(initial))]
        found = _step(inner, body, operands)
        carried = [v for i, v in enumerate(found.carried) if i not in sequences]
        return Step(
            found.condition, carried,
            [*found.stacked, *(_grown(inner, found.carried[i], x) for i, x in sequences.items())],
        )  # fmt: skip

    made = looped(context, trips, going, tensors, step, optional, alike=len(sequences))
    last = iter(made[: len(tensors) - optional])
    stacked = made[len(tensors) - optional : len(made) - len(sequences)]
    grown = dict(zip(sequences, made[len(made) - len(sequences) :], strict=True))
    carried = [
        next(last) if isinstance(before, Value) else _continued(context, before, grown[i])
        for i, before in enumerate(initial)
        if i >= optional
    ]
    return [*carried, *stacked]


def _grown(inner: Context, found: Operand, before: Growing) -> Value:
    """The tensor that an iteration appended to a carried sequence."""
    if isinstance(found, Growing) and found.before is before.before and len(found.appended) == 1:
        return found.appended[0]
    raise CarriedNumberError(
        f"{inner.builder.where}: an iteration that does not append one tensor to a sequence"
    )


def _continued(context: Context, before: Operand, stacked: Value) -> Pieces:
    """A sequence, followed by the tensors along the first axis of a stack."""
    values = before.values if isinstance(before, Items) else None
    if values is None or any(
        (v.dtype, v.shape) != (stacked.dtype, stacked.shape[1:]) for v in values
    ):
        raise CarriedNumberError(
            f"{context.builder.where}: a loop appends to a sequence of unequal tensors"
        )
    return Pieces(concat([*(v.unsqueeze([0]) for v in values), stacked], 0), 0, 1, keepdims=False)


def unrolled(
    context: Context, trips: int, going: Value, initial: Sequence[Operand], body: Body,
    optional: int, asks: bool,
) -> list[Operand] | None:  # fmt: skip
    """The results of a loop whose iterations follow each other in the graph; see `looped`. None if
    a condition is known only at run time, unless one `asks` for it. `initial`: as of `looped`."""
    values = list(initial)
    parts: list[list[Value]] = []
    for _ in range(trips):
        if going.constant is None and not asks:
            return None
        if not context.array_of(going, "the condition").all():
            break
        step = _step(context, body, values)
        values = list(step.carried)
        parts.append([_tensor(context, v) for v in step.stacked])
        going = going if step.condition is None else _tensor(context, step.condition)
    if parts:
        stacked = [
            concat([v.unsqueeze([0]) for v in found], 0) for found in zip(*parts, strict=True)
        ]
    else:
        stacked = _stacked_of_none(context, values, body, asks=True) or []
    return [*values[optional:], *stacked]


def _stacked_of_none(
    context: Context, initial: Sequence[Operand], body: Body, asks: bool = False
) -> list[Value] | None:
    """The stacked results of no iteration, with the extents that a first one would give. Those that
    it would compute of data are 0, because the data may not exist: it would often read an element
    of an empty tensor. None where the structure of the graph depends on data, unless one `asks` for
    it."""
    inner, unknown = context.within(), set[str]()
    try:
        step = _step(inner, body, initial)
    except (RunTimeNumberError, ShapeError, IndexRangeError) as error:
        first, inner = inner, context.within()
        inner.builder.unknown = unknown
        try:
            step = _step(inner, body, initial)
        except RunTimeNumberError:
            if not isinstance(error, RunTimeNumberError):
                raise error from None
            if not asks:
                return None
            _hoist(context, first, error.value, (), set())
            raise error from None
    own = bound_within(inner.builder) | unknown
    types = [_tensor(context, v).type for v in step.stacked]
    return [_empty(TensorType(t.dtype, (0, *t.shape)), own) for t in types]


def chosen(context: Context, condition: Value, branches: Sequence[Branch]) -> list[Value] | None:
    """The results of the first of two graphs where a condition holds, else of the second. None if
    these have other types."""
    inners, results = [], []
    for branch in branches:
        inners.append(context.within())
        try:
            with inners[-1].builder.writing():
                outputs = branch(inners[-1])
        except RunTimeNumberError as need:
            _hoist(context, inners[-1], need.value, (), set())
            raise
        results.append([v for v in outputs if isinstance(v, Value)])
        if len(results[-1]) < len(outputs):
            return None
    if context.nested:
        _match_scalars(inners, results)
    kinds = [[(v.dtype, v.rank) for v in found] for found in results]
    if kinds[0] != kinds[1]:
        return None
    builders = [inner.builder for inner in inners]
    own = bound_within(builders[0]) | bound_within(builders[1])
    outer = _Results(context, own)
    types = [
        outer.type(x.dtype, [m if m == n else None for m, n in zip(x.shape, y.shape, strict=True)])
        for x, y in zip(*results, strict=True)
    ]
    return choose(context.builder, condition, builders, results, types, outer.symbols)


def _match_scalars(inners: Sequence[Context], results: Sequence[list[Value]]) -> None:
    """Take a result of one element for a scalar where it has axes after one branch alone, as flags
    that PaddlePaddle's loops carry do: such values are broadcast alike."""
    for i, pair in enumerate(zip(*results, strict=False)):
        if pair[0].rank != pair[1].rank and all(product(v.shape) == 1 for v in pair):
            for inner, found in zip(inners, results, strict=True):
                with inner.builder.writing():
                    found[i] = found[i].reshape(())


class _Results:
    """The types of the results of a node that runs graphs. Symbols that only the graphs know are
    replaced by `symbols`, which the node binds."""

    def __init__(self, context: Context, own: set[str]) -> None:
        self._context, self._own = context, own
        self.symbols: list[str] = []

    def symbol(self) -> Symbolic:
        found = self._context.names.fresh("extent")
        self.symbols.append(str(found))
        return found

    def type(
        self, dtype: DType, shape: Sequence[Dim | None], first: tuple[Dim, ...] = ()
    ) -> TensorType:
        """A type. None is an extent that is known only at run time."""
        dims = (
            self.symbol() if n is None or not self._own.isdisjoint(symbols_of([n])) else n
            for n in shape
        )
        return TensorType(dtype, (*first, *dims))


def _tensor(context: Context, operand: Operand) -> Value:
    if isinstance(operand, Growing):
        raise CarriedNumberError(f"{context.builder.where}: a sequence that a loop appends to")
    if not isinstance(operand, Value):
        raise unsupported("a sequence whose length is known only at run time")
    return operand


def _widened(
    context: Context, types: Sequence[TensorType], carried: Sequence[Value], varying: set[str]
) -> list[TensorType]:
    """The types of carried values, with symbols for extents that iterations change. These are added
    to `varying`."""
    found = []
    for number, (before, after) in enumerate(zip(types, carried, strict=True)):
        if (before.dtype, before.rank) != (after.dtype, after.rank):
            raise CarriedTypeError(
                f"{context.builder.where}: carried value {number} is {before} before an iteration "
                f"and {after.type} after it; expected one element type and number of axes"
            )
        dims: list[Dim] = []
        for m, n in zip(before.shape, after.shape, strict=True):
            if m != n and str(m) not in varying:
                m = context.names.fresh("carried")
                varying.add(str(m))
            dims.append(m)
        found.append(TensorType(before.dtype, tuple(dims)))
    return found


def _unread(
    inner: Context, optional: Sequence[Value], carried: Sequence[Value], others: Sequence[Value]
) -> set[int]:
    """Which carried values only they themselves depend on."""
    found = set()
    for number, value in enumerate(optional):
        outputs = [*others, *(v for i, v in enumerate(carried) if i != number and i not in found)]
        graph = inner.builder.graph((), [("", v) for v in outputs])
        read = {v for node in graph.nodes for v in node.inputs}
        if value not in read and all(v is not value for _, v in graph.outputs):
            found.add(number)
    return found


def _count(trips: Value, going: Value) -> Dim | None:
    """The number of iterations of a loop without a condition, if it is known as a dim."""
    if trips.dims is None or going.constant is None:
        return None
    (count,) = trips.dims
    return maximum(count, 0) if going.constant.all() else 0


def _empty(type_: TensorType, unknown: Iterable[str]) -> Value:
    """A stacked result of no iteration: extents that iterations would decide are 0."""
    without = set(unknown)
    shape = [0 if not without.isdisjoint(symbols_of([n])) else n for n in type_.shape[1:]]
    nothing = constant(np.zeros((0,) + (1,) * len(shape)), type_.dtype)
    return nothing.broadcast((0, *shape))


def _hoist(
    context: Context, inner: Context, value: Value, given: Sequence[Value], varying: set[str]
) -> None:
    """Have the nodes around a graph compute a value that the graph needs as a number.

    Raises:
        CarriedNumberError: it depends on what a loop carries.
    """
    graph = inner.builder.graph((), [("", value)])
    read = {v for node in graph.nodes for v in node.inputs} | {v for _, v in graph.outputs}
    used = set(symbols_used(replace(graph, constraints=()), ()))
    if not read.isdisjoint(given) or not used.isdisjoint(varying):
        raise CarriedNumberError(
            f"{inner.builder.where}: a number that depends on what a loop carries must be known "
            "(data-dependent shape)"
        )
    context.builder.nodes += graph.nodes


def starting() -> tuple[Value, Value]:
    """The number 0 of the first iteration, and a condition that holds."""
    return scalar(0, INT64), scalar(True, BOOL)
