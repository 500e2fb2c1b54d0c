"""Tensors whose elements are all equal to one constant, though their extents are known only at run
time. Exporters fill tensors (zeros, ones, a language for each sequence) and compute with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ftuner.core.dim import Dim, product
from ftuner.core.dtype import INT32, INT64, DType
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.ir import TensorType, Value

SAME_ELEMENTS = ("broadcast", "reshape", "transpose", "slice")
"""Operators whose results have elements of the first operand alone."""


class Makes(Protocol):
    """What makes the values of a graph: a `Builder`."""

    def add(self, op: str, /, *inputs: Value, **attributes: Any) -> Value:
        """The result of an operator."""

    def constant(self, array: Any, dtype: DType | None = None, /) -> Value:
        """A constant."""


class Splats:
    """The splats of a graph: tensors whose elements are all equal."""

    def __init__(self, builder: Makes) -> None:
        self._builder = builder
        self._elements: dict[Value, Value] = {}

    def add(self, value: Value, element: Value) -> None:
        """Note that all elements of a tensor are equal to a constant without axes."""
        self._elements[value] = element

    def element(self, value: Value) -> Value | None:
        """The constant, without axes, that all elements are equal to; None if none is known."""
        if value.constant is None or value.constant.size != 1:
            return self._elements.get(value)
        return (
            value
            if value.rank == 0
            else self._builder.constant(value.constant.reshape(()), value.dtype)
        )

    def element_of(
        self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Any]
    ) -> Value | None:
        """The same of the result of an operator; None if all operands are constants, which are
        folded or too large to be."""
        if all(v.constant is not None for v in inputs):
            return None
        if op in SAME_ELEMENTS:
            return self.element(inputs[0])
        if op not in SCALAR_FUNCTIONS and op not in ("where", "cast"):
            return None
        elements = [element for v in inputs if (element := self.element(v)) is not None]
        if len(elements) < len(inputs):
            return None
        found = self._builder.add(op, *elements, **attributes)
        return None if found.constant is None else found

    def sum_of(
        self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Any], type_: TensorType
    ) -> Dim | None:
        """Each element of a sum of equal integers; None if the result is none."""
        if op != "reduce" or attributes["kind"] != "sum" or type_.dtype not in (INT32, INT64):
            return None
        element = self.element(inputs[0])
        if element is None or element.constant is None:
            return None
        return int(element.constant) * product(inputs[0].shape[i] for i in attributes["axes"])
