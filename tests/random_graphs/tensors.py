"""Tensors of a model that is being made, and what is drawn for its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tests.random_graphs.extents import BINDINGS, Shape

Array = npt.NDArray[Any]
LEARNING, MICROSOFT = "ai.onnx.ml", "com.microsoft"
FLOATS = ("float32", "float64")
SIGNED = ("int64", "int32", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
DTYPES = (*NUMBERS, "bool")
FLOAT_SHARES = (0.85, 0.15)
MAX_RANK = 5
TAME = 1e4
"""Magnitude above which operators that grow decline a tensor."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the model."""

    name: str
    dtype: str
    shape: Shape
    low: float
    high: float
    """Its elements are about between the two; nothing depends on it but which operators take it."""
    constant: Array | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Fill:
    """How the elements of an input are drawn."""

    kind: str
    """`normal`, `uniform` (from `low` to `high`, exclusive for integers), `special` (with zeros of
    both signs, infinities, NaN), `ties` (few values), `wild` (factors whose partial products
    overflow and underflow), or `bool`."""
    low: tuple[float, ...] = (-1.0,) * BINDINGS
    high: tuple[float, ...] = (1.0,) * BINDINGS
    """At each binding."""


@dataclass(frozen=True)
class Input:
    name: str
    dtype: str
    shape: Shape
    fill: Fill
    dims: tuple[int | str | None, ...]
    """What the model says of the extents."""
