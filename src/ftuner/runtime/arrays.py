"""Arrays at the boundary: what is accepted, and where its elements are.

NumPy arrays are taken as they are; objects with `__array_interface__` or CPU DLPack (torch tensors)
are viewed without a copy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.abi import ArrayField
from ftuner.core.dtype import DTYPES, DType
from ftuner.errors import DTypeError, OperandError

Array = npt.NDArray[Any]

DATA_WORD = object.__basicsize__
"""Offset in a NumPy array object of the word that holds the address of its elements: the first
field behind the object header, part of NumPy's binary interface (`PyArrayObject_fields.data`).
Native code reads it there, which spares a call the microsecond that asking in Python takes."""

_KNOWN = {np.dtype(name): dtype for name, dtype in DTYPES.items()}


def _check_layout() -> None:
    """Raises ImportError unless arrays are what `ArrayField` says."""
    probe = np.zeros((2, 3, 5))[:, ::2]
    word = id(probe) + DATA_WORD

    def read(kind: Any, address: int) -> Any:
        return kind.from_address(address).value

    axes = read(ctypes.c_int, word + ArrayField.AXES)
    extents, strides = (
        [read(ctypes.c_ssize_t, read(ctypes.c_void_p, word + field) + 8 * i) for i in range(3)]
        for field in (ArrayField.EXTENTS, ArrayField.STRIDES)
    )
    found = (
        read(ctypes.c_void_p, word), read(ctypes.c_void_p, word + ArrayField.TYPE),
        axes, tuple(extents), tuple(strides),
        read(ctypes.c_void_p, word + ArrayField.DTYPE), read(ctypes.c_int, word + ArrayField.FLAGS),
    )  # fmt: skip
    if found != (
        probe.__array_interface__["data"][0], id(np.ndarray),
        3, probe.shape, probe.strides, id(probe.dtype), probe.flags.num,
    ):  # fmt: skip
        raise ImportError("this Python does not lay out NumPy arrays as CPython does")


_check_layout()


def as_array(value: object, name: str) -> Array:
    """A NumPy view of an operand.

    Raises:
        OperandError: not an array, on another device, or in need of a gradient.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array_interface__"):
            return np.asarray(value)
    except Exception as error:
        raise OperandError(
            f"{name} is a {type(value).__name__} that cannot be read in place: {error}"
        ) from error
    raise OperandError(
        f"{name} is a {type(value).__name__}; expected a NumPy array, an object with "
        "__array_interface__, or a CPU tensor with __dlpack__"
    )


def on_gpu(value: object) -> bool:
    """Whether a value is a torch tensor on a GPU; asked without importing torch."""
    return bool(getattr(value, "is_cuda", False))


def dtype_of(array: Array, name: str) -> DType:
    """The element type of an array.

    Raises:
        DTypeError: it is none of the supported ones, or not in native byte order.
    """
    found = _KNOWN.get(array.dtype)
    if found is None:
        raise DTypeError(
            f"{name} has dtype {array.dtype}; supported are {', '.join(DTYPES)}, in native byte "
            "order"
        )
    return found


def same_dtype(first: Array, other: Array, name: str) -> None:
    """Raises DTypeError unless both arrays have one dtype."""
    if other.dtype != first.dtype:
        raise DTypeError(
            f"{name} has dtype {other.dtype}, the other operands {first.dtype}; convert one of them"
        )


def readable(array: Array) -> Array:
    """The array itself, or an aligned copy if its elements are not aligned."""
    return array if array.flags.aligned else array.copy()


def writable(out: object, name: str = "out") -> Array:
    """Raises OperandError unless `out` is or can be viewed as an array that can be written."""
    array = as_array(out, name)
    if not array.flags.writeable:
        raise OperandError(f"{name} is read-only")
    return array
