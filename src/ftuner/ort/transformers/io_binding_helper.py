"""Element types of onnxruntime, NumPy, torch and ONNX, each as the others write them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ftuner.ort.description import BY_ORT_TYPE, ElementType
from ftuner.ort.exceptions import ArgumentError
from ftuner.ort.session import InferenceSession


class TypeHelper:
    """Functions without state, in a class as onnxruntime has them."""

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        """The type of an input, such as `tensor(float)`. Raises ArgumentError if there is none."""
        return _named(name, {arg.name: arg.type for arg in ort_session.get_inputs()})

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        """The type of an output. Raises ArgumentError if there is none."""
        return _named(name, {arg.name: arg.type for arg in ort_session.get_outputs()})

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> type:
        """NumPy's type of elements, Python's `bool` for booleans.

        Raises:
            ArgumentError: an unknown type, or one that NumPy does not have.
        """
        found = _element(ort_type)
        if found.dtype.name == "bfloat16":
            raise ArgumentError("NumPy has no type of tensor(bfloat16)")
        return bool if found.dtype.name == "bool" else found.numpy.type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """torch's type of elements. Raises ArgumentError if the type is unknown."""
        return getattr(import_module("torch"), _element(ort_type).dtype.name)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """ONNX's number of the type. Raises ArgumentError if the type is unknown."""
        return _element(ort_type).number

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """torch's type of elements of NumPy's."""
        return getattr(import_module("torch"), np.dtype(numpy_type).name)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> type:
        """NumPy's type of elements of torch's, Python's `bool` for booleans."""
        name = str(torch_type).removeprefix("torch.")
        return bool if name == "bool" else np.dtype(name).type

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, type]:
        """NumPy's types of inputs and outputs, by name."""
        return {n: TypeHelper.ort_type_to_numpy_type(t) for n, t in _types(ort_session).items()}

    @staticmethod
    def get_io_torch_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """torch's types of inputs and outputs, by name."""
        return {n: TypeHelper.ort_type_to_torch_type(t) for n, t in _types(ort_session).items()}

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        """ONNX's numbers of the types of inputs and outputs, by name."""
        return {n: TypeHelper.ort_type_to_onnx_type(t) for n, t in _types(ort_session).items()}


def _types(session: InferenceSession) -> dict[str, str]:
    return {arg.name: arg.type for arg in (*session.get_inputs(), *session.get_outputs())}


def _named(name: str, types: dict[str, str]) -> str:
    if name not in types:
        raise ArgumentError(f"there is no {name!r}; there are {', '.join(types)}")
    return types[name]


def _element(ort_type: str) -> ElementType:
    if ort_type not in BY_ORT_TYPE:
        raise ArgumentError(
            f"{ort_type!r} is the type of no tensor in ftuner; expected {', '.join(BY_ORT_TYPE)}"
        )
    return BY_ORT_TYPE[ort_type]
