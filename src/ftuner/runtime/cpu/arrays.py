"""NumPy's dtypes of element types.

NumPy arrays are taken as they are; torch's tensors, and objects with `__array_interface__` or CPU
DLPack, are viewed without a copy.

torch is not imported here: a caller that has a tensor has imported it.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.native.binding_records import ArrayField
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.dtype import BFLOAT16, DTYPES, DType
from ftuner.errors import ConfigurationError, DTypeError, OperandError
from ftuner.graph.arrays import held_in


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of an element type. That of bfloat16 is of the package ml_dtypes, which comes
    with onnx.

    Raises:
        ConfigurationError: ml_dtypes is not installed.
    """
    if dtype != BFLOAT16:
        return held_in(dtype)
    if find_spec("ml_dtypes") is None:
        raise ConfigurationError(
            "NumPy has no bfloat16 of its own; install ml_dtypes, or: pip install 'ftuner[onnx]'"
        )
    found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    return found


Array = npt.NDArray[Any]

DATA_WORD = object.__basicsize__
"""Offset in a NumPy array object of the word that holds the address of its elements: the first
field behind the object header, part of NumPy's binary interface (`PyArrayObject_fields.data`).
Native code reads it there, which saves the microsecond that Python takes to read it."""

LIST_WORD = DATA_WORD + SLOT_BYTES
"""Offset in a list of the word that holds the address of its items (`PyListObject.ob_item`)."""

MAX_SPREAD_BYTES = 16 << 20
MAX_SPREAD = 4
"""Limits on a copy that keeps the strides of an array: MAX_SPREAD_BYTES, or MAX_SPREAD times the
bytes of the elements. A copy of one field of page-sized records could take a thousand times its
bytes."""
_Word = ctypes.c_size_t
_KNOWN = {np.dtype(name): dtype for name, dtype in DTYPES.items()}


def _check_layout() -> None:
    """Raises ImportError unless arrays are what `ArrayField` says, tuples what `items_address`
    says, and lists what `LIST_WORD` says."""
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
    arrays = (probe,)
    if read(ctypes.c_void_p, items_address(arrays)) != id(probe):
        raise ImportError("this Python does not lay out tuples as CPython does")
    items = [probe]
    if read(ctypes.c_void_p, read(ctypes.c_void_p, id(items) + LIST_WORD)) != id(probe):
        raise ImportError("this Python does not lay out lists as CPython does")


def items_address(arrays: tuple[Array, ...]) -> int:
    """Where native code finds the addresses of array objects: in the tuple itself, which must
    outlive that. Copying them takes half a microsecond."""
    return id(arrays) + tuple.__basicsize__


_check_layout()


def address_of(array: Array) -> int:
    """The address of the elements of an array. `array.ctypes.data` takes four times as long."""
    address: int = _Word.from_address(id(array) + DATA_WORD).value
    return address


def as_array(value: object, name: str) -> Array:
    """A NumPy view of an operand, as `ndarray` itself: a subclass such as `matrix` multiplies and
    slices differently.

    Raises:
        OperandError: it is no array, is on another device, needs a gradient, or has masked
            elements.
        DTypeError: a tensor of an element type that NumPy lacks.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise OperandError(
                f"{name} is a masked array that hides elements; give `{name}.filled(value)`"
            )
        return np.asarray(value)
    if is_tensor(value):
        return array_of(value, name)
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


def dtype_of(array: Array, name: str) -> DType:
    """The element type of an array.

    Raises:
        DTypeError: it is not supported, or not in native byte order.
    """
    found = _KNOWN.get(array.dtype)
    if found is None:
        raise DTypeError(
            f"{name} has dtype {array.dtype}; supported are {', '.join(DTYPES)}, in native byte "
            "order"
        )
    return found


def readable(array: Array) -> Array:
    """The array itself, or a copy with the same strides if its elements are not aligned."""
    if array.flags.aligned:
        return array
    found = lying_like(array)
    found[...] = array
    return found


def lying_like(array: Array) -> Array:
    """New memory with the shape and strides of an array, so that both have the same plan. It is
    contiguous if the strides are not multiples of the element size, and has smaller strides if the
    gaps between elements would exceed the limits above."""
    size = array.itemsize
    if any(step % size for n, step in zip(array.shape, array.strides, strict=True) if n > 1):
        return np.empty(array.shape, array.dtype)
    low, high = span_of(array)
    strides = array.strides
    if high - low > max(MAX_SPREAD_BYTES, MAX_SPREAD * array.nbytes):
        strides = _closer_strides(array)
        reach = [(n - 1) * step for n, step in zip(array.shape, strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + size
    memory = np.empty((high - low) // size, array.dtype)
    found: Array = np.ndarray(array.shape, array.dtype, memory, -low, strides)
    return found


def _closer_strides(array: Array) -> tuple[int, ...]:
    """Strides in the same order and with the same signs, with gaps no larger than the data between
    them. Axes that could be merged still can be."""
    strides = list(array.strides)
    span = array.itemsize
    follows, follows_now = -1, 0
    for axis in sorted(range(array.ndim), key=lambda i: abs(strides[i])):
        extent, far = array.shape[axis], abs(strides[axis])
        if extent > 1:
            step = follows_now if far == follows else min(far, 2 * span)
            strides[axis] = -step if strides[axis] < 0 else step
            span += (extent - 1) * step
            follows, follows_now = extent * far, extent * step
    return tuple(strides)


def span_of(array: Array) -> tuple[int, int]:
    """Bytes from the first element to the lowest one, and to the end of the highest one."""
    if not array.size:
        return 0, 0
    reach = [(extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + array.itemsize


def writable(out: object, name: str = "out") -> Array:
    """Raises OperandError unless `out` is or can be viewed as an array that can be written."""
    array = as_array(out, name)
    if not array.flags.writeable:
        raise OperandError(f"{name} is read-only")
    return array


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def any_tensor(*values: object) -> bool:
    """Whether one of the values is a torch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and any(isinstance(value, kind) for value in values)


def array_of(tensor: Any, name: str) -> Array:
    """The elements of a tensor in place, as an array.

    Raises:
        OperandError: it is on another device, is not strided, or requires a gradient while torch
            records gradients.
        DTypeError: NumPy has no such element type.
    """
    torch: Any = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise OperandError(f"{name} is on {tensor.device}, other operands on the CPU; move one")
    if tensor.layout != torch.strided:
        raise OperandError(f"{name} is {tensor.layout}; expected a strided tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise OperandError(
            f"{name} needs a gradient, which ftuner does not compute; call it within "
            f"torch.no_grad(), or give {name}.detach()"
        )
    try:
        whole = tensor.detach().resolve_conj().resolve_neg()
        if whole.dtype == torch.bfloat16:
            found: Array = whole.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
        else:
            found = whole.numpy()
    except (TypeError, ConfigurationError) as error:
        raise DTypeError(f"{name} has dtype {tensor.dtype}: {error}") from error
    except RuntimeError as error:
        raise OperandError(f"{name} is a tensor that cannot be read in place: {error}") from error
    return found


def given_back(result: Array, out: object | None, *operands: object) -> Any:
    """What a caller gets for a result: `out` if that is a tensor, a tensor without a copy if there
    is no `out` and an operand is a tensor, else the array."""
    if is_tensor(out):
        return out
    return tensor_of(result) if out is None and any_tensor(*operands) else result


def tensor_of(array: Array) -> Any:
    """An array as a tensor, which shares its memory unless that is read-only."""
    torch: Any = sys.modules["torch"]
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == BFLOAT16.name:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
