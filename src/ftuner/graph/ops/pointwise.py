"""Operators on elements: all scalar functions, `where`, `cast` and `bit_cast`, with
broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from ftuner.core.dim import Dim, Shape, broadcast, least_value, minimum, shares_symbols
from ftuner.core.dtype import BFLOAT16, BOOL, STRING, UINT64, DType, converted_through
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.index_expr import Index, Writer
from ftuner.core.symbolic import Atom
from ftuner.errors import GraphError, InputError, ShapeError
from ftuner.graph.arrays import converted, held_in, of_bfloat16, words
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    Define,
    ElementWriter,
    Numerics,
    Operator,
    Require,
    Types,
    elementwise,
)

MAX_BROADCAST = 64
"""Different extents, unknown before run time, that are broadcast with each other along one axis."""
_NUMERICS = {
    **dict.fromkeys(("maximum", "minimum"), Numerics.LIMIT),
    **dict.fromkeys(("sin", "cos", "tan"), Numerics.PERIODIC),
}
"""Of the functions whose numerics are not plain."""


def _parts(extent: Dim) -> tuple[Dim, ...]:
    """The extents that were broadcast to give another."""
    found: list[Dim] = []
    left = [extent]
    while left:
        part = left.pop()
        atom = _broadcast_of(part)
        if atom is None:
            found.append(part)
        else:
            left += (atom.y, atom.x)
    return tuple(found)


def _broadcast_of(extent: Dim) -> Atom | None:
    """The extent as a broadcast of two others; None if it is none."""
    atom = _atom_of(extent)
    return atom if atom is not None and atom.kind == "broadcast" else None


def _atom_of(extent: Dim) -> Atom | None:
    """The extent as one function of other extents; None if it is a sum or a number."""
    if isinstance(extent, int) or len(extent.terms) > 1:
        return None
    ((atoms, coefficient),) = extent.terms
    alone = coefficient == 1 and len(atoms) == 1
    return atoms[0] if alone and isinstance(atoms[0], Atom) else None


def _is_at_most_one(extent: Dim) -> bool:
    """Whether an extent is known to be one or zero, such as that of a slice of one element."""
    # `1 - extent` is an atom that is zero or more where a slice begins at `max(1 - S, 0)`.
    left = least_value(1 - extent)
    if left is not None and left >= 0:
        return True
    atom = _atom_of(extent)
    if atom is None or atom.kind != "minimum":
        return False
    return _is_at_most_one(atom.x) or _is_at_most_one(atom.y)


def _are_taken_to_be_equal(x: Dim, y: Dim) -> bool:
    """Whether two extents of one symbol, such as S and min(S, 512), must be equal: neither is
    expected to be 1 while the other is not."""
    return shares_symbols(x, y) and not (_is_at_most_one(x) or _is_at_most_one(y))


def _is_alone(extent: Dim) -> bool:
    return _broadcast_of(extent) is None


def _holds(whole: Dim, extent: Dim) -> bool:
    """Whether an extent is one of those that were broadcast to give another."""
    return set(_parts(whole)).issuperset(_parts(extent))


def _together(x: Dim, y: Dim, require: Require, what: str) -> Dim:
    """The extent of the broadcast of two axes."""
    if y == 1 or _holds(x, y) or y == minimum(1, x):
        return x
    if x == 1 or _holds(y, x) or x == minimum(1, y):
        return y
    parts, others = list(_parts(x)), _parts(y)
    agree = len(parts) == len(others) == 1 and _are_taken_to_be_equal(x, y)
    require(x, y, what, not agree)
    for other in others:
        if other not in parts:
            _join(parts, other, require, what)
    if len(parts) > MAX_BROADCAST:
        raise ShapeError(
            f"{what}: more than {MAX_BROADCAST} different extents that are unknown before run time "
            "are broadcast along one axis; give the axes that agree one name"
        )
    return reduce(broadcast, parts)


def _join(parts: list[Dim], other: Dim, require: Require, what: str) -> None:
    """Add an extent to those that are broadcast, unless one of them implies it."""
    for i, part in enumerate(parts):
        if part == minimum(1, other):
            parts[i] = other
            return
        if other == minimum(1, part):
            return
        if _are_taken_to_be_equal(part, other):
            require(part, other, what)
            parts[i] = min(part, other, key=lambda d: (len(str(d)), str(d)))
            return
    parts.append(other)


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
        elif _is_alone(extent) and _is_alone(whole) and _are_taken_to_be_equal(extent, whole):
            found.append(at)
        else:
            # The extent is 1 or that of the result, which is known at run time only.
            found.append(writer.multiply(at, writer.integer(minimum(extent - 1, 1))))
    return found


def is_pointwise(op: str) -> bool:
    """Whether an element of the result of an operator is a function of elements of the operands."""
    return op in SCALAR_FUNCTIONS or op in ("where", "cast", "bit_cast")


def _applied(function: str) -> Define:
    """The definition that applies a scalar function to elements."""

    def write(writer: ElementWriter) -> int:
        shape = writer.result.shape
        arguments = [
            writer.load(i, broadcast_index(writer, t.shape, shape, writer.at))
            for i, t in enumerate(writer.types)
        ]
        return writer.step(function, writer.result.dtype, *arguments)

    return elementwise(write)


def pointwise(name: str) -> Operator:
    """The operator that applies a scalar function to elements."""
    function = SCALAR_FUNCTIONS[name]

    def infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
        if len(types) != function.arity:
            raise GraphError(f"{name} of {len(types)} operands; expected {function.arity}")
        dtype = types[0].dtype
        if any(t.dtype != dtype for t in types) or dtype.kind not in function.kinds:
            raise GraphError(f"{name} of {', '.join(str(t.dtype) for t in types)}")
        shape = broadcast_shape([t.shape for t in types], require, name)
        return (TensorType(BOOL if function.result == "bool" else dtype, shape),)

    numerics = _NUMERICS.get(name, Numerics.PLAIN)
    return Operator(name, infer, function.meaning, _applied(name), numerics=numerics)


def _infer_where(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    condition, x, y = types
    if condition.dtype != BOOL or x.dtype != y.dtype:
        raise GraphError(f"where of {condition.dtype}, {x.dtype}, {y.dtype}; expected bool and "
                         "two of one dtype")  # fmt: skip
    return (TensorType(x.dtype, broadcast_shape([t.shape for t in types], require, "where")),)


def _infer_cast(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    return (TensorType(attributes["to"], types[0].shape),)


def _reference_cast(x: Any, to: DType, explicit: bool = False) -> Any:
    """Convert as `core.dtype.converted_through` says; C and NumPy leave open what floats out of
    range give."""
    x = np.asarray(x)
    if to == STRING or x.dtype.hasobject:
        return _texts(x) if to == STRING else _numbers(x, to)
    if x.dtype.kind != "f" or to.kind not in ("int", "uint"):
        with np.errstate(all="ignore"):
            return x.astype(held_in(to))
    through = converted_through(to)
    limit = x.dtype.type(2.0 ** (through.bits - 1))
    with np.errstate(all="ignore"):
        above = (x >= limit) & (to == UINT64)
        x = np.where(above, x - limit, x)
        whole = np.where(np.abs(x) < limit, x, -limit).astype(through.name)
        return (whole ^ np.where(above, -limit, 0).astype(through.name)).astype(to.name)


def _texts(x: Any) -> Any:
    """Numbers as onnxruntime writes them."""
    if x.dtype.hasobject:
        return x
    write = "{:.8g}".format if x.dtype.kind == "f" else lambda n: str(int(n))
    names = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    written = map(write, x.ravel().tolist())
    return np.array([names.get(t, t) for t in written], object).reshape(x.shape)


def _numbers(x: Any, to: DType) -> Any:
    """Texts as numbers.

    Raises:
        InputError: a text is no number, or one out of range.
    """
    read = float if to.kind == "float" else int
    try:
        return np.array([read(t) for t in x.flat], held_in(to)).reshape(x.shape)
    except (ValueError, OverflowError) as error:
        raise InputError(f"a text is cast to {to}: {error}") from None


@elementwise
def _define_cast(writer: ElementWriter) -> int:
    return writer.cast(writer.load(0, writer.at), writer.result.dtype)


def _infer_bit_cast(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, ...]:
    (x,), of, to = types, attributes["of"], attributes["to"]
    if x.dtype != of:
        raise GraphError(f"bit_cast of {x.dtype}; the attribute says {of}")
    if STRING in (of, to):
        raise GraphError(f"bit_cast of {of} to {to}: strings have no bits")
    if of.itemsize != to.itemsize:
        raise GraphError(
            f"bit_cast of {of} to {to}: {of.bits} bits and {to.bits}; expected as many"
        )
    return (TensorType(to, x.shape),)


def _reference_bit_cast(x: Any, of: DType, to: DType) -> Any:
    bits = words(converted(x, of), of)
    if to == BFLOAT16:
        return of_bfloat16(bits.view(np.uint16))
    return bits.view(np.uint8) != 0 if to == BOOL else bits.view(to.name)


@elementwise
def _define_bit_cast(writer: ElementWriter) -> int:
    return writer.step("bit_cast", writer.result.dtype, writer.load(0, writer.at))


def _reference_where(condition: Any, x: Any, y: Any) -> Any:
    # NumPy's function has no signature before NumPy 2.4.
    return np.where(condition, x, y)


OPERATORS = (
    *(pointwise(name) for name in SCALAR_FUNCTIONS),
    Operator("where", _infer_where, _reference_where, _applied("where")),
    Operator("cast", _infer_cast, _reference_cast, _define_cast),
    Operator("bit_cast", _infer_bit_cast, _reference_bit_cast, _define_bit_cast, exact_from=0),
)
"""`bit_cast` gives the numbers of the dtype `to` whose bits in memory are those of the operand's,
which is of the dtype `of`: references get half precision in float32. A bool is a byte, which is
true unless it is zero. A NaN of half precision that signals becomes a quiet one."""
