"""References in float64 with their error bounds, and arrays that lie in every way."""

import numpy as np
import numpy.typing as npt

from ftuner.core.dtype import DTYPES, FLOAT64

Array = npt.NDArray[np.floating]

LAYOUTS = (
    "plain",
    "padded",
    "transposed",
    "rows reversed",
    "columns reversed",
    "every second row",
    "every second column",
    "neither axis contiguous",
)
"""Ways in which the last two axes of an array may lie."""


def lie(layout: str, values: Array, guard: float = np.nan) -> tuple[Array, Array]:
    """`values`, of two axes or more, in an array that lies as `layout` says.

    Returns the view and the memory that it is a view of; what the view does not show is `guard`.
    """
    *batch, rows, columns = values.shape
    shapes = {
        "plain": (rows, columns),
        "padded": (rows + 3, columns + 5),
        "transposed": (columns + 2, rows + 3),
        "rows reversed": (rows + 2, columns),
        "columns reversed": (rows, columns + 2),
        "every second row": (2 * rows, columns),
        "every second column": (rows, 2 * columns),
        "neither axis contiguous": (3 * columns, 2 * rows),
    }
    memory = np.full((*batch, *shapes[layout]), guard, values.dtype)
    view = {
        "plain": lambda x: x,
        "padded": lambda x: x[..., 1 : 1 + rows, 2 : 2 + columns],
        "transposed": lambda x: x[..., 1 : 1 + columns, 2 : 2 + rows].swapaxes(-1, -2),
        "rows reversed": lambda x: x[..., 1 : 1 + rows, :][..., ::-1, :],
        "columns reversed": lambda x: x[..., 1 : 1 + columns][..., ::-1],
        "every second row": lambda x: x[..., ::2, :],
        "every second column": lambda x: x[..., ::2],
        "neither axis contiguous": lambda x: x[..., ::3, ::-2].swapaxes(-1, -2),
    }[layout](memory)
    view[...] = values
    return view, memory


def uniform(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Values in [-1, 1)."""
    values: Array = np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(dtype)
    return values


def product_bound(a: Array, b: Array, extra: int = 0) -> tuple[Array, Array]:
    """The product in float64, and how far a sum of k products in the dtype of a may be from it.

    The bound is `k u |a| |b|` (Higham, Accuracy and Stability of Numerical Algorithms, 3.1) for the
    dtype's unit roundoff and for the reference's own. `extra`: further roundings.
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    k = a.shape[-1]
    roundoff = DTYPES[a.dtype.name].unit_roundoff + FLOAT64.unit_roundoff
    bound = (k + extra) * roundoff / (1 - (k + extra) * roundoff)
    sizes = np.matmul(np.abs(wide_a), np.abs(wide_b))
    return np.matmul(wide_a, wide_b), bound * sizes + np.finfo(a.dtype).tiny


def assert_product(
    c: object, a: Array, b: Array, added_to: Array | None = None, message: str = ""
) -> None:
    """`c` is `a @ b` (plus `added_to`), to within what rounding explains."""
    assert isinstance(c, np.ndarray)
    assert c.dtype == a.dtype
    expected, bound = product_bound(a, b, extra=0 if added_to is None else 1)
    if added_to is not None:
        roundoff = DTYPES[a.dtype.name].unit_roundoff
        expected = expected + added_to
        bound = bound + 2 * roundoff * np.abs(added_to)
    assert c.shape == expected.shape, message
    error = np.abs(c - expected)
    # Not `any(error > bound)`: a NaN must fail.
    assert np.all(error <= bound), f"{message}: {np.count_nonzero(~(error <= bound))} wrong"
