"""What `matmul` asks of its operands on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ftuner.errors import DTypeError, ShapeError


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
