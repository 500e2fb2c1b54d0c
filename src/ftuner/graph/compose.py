"""Compositions of operators that front ends share: constants of a dtype, known elements of tensors,
views, reductions that keep their axes, products of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftuner.core.dim import Dim, Shape, maximum, product
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, HALF_DTYPES, DType
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.graph.answers import RunTimeNumberError
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Value
from ftuner.graph.operator import axis_of
from ftuner.graph.ops.pointwise import broadcast_shape


@dataclass(frozen=True)
class Composer:
    """Adds operators, and compositions of them, to a builder."""

    builder: Builder = field(default_factory=Builder)
    answers: Mapping[str, Array] = field(default_factory=dict)
    """The elements that are known by now of tensors which come at run time, by their names; of
    those that are extents the builder has the dims."""
    _scalars: dict[tuple[object, DType], Value] = field(default_factory=dict)

    def add(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        return self.builder.add(op, *inputs, **attributes)

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        """The error that ftuner cannot compute `what` of the current node."""
        return UnsupportedOperatorError(f"{self.builder.where}: {what}")

    def needed(self, value: Value, what: str, exact: bool) -> RunTimeNumberError:
        """The error that elements of a tensor must be known first; see `graph.answers`."""
        message = f"{self.builder.where}: {what} is known only at run time (data-dependent shape)"
        return RunTimeNumberError(value, exact, message)

    def malformed(self, what: str) -> GraphError:
        return GraphError(f"{self.builder.where}: {what}")

    # Constants and dtypes.

    def scalar(self, value: float, dtype: DType) -> Value:
        """A constant without axes."""
        key = (str(value), dtype)
        if key not in self._scalars:
            try:
                if dtype.kind in ("int", "uint") and value != int(value):
                    raise ValueError
                self._scalars[key] = self.builder.constant(value, dtype)
            except (OverflowError, ValueError):
                raise self.malformed(f"no {dtype} is {value}") from None
        return self._scalars[key]

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.add("cast", x, to=dtype)

    def cast_explicitly(self, x: Value, dtype: DType) -> Value:
        """A conversion that the model asks for: it rounds to half precision on every device.
        Integers are float32 first, as in onnxruntime."""
        if dtype.name not in HALF_DTYPES or x.dtype in (dtype, BOOL):
            return self.cast(x, dtype)
        return self.add("cast", self.cast(x, FLOAT32), to=dtype, explicit=True)

    def computed(self, x: Value) -> Value:
        """The tensor in a floating dtype: its own, or float64 for integers."""
        return x if x.dtype.kind == "float" else self.cast(x, FLOAT64)

    def add_to(self, x: Value, addend: float) -> Value:
        return self.add("add", x, self.scalar(addend, x.dtype))

    def scaled(self, x: Value, factor: float) -> Value:
        return x if factor == 1 else self.add("multiply", x, self.scalar(factor, x.dtype))

    def at_least(self, x: Value, bound: float) -> Value:
        return self.add("maximum", x, self.scalar(bound, x.dtype))

    def at_most(self, x: Value, bound: float) -> Value:
        return self.add("minimum", x, self.scalar(bound, x.dtype))

    def count(self, dims: Iterable[Dim], dtype: DType) -> Value:
        """The number of elements of a shape, as a scalar."""
        return self.cast(self.builder.dims([product(dims)], ()), dtype)

    # Known elements of tensors.

    def has_dims(self, value: Value) -> bool:
        """Whether the elements of a tensor of integers are numbers or dims, or presumed to be."""
        known = value.dims is not None or value.constant is not None
        return known or self.builder.presumed(value) is not None

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
            found = self.builder.presumed(value)
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

    # Layout.

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.add("reshape", x, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        return x if perm == tuple(range(x.rank)) else self.add("transpose", x, perm=perm)

    def swapped(self, x: Value) -> Value:
        """The last two axes exchanged."""
        return self.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))

    def unsqueeze(self, x: Value, axes: Iterable[int]) -> Value:
        """The tensor with new axes of extent 1, whose numbers count in the result."""
        shape: list[Dim] = list(x.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(x, tuple(shape))

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """The tensor without some axes of extent 1."""
        for axis in axes:
            self.builder.require(x.shape[axis], 1, f"squeeze axis {axis} of {x.type}")
        return self.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))

    def broadcast(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.add("broadcast", x, shape=shape)

    def fitting(self, x: Value, result: Value, what: str) -> Value:
        """An operand broadcast to the shape of a result, which it must not enlarge."""
        text = f"{what} {x.type}, which does not broadcast to {result.type}"
        if x.rank > result.rank:
            raise self.malformed(text)
        require = self.builder.require
        whole = broadcast_shape([x.shape, result.shape], require, text)
        for extent, wanted in zip(whole, result.shape, strict=True):
            require(extent, wanted, text)
        return x

    def slice(self, x: Value, axis: int, start: Dim, extent: Dim, step: int = 1) -> Value:
        """The elements `start`, `start + step`, ... along an axis, `extent` of them."""
        if (start, step) == (0, 1) and extent == x.shape[axis]:
            return x
        starts: list[Dim] = [0] * x.rank
        steps = [1] * x.rank
        shape = list(x.shape)
        starts[axis], steps[axis], shape[axis] = start, step, extent
        return self.add("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))

    def pieces(self, x: Value, axis: int, extents: Sequence[Dim]) -> list[Value]:
        """The tensor split along an axis into pieces of the given extents."""
        found = []
        start: Dim = 0
        for extent in extents:
            found.append(self.slice(x, axis, start, extent))
            start = start + extent
        return found

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.add("concat", *values, axis=axis)

    def iota(self, extent: Dim, axis: int = 0, rank: int = 1) -> Value:
        """0, 1, 2, ... along one axis; the other axes have extent 1."""
        shape: list[Dim] = [1] * rank
        shape[axis] = extent
        return self.add("iota", shape=tuple(shape), axis=axis)

    # Reductions.

    def reduce(self, x: Value, kind: str, axes: Sequence[int], keep: bool = True) -> Value:
        result = self.add("reduce", x, kind=kind, axes=tuple(axes)) if axes else x
        return self.unsqueeze(result, axes) if keep and axes else result

    def mean(self, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
        """The mean over axes; of no element it is zero, as in onnxruntime."""
        # Half precision can hold neither the sum nor the count.
        wide = self.cast(x, FLOAT32) if x.dtype.name in HALF_DTYPES else x
        count = self.count([maximum(product(x.shape[a] for a in axes), 1)], wide.dtype)
        return self.cast(self.add("divide", self.reduce(wide, "sum", axes, keep), count), x.dtype)

    # Products.

    def matmul(self, a: Value, b: Value) -> Value:
        """The product as `numpy.matmul` defines it: a vector is a row or a column."""
        if a.rank == 0 or b.rank == 0:
            raise self.malformed(f"product of {a.type} and {b.type}")
        left = self.unsqueeze(a, [0]) if a.rank == 1 else a
        right = self.unsqueeze(b, [1]) if b.rank == 1 else b
        result = self.add("matmul", left, right)
        if b.rank == 1:
            result = self.squeeze(result, [result.rank - 1])
        if a.rank == 1:
            result = self.squeeze(result, [result.rank - min(b.rank, 2)])
        return result
