"""Operators on elements: all scalar functions, `where` and `cast`, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.definition import Index, Nest, Writer
from ftuner.core.dim import Atom, Dim, Shape, broadcast, minimum, shares_symbols
from ftuner.core.dtype import BOOL, DType
from ftuner.core.scalar import SCALAR_FUNCTIONS
from ftuner.errors import GraphError
from ftuner.graph.arrays import held_in
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import Attributes, Operator, Require, injective, load


def _parts(extent: Dim) -> tuple[Dim, ...]:
    """The extents of which the largest is meant."""
    if not isinstance(extent, int) and len(extent.terms) == 1:
        (atoms, coefficient), *_ = extent.terms
        if coefficient == 1 and len(atoms) == 1:
            (atom,) = atoms
            if isinstance(atom, Atom) and atom.kind == "broadcast":
                return _parts(atom.x) + _parts(atom.y)
    return (extent,)


def _holds(whole: Dim, extent: Dim) -> bool:
    """Whether an extent is one of those that were broadcast to give another."""
    return set(_parts(whole)).issuperset(_parts(extent))


def _together(x: Dim, y: Dim, require: Require, what: str) -> Dim:
    """The extent of two axes together."""
    if y == 1 or _holds(x, y):
        return x
    if x == 1 or _holds(y, x):
        return y
    parts = _parts(x)
    several = len(parts) > 1 or len(_parts(y)) > 1
    require(x, y, what, several or not shares_symbols(x, y))
    for part in _parts(y):
        x = x if part in parts else broadcast(x, part)
    return x


def broadcast_shape(shapes: Sequence[Shape], require: Require, what: str) -> Shape:
    """The shape that NumPy's broadcasting gives.

    Raises:
        ShapeError: extents that are known to differ, neither of them one.
    """
    rank = max(map(len, shapes))
    result: list[Dim] = []
    for axis in range(rank):
        extent: Dim = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            if at >= 0:
                extent = _together(extent, shape[at], require, what)
        result.append(extent)
    return tuple(result)


def broadcast_index(writer: Writer, shape: Shape, result: Shape, index: Index) -> list[int]:
    """The index into an operand of `shape` at an index of the broadcast result."""
    skipped = len(result) - len(shape)
    found = []
    for extent, whole, at in zip(shape, result[skipped:], index[skipped:], strict=True):
        if extent == whole:
            found.append(at)
        elif extent == 1:
            found.append(writer.integer(0))
        elif shares_symbols(extent, whole) and not _holds(whole, extent):
            found.append(at)
        else:
            # Either one, and read again and again, or as long as the result.
            found.append(writer.multiply(at, writer.integer(minimum(extent - 1, 1))))
    return found


def _define(types: Sequence[TensorType], attributes: Attributes, results: Sequence[TensorType],
            function: str) -> Nest:  # fmt: skip
    result = results[0]

    def body(writer: Writer, index: Index) -> int:
        arguments = [
            load(writer, types, i, broadcast_index(writer, t.shape, result.shape, index))
            for i, t in enumerate(types)
        ]
        return writer.step(function, result.dtype, *arguments)

    return injective(types, result, body)


def _pointwise(name: str) -> Operator:
    function = SCALAR_FUNCTIONS[name]

    def infer(
        types: Sequence[TensorType], attributes: Attributes, require: Require
    ) -> tuple[TensorType, ...]:
        if len(types) != function.arity:
            raise GraphError(f"{name} of {len(types)} operands; expected {function.arity}")
        dtype = types[0].dtype
        if any(t.dtype != dtype for t in types) or dtype.kind not in function.kinds:
            raise GraphError(f"{name} of {', '.join(str(t.dtype) for t in types)}")
        shape = broadcast_shape([t.shape for t in types], require, name)
        return (TensorType(BOOL if function.result == "bool" else dtype, shape),)

    def define(
        types: Sequence[TensorType], attributes: Attributes, results: Sequence[TensorType]
    ) -> Nest:
        return _define(types, attributes, results, name)

    return Operator(name, infer, function.reference, define)


def _infer_where(
    types: Sequence[TensorType], attributes: Attributes, require: Require
) -> tuple[TensorType, ...]:
    condition, x, y = types
    if condition.dtype != BOOL or x.dtype != y.dtype:
        raise GraphError(f"where of {condition.dtype}, {x.dtype}, {y.dtype}; expected bool and "
                         "two of one dtype")  # fmt: skip
    return (TensorType(x.dtype, broadcast_shape([t.shape for t in types], require, "where")),)


def _define_where(
    types: Sequence[TensorType], attributes: Attributes, results: Sequence[TensorType]
) -> Nest:
    return _define(types, attributes, results, "where")


def _infer_cast(
    types: Sequence[TensorType], attributes: Attributes, require: Require
) -> tuple[TensorType, ...]:
    return (TensorType(attributes["to"], types[0].shape),)


def _reference_cast(x: Any, to: DType) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(held_in(to))


def _define_cast(
    types: Sequence[TensorType], attributes: Attributes, results: Sequence[TensorType]
) -> Nest:
    def body(writer: Writer, index: Index) -> int:
        return writer.cast(load(writer, types, 0, index), attributes["to"])

    return injective(types, results[0], body)


POINTWISE = (
    *(_pointwise(name) for name in SCALAR_FUNCTIONS),
    Operator("where", _infer_where, np.where, _define_where),
    Operator("cast", _infer_cast, _reference_cast, _define_cast),
)
