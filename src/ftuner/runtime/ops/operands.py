"""What operators and models ask of their arguments on every device; where an operand is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ftuner.errors import ConfigurationError, DTypeError, InputError, OperandError, ShapeError

Float = TypeVar("Float", np.float32, np.float64)
"""Elements that are multiplied on a CPU."""
Offsets = Sequence[int] | npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Where requests begin, on the host."""


class Tensor(Protocol):
    """A torch tensor, in the memory of the CPU or of a GPU."""

    @property
    def is_cuda(self) -> bool: ...

    def data_ptr(self) -> int: ...


class Foreign(Protocol):
    """An object that NumPy views without a copy; arrays are such objects."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def on_gpu(value: object) -> bool:
    """Whether a value is a torch tensor on a GPU; asked without importing torch."""
    return bool(getattr(value, "is_cuda", False))


def checked_flag(value: object, name: str) -> bool:
    """`value`, if it is a boolean; 0 and 1 are.

    Raises:
        ConfigurationError: anything else, such as an array.
    """
    if isinstance(value, bool | int | np.bool_) and value in (0, 1):
        return bool(value)
    raise ConfigurationError(f"{name} is {value!r}; expected True or False")


def check_names(feeds: Mapping[str, object], names: Sequence[str]) -> None:
    """Raises InputError unless inputs are given by name, one for each name, and no other."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"inputs are a {type(feeds).__name__}; expected a mapping from names, "
            f"{', '.join(names) or 'none'}, to arrays"
        )
    if len(feeds) != len(names) or any(n not in feeds for n in names):
        missing = [n for n in names if n not in feeds]
        unknown = [n for n in feeds if n not in names]
        raise InputError(
            f"inputs are {', '.join(names)}; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(map(str, unknown)) or 'none'}"
        )


class Operand(Protocol):
    """A NumPy array, or a torch tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any: ...


def same_dtype(first: Operand, other: Operand, name: str) -> None:
    """Raises DTypeError unless both operands have one dtype."""
    if other.dtype != first.dtype:
        raise DTypeError(
            f"{name} has dtype {other.dtype}, the other operands {first.dtype}; convert one of them"
        )


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], size: int = 1) -> bool:
    """Whether two indices of an output may have one address, as in a broadcast view. `size`: of an
    element, in units of the strides."""
    span = size
    for extent, stride in sorted(zip(shape, map(abs, strides), strict=True), key=itemgetter(1)):
        if extent > 1:
            if stride < span:
                return True
            span += stride * (extent - 1)
    return False


class ProductShapes(NamedTuple):
    """The shapes of one product."""

    matrix: tuple[int, ...]
    """`(..., m, n)`, where a vector is a matrix of one row (a) or one column (b)."""
    result: tuple[int, ...]
    """The same without the axes that were added to vectors."""


def product_shapes(a: Sequence[int], b: Sequence[int]) -> ProductShapes:
    """From the shapes of a and b.

    Raises:
        ShapeError: a scalar; the extents of k differ; batch axes do not broadcast.
    """
    a, b = tuple(a), tuple(b)
    if not a or not b:
        raise ShapeError(f"a is {a} and b is {b}: a scalar is no matrix or vector")
    matrix = matrix_product_shape((1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b)
    result = matrix[:-1] if len(b) == 1 else matrix
    if len(a) == 1:
        result = (*matrix[:-2], matrix[-1]) if len(b) > 1 else matrix[:-2]
    return ProductShapes(matrix, result)


def matrix_product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `a @ b` for shapes of two axes or more.

    Raises:
        ShapeError: the extents of k differ, or the batch axes do not broadcast.
    """
    if a[-1] != b[-2]:
        raise ShapeError(
            f"a is {a} and b is {b}: a has {a[-1]} columns, b {b[-2]} rows; these must be equal"
        )
    batch = []
    for i in range(max(len(a), len(b)), 2, -1):
        x = a[-i] if i <= len(a) else 1
        y = b[-i] if i <= len(b) else 1
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"a is {a} and b is {b}: batch axes {a[:-2]} and {b[:-2]} do not broadcast"
            )
        batch.append(y if x == 1 else x)
    return (*batch, a[-2], b[-1])


def check_out(out: Operand, shape: tuple[int, ...], a: Operand, b: Operand) -> None:
    """Raises ShapeError or DTypeError unless `out` can hold the product of `a` and `b`, which has
    this shape."""
    if tuple(out.shape) != shape:
        raise ShapeError(
            f"out is {tuple(out.shape)}; the product of {tuple(a.shape)} and {tuple(b.shape)} is "
            f"{shape}"
        )
    if out.dtype != a.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, the operands {a.dtype}")


Range = tuple[int, int]
"""Addresses of a matrix: of its first byte, and of the byte after its last one."""


class Groups(NamedTuple):
    """Operands of grouped products, as many of each; whether they are matrices is not known yet."""

    a: list[object]
    b: list[object]
    out: list[object] | None

    @property
    def members(self) -> list[object]:
        """All of them."""
        return [*self.a, *self.b, *(self.out or ())]


def matched(a: object, b: object, out: object | None) -> Groups:
    """The members of sequences of one length.

    Raises:
        OperandError: a value that is not a sequence.
        ShapeError: sequences of several lengths.
    """
    found = Groups(
        _members(a, "a"), _members(b, "b"), None if out is None else _members(out, "out")
    )
    if len(found.a) != len(found.b):
        raise ShapeError(f"a has {len(found.a)} matrices, b {len(found.b)}: give one of each")
    if found.out is not None and len(found.out) != len(found.a):
        raise ShapeError(f"out has {len(found.out)} matrices, a and b {len(found.a)}")
    return found


def _members(value: object, name: str) -> list[object]:
    if isinstance(value, Iterable):
        try:
            return list(value)
        except (TypeError, NotImplementedError):
            # An array of no axes and a view of several in memory say that they can be walked,
            # until they are.
            pass
    raise OperandError(f"{name} is a {type(value).__name__}; expected a sequence of matrices")


def product_extents(
    number: int, a: Sequence[int], b: Sequence[int], out: Sequence[int] | None = None
) -> tuple[int, int]:
    """(m, n) of the group so numbered, from the shapes of its operands.

    Raises:
        ShapeError: ranks or extents that do not fit.
    """
    for name, shape in (("a", a), ("b", b)):
        if len(shape) != 2:
            raise ShapeError(f"{name}[{number}] is {tuple(shape)}; expected a matrix (two axes)")
    if a[1] != b[0]:
        raise ShapeError(
            f"group {number}: a is {tuple(a)} and b is {tuple(b)}: a has {a[1]} columns, b "
            f"{b[0]} rows"
        )
    if out is not None and tuple(out) != (a[0], b[1]):
        raise ShapeError(
            f"out[{number}] is {tuple(out)}; the product of {tuple(a)} and {tuple(b)} is "
            f"{(a[0], b[1])}"
        )
    return a[0], b[1]


def crossing(written: Sequence[Range], read: Sequence[Range]) -> list[bool]:
    """For each range that is written, whether it shares addresses with one that is read, or with
    another one that is written."""
    ordered = sorted(r for r in read if r[0] < r[1])
    firsts, reach = [r[0] for r in ordered], [0, *accumulate((r[1] for r in ordered), max)]
    # Of those that begin before its end, one ends after its begin.
    found = [begin < end and reach[bisect_left(firsts, end)] > begin for begin, end in written]
    filled = (i for i, (first, end) in enumerate(written) if first < end)
    order = sorted(filled, key=lambda i: written[i])
    reached = -1
    for i, following in zip_longest(order, order[1:]):
        first, end = written[i]
        # Those before it reach no further than one of them, and those after it begin no sooner
        # than the next one.
        if reached > first or (following is not None and written[following][0] < end):
            found[i] = True
        reached = max(reached, end)
    return found
