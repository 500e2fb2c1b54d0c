"""Tensors outside sessions: arrays in the CPU's memory, or torch tensors on a GPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ftuner.ort import cuda
from ftuner.ort.description import Array, ElementType, element_type
from ftuner.ort.enumerations import device_index
from ftuner.ort.exceptions import ArgumentError, ArgumentTypeError, refusing
from ftuner.runtime.ops.operands import on_gpu

_DLPACK_CPU = 1
"""DLPack's number of the CPU."""


@refusing
class OrtValue:
    """A tensor. One that is made from an array shares its memory where the array is contiguous and
    in native byte order."""

    def __init__(self, held: Any) -> None:
        """`held`: an array, or a tensor on a GPU."""
        self._held = held

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor from an array; on a GPU, a copy.

        Raises:
            ArgumentError: no array, an element type that tensors do not have, or no such device.
        """
        if not isinstance(numpy_obj, np.ndarray):
            raise ArgumentError(
                f"a {type(numpy_obj).__name__} was given; expected a NumPy array: "
                "numpy.array(value) makes one"
            )
        kind = element_type(numpy_obj.dtype)
        array = np.ascontiguousarray(numpy_obj, kind.numpy).reshape(numpy_obj.shape)
        number = device_index(device_type, device_id)
        return cls(array if number is None else cuda.to_device(array, number))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """A tensor of an element type that shares the memory of an array whose elements have its
        size, such as bfloat16 in integers of 16 bits.

        Raises:
            ArgumentError: an unknown number of an element type, or elements of another size.
        """
        kind = element_type(onnx_element_type)
        if data.dtype.itemsize != kind.dtype.itemsize:
            raise ArgumentError(
                f"an array of {data.dtype} has elements of {data.dtype.itemsize} bytes; "
                f"{kind.ort_type} has {kind.dtype.itemsize}"
            )
        return cls(np.ascontiguousarray(data).reshape(data.shape).view(kind.numpy))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: object, device_type: str = "cpu",
        device_id: int = 0, vendor_id: int = -1, memory_info: None = None,
    ) -> OrtValue:  # fmt: skip
        """A tensor whose elements are not set. `element_type`: a NumPy type, or ONNX's number.

        Raises:
            ArgumentError: an unknown element type or device, or negative extents.
        """
        kind = _kind(element_type)
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"shape is {list(shape)}; extents are not negative")
        number = device_index(device_type, device_id)
        if number is None:
            return cls(np.empty(tuple(shape), kind.numpy))
        return cls(cuda.empty(shape, kind, number))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A tensor that shares the memory of an object with `__dlpack__`, or of its capsule.

        Raises:
            ArgumentError: memory that cannot be shared.
        """
        if on_gpu(data):
            return cls(import_module("torch").from_dlpack(data).contiguous())
        shared: Any = data if hasattr(data, "__dlpack__") else _Capsule(data)
        try:
            array = np.from_dlpack(shared)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise ArgumentError(
                f"a {type(data).__name__} cannot be shared through DLPack: {error}"
            ) from error
        return cls(np.ascontiguousarray(array).reshape(array.shape))

    def numpy(self) -> Array:
        """The elements as an array: on a CPU the same memory, from a GPU a copy."""
        found: Array = cuda.to_host(self._held) if on_gpu(self._held) else self._held
        return found

    def held(self) -> Any:
        """What a session takes as an input: an array, or a tensor on a GPU."""
        return self._held

    def shape(self) -> list[int]:
        return list(self._held.shape)

    def data_type(self) -> str:
        """For example `tensor(float)`."""
        return self._kind().ort_type

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return self._kind().number

    def device_name(self) -> str:
        return "cuda" if on_gpu(self._held) else "cpu"

    def data_ptr(self) -> int:
        """The address of the first element; the others follow without gaps."""
        if not on_gpu(self._held) and not self._held.flags.c_contiguous:
            # Rows that an output appends to an input in place. They are copied at a later run.
            self._held = np.ascontiguousarray(self._held)
        found: int = self._held.data_ptr() if on_gpu(self._held) else self._held.ctypes.data
        return found

    def tensor_size_in_bytes(self) -> int:
        return math.prod(self.shape()) * self._kind().dtype.itemsize

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Copy elements into the memory of this tensor.

        Raises:
            ArgumentTypeError: neither an array nor an OrtValue.
            ArgumentError: another number of elements, or another element type.
        """
        given = data.held() if isinstance(data, OrtValue) else data
        if not (on_gpu(given) or isinstance(given, np.ndarray)):
            raise ArgumentTypeError(
                f"data is a {type(data).__name__}; expected a NumPy array or an OrtValue"
            )
        self.take(given)

    def take(self, given: Any) -> None:
        """Copy the elements of an array or tensor, of whichever device, into this one's memory.

        Raises:
            ArgumentError: another number of elements, or another element type.
        """
        kind = _kind_of(given)
        if kind != self._kind() or math.prod(given.shape) != math.prod(self._held.shape):
            raise ArgumentError(
                f"{kind.ort_type} of shape {list(given.shape)} was given for a value that is "
                f"{self.data_type()} of shape {self.shape()}; convert or reshape it first"
            )
        if on_gpu(self._held):
            if not on_gpu(given):
                given = cuda.to_device(given, self._held.device.index)
            self._held.copy_(given.reshape(self._held.shape))
        else:
            if not self._held.flags.writeable:
                raise ArgumentError(
                    "the value is in read-only memory; make it from a copy of the array"
                )
            host = cuda.to_host(given) if on_gpu(given) else given
            np.copyto(self._held, host.reshape(self._held.shape), casting="equiv")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def __dlpack__(self, *, stream: object = None, **given: Any) -> object:
        if on_gpu(self._held):
            return self._held.__dlpack__(stream=stream, **given)
        return self._held.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self._held.__dlpack_device__()
        return found

    def _kind(self) -> ElementType:
        return _kind_of(self._held)


def at_address(
    address: int, shape: Sequence[int], element_type: object, device_type: str, device_id: int
) -> OrtValue:
    """A tensor in memory that the caller owns and keeps alive.

    Raises:
        ArgumentError: an unknown element type or device.
    """
    kind = _kind(element_type)
    number = device_index(device_type, device_id)
    if number is not None:
        return OrtValue(cuda.at_address(address, shape, kind, number))
    size = math.prod(shape) * kind.dtype.itemsize
    if not size:
        return OrtValue(np.empty(tuple(shape), kind.numpy))
    memory: Any = (ctypes.c_char * size).from_address(address)
    return OrtValue(np.ndarray(tuple(shape), kind.numpy, memory))


def expect_value(value: object) -> OrtValue:
    """The value itself. Raises ArgumentTypeError if it is not an OrtValue."""
    if isinstance(value, OrtValue):
        return value
    raise ArgumentTypeError(
        f"a {type(value).__name__} was given; expected an OrtValue: "
        "OrtValue.ortvalue_from_numpy makes one"
    )


_kind = element_type
"""Under a name that parameters do not hide."""


def _kind_of(held: Any) -> ElementType:
    return element_type(str(held.dtype).removeprefix("torch."))


class _Capsule:
    """A capsule of DLPack as an object that gives it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **given: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CPU, 0
