"""NumPy arrays of the dtypes of tensors.

Strings are `str` in arrays of objects. NumPy has no bfloat16: arrays of float32 hold its elements,
exactly. References of operators compute float16 and bfloat16 in float32 and round their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ftuner.core.dtype import BFLOAT16, HALF_DTYPES, DType
from ftuner.core.references import round_bfloat16

if TYPE_CHECKING:
    from ftuner.graph.ir import Array

_LOOKED_AT = 1024
"""Elements that are compared before all are."""
_JOINED = 256
"""Strings that are joined at a time, as they may be long texts."""
_LINE_BYTES = 64
"""Bytes of a row that a transposed matrix is copied by at a time: a cache line. On a loaded Xeon,
NumPy's own copy of 3072 rows of 768 floats took 2.2 times as long, and of 768 rows of 3072 3.4
times."""
_BLOCKED = 256
"""Least rows and columns of a matrix that is copied so."""
_DROPPED_BITS = 16
"""Low bits of a float32 that bfloat16 lacks."""


def held_in(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype of arrays that hold elements of `dtype`."""
    if dtype.on_host:
        return np.dtype(object)
    if dtype.kind == "word":
        return np.dtype(f"uint{dtype.bits}")
    if dtype.kind == "block":
        return np.dtype(f"V{dtype.itemsize}")
    return np.dtype("float32" if dtype == BFLOAT16 else dtype.name)


def converted(values: Any, dtype: DType, held: np.dtype[Any] | None = None) -> Array:
    """A row-major array of `dtype`. Floats are rounded to nearest, ties to even, and overflow to
    infinity. `held`: what `held_in` gives, if it is known.

    Raises:
        OverflowError: Python integers out of range.
    """
    held = held_in(dtype) if held is None else held
    if isinstance(values, np.ndarray) and values.dtype == held and values.flags.c_contiguous:
        array = values
    elif isinstance(values, np.ndarray) and values.dtype == held and _is_transposed(values):
        array = np.empty(values.shape, held)
        step = _LINE_BYTES // held.itemsize
        for column in range(0, values.shape[-1], step):
            array[..., column : column + step] = values[..., column : column + step]
    else:
        with np.errstate(over="ignore"):
            array = np.asarray(values, held, order="C")
    return round_bfloat16(array) if dtype == BFLOAT16 else array


def _is_transposed(array: Array) -> bool:
    """Whether an array is large matrices whose columns are rows of memory."""
    large = array.ndim >= 2 and min(array.shape[-2:]) >= _BLOCKED
    return large and array.swapaxes(-1, -2).flags.c_contiguous and array.itemsize <= _LINE_BYTES


def texts(array: Array) -> Array:
    """An array of `str` in objects, of an array of NumPy's strings, of bytes in UTF-8 or of any
    objects, which are converted as `str` does."""
    found = array.astype(object)
    given = found.ravel().tolist()
    try:
        # Takes a fifth of the time of looking at the type of each.
        for begin in range(0, len(given), _JOINED):
            "".join(given[begin : begin + _JOINED])
    except TypeError:
        found.flat[:] = [x.decode() if isinstance(x, bytes) else str(x) for x in found.flat]
    return found


def widened(array: Array, dtype: DType) -> Array:
    """The array in the dtype that references compute in: float32 for half precision."""
    return array.astype(np.float32) if dtype.name in HALF_DTYPES else array


def of_bfloat16(bits: Array) -> Array:
    """The float32 values of bfloat16 numbers given as 16-bit words."""
    words: Array = bits.astype(np.uint32) << np.uint32(_DROPPED_BITS)
    return words.view(np.float32)


def words(array: Array, dtype: DType) -> Array:
    """The array as memory has it: elements of bfloat16 as 16-bit words."""
    if dtype != BFLOAT16:
        return array
    found: Array = (np.ascontiguousarray(array).view(np.uint32) >> np.uint32(_DROPPED_BITS)).astype(
        np.uint16
    )
    return found


def exactly_half(array: Array, dtype: DType) -> bool:
    """Whether float32 elements are numbers of a half-precision dtype."""
    some = array.reshape(-1)[:_LOOKED_AT]
    return all(np.array_equal(converted(x, dtype).astype(np.float32), x) for x in (some, array))


def largest_finite(dtype: DType) -> float:
    """The largest finite number of a floating dtype."""
    if dtype == BFLOAT16:
        return float.fromhex("0x1.fep127")
    return float(np.finfo(dtype.name).max)
