"""Compositions of operators that front ends share: constants of a dtype, known elements of tensors,
views, reductions that keep their axes, products of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftuner.core.dim import Dim
from ftuner.core.dtype import DType
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.graph.algebra import concat
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Value, building
from ftuner.graph.operator import axis_of
from ftuner.graph.specialization import RunTimeNumberError


@dataclass(frozen=True)
class Composer:
    """Adds operators, and compositions of them, to a builder."""

    builder: Builder = field(default_factory=Builder)
    answers: Mapping[str, Array] = field(default_factory=dict)
    """The elements that are known by now of tensors which come at run time, by their names; of
    those that are extents the builder has the dims."""

    def add(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        return self.builder.add(op, *inputs, **attributes)

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        """The error that ftuner cannot compute `what` of the current node."""
        return UnsupportedOperatorError(f"{self.builder.where}: {what}")

    def needed(self, value: Value, what: str, exact: bool) -> RunTimeNumberError:
        """The error that elements of a tensor must be known first; see `graph.specialization`."""
        message = f"{self.builder.where}: {what} is known only at run time (data-dependent shape)"
        return RunTimeNumberError(value, exact, message)

    def malformed(self, what: str) -> GraphError:
        return GraphError(f"{self.builder.where}: {what}")

    # Known elements of tensors.

    def has_dims(self, value: Value) -> bool:
        """Whether the elements of a tensor of integers are numbers or dims, or presumed to be."""
        known = value.dims is not None or value.constant is not None
        return known or self.builder.known.presumed(value) is not None

    def dims_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of a vector of integers, as numbers or as dims.

        Raises:
            RunTimeNumberError: they are neither.
            GraphError: it has another number of axes.
        """
        if value.rank != 1:
            raise self.malformed(f"{what} is {value.type}; expected one axis")
        return self._dims_of(value, what)

    def _dims_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        if value.dtype.kind not in ("int", "uint"):
            raise self.malformed(f"{what} is {value.type}; expected integers")
        if value.constant is not None:
            return tuple(map(int, value.constant.ravel()))
        if value.dims is None:
            found = self.builder.known.presumed(value)
            if found is None:
                raise self.needed(value, what, exact=False)
            return found
        return value.dims

    def dim_of(self, value: Value, what: str) -> Dim:
        """The element of an integer scalar, or of a vector of one element."""
        found = self._dims_of(value, what)
        if len(found) != 1 or value.rank > 1:
            raise self.malformed(f"{what} is {value.type}; expected one element")
        return found[0]

    def integers_of(self, value: Value, what: str) -> tuple[int, ...]:
        """The elements of a vector of integers, all known now.

        Raises:
            RunTimeNumberError: they are not.
            GraphError: it has another number of axes.
        """
        if value.rank != 1:
            raise self.malformed(f"{what} is {value.type}; expected one axis")
        return self._integers_of(value, what)

    def _integers_of(self, value: Value, what: str) -> tuple[int, ...]:
        if value.dtype.kind not in ("int", "uint"):
            raise self.malformed(f"{what} is {value.type}; expected integers")
        dims = value.dims if value.constant is None else self._dims_of(value, what)
        if dims is not None:
            integers = tuple(n for n in dims if isinstance(n, int))
            if len(integers) == len(dims):
                return integers
        found = self.answers.get(value.name)
        if found is None:
            raise self.needed(value, what, exact=True)
        return tuple(map(int, found.ravel()))

    def known(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Dims that must be known now.

        Raises:
            RunTimeNumberError: they depend on the extents of inputs.
        """
        value = self.builder.dims(dims)
        return self._integers_of(value, what)

    def integer_of(self, value: Value, what: str) -> int:
        """The element, known now, of an integer scalar or of a vector of one element."""
        found = self._integers_of(value, what)
        if len(found) != 1 or value.rank > 1:
            raise self.malformed(f"{what} is {value.type}; expected one element")
        return found[0]

    def array_of(self, value: Value, what: str) -> Array:
        """The elements of a constant."""
        if value.constant is not None:
            return value.constant
        found = self.answers.get(value.name)
        if found is None:
            raise self.needed(value, what, exact=True)
        return found

    def axis(self, axis: int, rank: int) -> int:
        return axis_of(axis, rank, self.builder.where)

    def axes(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Axes counted from the front, in order.

        Raises:
            GraphError: an axis is repeated.
        """
        found = sorted(self.axis(axis, rank) for axis in axes)
        if len(set(found)) != len(found):
            raise self.malformed(f"axes {found} are not different")
        return tuple(found)

    # The algebra, of this builder whichever is being written to.

    def scalar(self, value: float, dtype: DType) -> Value:
        with self.builder.writing():
            return self.builder.scalar(value, dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        with self.builder.writing():
            return x.cast(dtype)

    def slice(self, x: Value, axis: int, start: Dim, extent: Dim) -> Value:
        with self.builder.writing():
            return x.slice(axis, start, extent)

    def pieces(self, x: Value, axis: int, extents: Sequence[Dim]) -> list[Value]:
        with self.builder.writing():
            return x.pieces(axis, extents)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        with self.builder.writing():
            return concat(values, axis)

    def reduce(self, x: Value, kind: str, axes: Sequence[int], keep: bool = True) -> Value:
        with self.builder.writing():
            return x.reduce(kind, axes, keep)


def composer() -> Composer:
    """A composer for the builder that is being written to."""
    builder = building()
    assert isinstance(builder, Builder)
    return Composer(builder)


def apply_many(op: str, *operands: Value, **attributes: Any) -> tuple[Value, ...]:
    """The results of an operator of the table that has several."""
    return composer().builder.add_many(op, *operands, **attributes)
