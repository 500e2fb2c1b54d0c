"""What operators and models ask of their arguments on every device; where an operand is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ftuner.errors import ConfigurationError, DTypeError, InputError, ShapeError

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
