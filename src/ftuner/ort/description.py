"""Element types, inputs and outputs as onnxruntime describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.core.dtype import ELEMENT_DTYPES, DType
from ftuner.core.frozen import dataclass
from ftuner.frontends.onnx.records import Dims, InputRecord, ModelRecord
from ftuner.ort.exceptions import ArgumentError
from ftuner.runtime.cpu.arrays import numpy_dtype
from ftuner.runtime.model import ANY_RANK, TensorSpec

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
BY_ORT_TYPE = {found.ort_type: found for found in BY_NAME.values()}


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


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    type: str
    """For example `tensor(float)`."""
    shape: list[int | str | None]
    """Names are as in the file; None is an extent without a name."""
    ranked: bool = field(default=True, repr=False)
    """Whether the file has a shape; otherwise `shape` is empty, as onnxruntime's is."""


@dataclass(frozen=True)
class Description:
    """What a session says of its model."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]


def described(record: ModelRecord, computed: Sequence[TensorSpec]) -> Description:
    """The inputs and outputs of a file. `computed`: the outputs as ftuner knows them, which settles
    what the file leaves open."""
    inputs = [_given(v) for v in record.inputs]
    names = {dim for v in inputs for dim in v.shape if isinstance(dim, str)}
    declared = {v.name: v.dims for v in record.declared_outputs}
    outputs = []
    for spec in computed:
        type_ = ort_type_of(spec.dtype)
        shape = _merged(declared[spec.name], spec.shape, names)
        outputs.append(NodeArg(spec.name, type_, [] if type_.startswith("seq(") else shape))
    return Description(inputs, outputs, [_given(v) for v in record.overridable])


def _given(record: InputRecord) -> NodeArg:
    ranked = record.dims is not None
    return NodeArg(record.name, ort_type_of(record.dtype.name), list(record.dims or ()), ranked)


def _merged(
    declared: Dims, computed: Sequence[int | str], names: set[str]
) -> list[int | str | None]:
    """The shape of an output: numbers that were computed, else names in the file, else names of
    inputs."""
    if computed == ANY_RANK:
        return list(declared or ())
    if declared is None or len(declared) != len(computed):
        declared = (None,) * len(computed)
    found: list[int | str | None] = []
    for said, known in zip(declared, computed, strict=True):
        if isinstance(known, int) or (said is None and known in names):
            found.append(known)
        else:
            found.append(said)
    return found
