"""The inputs of a run: takes what onnxruntime takes, and explains what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ftuner.errors import OperandError
from ftuner.ort.description import BY_ORT_TYPE, Array, ElementType, NodeArg, ort_type_of
from ftuner.ort.exceptions import (
    ArgumentError,
    ArgumentShapeError,
    ArgumentTypeError,
    InvalidArgument,
)
from ftuner.ort.values import OrtValue
from ftuner.runtime.cpu.arrays import as_array
from ftuner.runtime.ops.operands import on_gpu


def usable(
    feeds: Mapping[str, object], required: Sequence[NodeArg], optional: Sequence[NodeArg]
) -> dict[str, Any]:
    """An array, or a tensor on a GPU, for each input that was given.

    Raises:
        ArgumentTypeError: the feeds are no mapping.
        InvalidArgument: a name, element type or number of axes that the model does not take.
        ArgumentShapeError: another extent than the model has along an axis.
        ArgumentError: a value that is no array.
    """
    if not isinstance(feeds, Mapping):
        raise ArgumentTypeError(
            f"the feeds are a {type(feeds).__name__}; expected a mapping from the names of inputs, "
            f"{_names(required)}, to arrays"
        )
    known = {arg.name: arg for arg in (*required, *optional)}
    missing = [arg for arg in required if arg.name not in feeds]
    unknown = [name for name in feeds if name not in known]
    if missing or unknown:
        parts = [f"missing: {', '.join(map(_declared, missing))}"] if missing else []
        parts += [f"unknown: {', '.join(map(repr, unknown))}"] if unknown else []
        raise InvalidArgument(
            f"the model's inputs are {_names(required)}; {'; '.join(parts)}: give an array for "
            "each input by its name"
        )
    return {name: _taken(known[name], value) for name, value in feeds.items()}


def _taken(arg: NodeArg, value: object) -> Any:
    if isinstance(value, OrtValue):
        value = value.held()
    kind = BY_ORT_TYPE[arg.type]
    found: Any
    if on_gpu(value):
        found = value
        given_type = ort_type_of(str(found.dtype).removeprefix("torch."))
    else:
        found = _array(arg, kind, value)
        text = found.dtype.kind in "OSUT"
        given_type = ort_type_of("string" if text else found.dtype.name)
    if given_type != arg.type:
        raise InvalidArgument(
            f"input {arg.name!r} has the element type {given_type}; the model takes {arg.type}: "
            f"convert it, such as with {arg.name}.astype({kind.dtype.name!r})"
        )
    shape = tuple(found.shape)
    if not arg.ranked or (not arg.shape and prod(shape) == 1):
        return found
    if len(shape) != len(arg.shape):
        raise InvalidArgument(
            f"input {arg.name!r} has {len(shape)} axes, shape {list(shape)}; the model takes "
            f"{len(arg.shape)}, {_shape(arg)}: reshape it"
        )
    for axis, (extent, expected) in enumerate(zip(shape, arg.shape, strict=True)):
        if isinstance(expected, int) and extent != expected:
            raise ArgumentShapeError(
                f"input {arg.name!r} has {extent} elements along axis {axis}, shape "
                f"{list(shape)}; the model takes {expected}, {_shape(arg)}"
            )
    return found


def _array(arg: NodeArg, kind: ElementType, value: object) -> Array:
    if isinstance(value, list):
        try:
            return np.array(value, kind.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(
                f"input {arg.name!r} is a list that is no tensor of {kind.dtype}: {error}"
            ) from None
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    try:
        return as_array(value, arg.name)
    except OperandError:
        what = "None" if value is None else f"a {type(value).__name__}"
        raise ArgumentError(
            f"input {arg.name!r} is {what}; the model takes {_declared(arg)}: give a NumPy array, "
            "an OrtValue or a list of numbers"
        ) from None


def _declared(arg: NodeArg) -> str:
    return f"{arg.name!r}, a {arg.type} of shape {_shape(arg)}"


def _shape(arg: NodeArg) -> str:
    if not arg.ranked:
        return "[...]"
    return f"[{', '.join('any' if n is None else str(n) for n in arg.shape)}]"


def _names(args: Sequence[NodeArg]) -> str:
    return ", ".join(repr(arg.name) for arg in args) or "none"
