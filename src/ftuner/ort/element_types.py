"""Element types by their names in ftuner, onnxruntime and NumPy, and by their numbers in ONNX."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.core.dtype import ELEMENT_DTYPES, DType
from ftuner.ort.exceptions import ArgumentError
from ftuner.runtime.cpu.numpy_types import numpy_dtype

Array = npt.NDArray[Any]


class ElementType(NamedTuple):
    """An element type of tensors."""

    dtype: DType
    ort_type: str
    """For example `tensor(float)`."""
    number: int
    """Of ONNX's `TensorProto.DataType`."""

    @property
    def numpy(self) -> np.dtype[Any]:
        return numpy_dtype(self.dtype)


_NUMBERS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "string": 8, "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13,
    "bfloat16": 16,
}  # fmt: skip
"""From onnx.proto, `TensorProto.DataType`."""
_ORT_NAMES = {"float32": "float", "float64": "double"}


def ort_type_of(dtype: str) -> str:
    """The type of a tensor as onnxruntime writes it, such as `tensor(float)`, or of a list of
    maps."""
    if dtype.startswith("map("):
        key, _, value = dtype[len("map(") : -1].partition(",")
        return f"seq(map({key},{ort_type_of(value)}))"
    return f"tensor({_ORT_NAMES.get(dtype, dtype)})"


BY_NAME: dict[str, ElementType] = {
    name: ElementType(ELEMENT_DTYPES[name], ort_type_of(name), number)
    for name, number in _NUMBERS.items()
}
_BY_NUMBER = {found.number: found for found in BY_NAME.values()}


def element_type(given: object) -> ElementType:
    """The element type of a NumPy type, or of its name, or of ONNX's number.

    Raises:
        ArgumentError: no tensor of ftuner has it.
    """
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        if int(given) in _BY_NUMBER:
            return _BY_NUMBER[int(given)]
        raise ArgumentError(f"no element type has the number {given} in ONNX; {_expected()}")
    try:
        name = "None" if given is None else np.dtype(given).name  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentError(f"{given!r} is no element type; {_expected()}") from None
    if name in BY_NAME:
        return BY_NAME[name]
    raise ArgumentError(f"tensors do not have elements of {name}; {_expected()}")


def _expected() -> str:
    return f"expected {', '.join(f'{n} ({t.number})' for n, t in BY_NAME.items())}"
