"""The contents of a model file as plain values: names, attributes and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Union

from ftuner.core.dtype import DType
from ftuner.graph.ir import Array

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

LEARNING = "ai.onnx.ml"
"""The domain of ONNX's operators for classical learning."""

MAX_LABEL = 120
"""Most characters of a name in the label of a node, which many error messages contain."""

Attribute = Union[int, float, str, "TensorRecord", "GraphRecord", tuple[Any, ...]]
"""Tuples are of integers, of floats or of strings."""


def shortened(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[:MAX_LABEL]}..."


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """A tensor of a file. `array` holds its elements; those of bfloat16 as float32."""

    array: Array
    dtype: DType


@dataclass(frozen=True)
class NodeRecord:
    """A node. The empty name is an input or output that is left out."""

    op: str
    domain: str
    """Empty for the operators of ONNX itself."""
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    @property
    def label(self) -> str:
        """The name of the node in error messages."""
        op = shortened(self.op)
        if self.name:
            return f"{op} node '{shortened(self.name)}'"
        return f"{op} node that gives '{shortened(next(filter(None, self.outputs), ''))}'"

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        name = f" '{self.name}'" if self.name else ""
        return f"{', '.join(self.outputs)} = {op}{name}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class InputRecord:
    """An input of a model. Each dim is an integer, a name, or None if it is unknown."""

    name: str
    dtype: DType
    dims: tuple[int | str | None, ...]


@dataclass(frozen=True)
class GraphRecord:
    """The graph of a model, or one within a node, which may read the values around it."""

    inputs: tuple[str, ...]
    """The inputs that are not initialisers, which are constants."""
    outputs: tuple[str, ...]
    constants: Mapping[str, TensorRecord]
    nodes: tuple[NodeRecord, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """What a file says of its model, under the names of ONNX Runtime's `ModelMetadata`."""

    producer_name: str
    graph_name: str
    graph_description: str
    domain: str
    description: str
    version: int
    custom_metadata_map: Mapping[str, str]
    """Entries of the exporter's own, such as the characters that a recogniser tells apart."""


@dataclass(frozen=True)
class OutputRecord:
    """An output as a file declares it, which may be less than it is."""

    name: str
    dtype: str
    """Empty if it is not declared."""
    dims: tuple[int | str | None, ...]
    """Empty if the number of axes is not declared."""


@dataclass(frozen=True)
class ModelRecord:
    graph: GraphRecord
    inputs: tuple[InputRecord, ...]
    """The inputs of the graph with their types. Graphs within nodes take any."""
    overridable: tuple[InputRecord, ...]
    """Initialisers that the file also declares as inputs: a caller may give another value."""
    declared_outputs: tuple[OutputRecord, ...]
    opsets: Mapping[str, int]
    """The operator set version by domain."""
    metadata: ModelMetadata

    def header(self) -> ModelRecord:
        """The model without what it computes, and so without its weights."""
        return replace(self, graph=GraphRecord((), (), {}, ()))

    def with_inputs(self, names: AbstractSet[str]) -> ModelRecord:
        """The model in which these overridable initialisers are inputs."""
        taken = tuple(found for found in self.overridable if found.name in names)
        kept = {n: tensor for n, tensor in self.graph.constants.items() if n not in names}
        inputs = (*self.graph.inputs, *(found.name for found in taken))
        return replace(
            self,
            graph=replace(self.graph, inputs=inputs, constants=kept),
            inputs=(*self.inputs, *taken),
            overridable=tuple(found for found in self.overridable if found.name not in names),
        )

    def with_extents(self, extents: Mapping[str, int]) -> ModelRecord:
        """The model in which named dims of inputs and outputs have these extents."""

        def settled(dims: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
            return tuple(extents.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)

        return replace(
            self,
            inputs=tuple(replace(found, dims=settled(found.dims)) for found in self.inputs),
            declared_outputs=tuple(
                replace(found, dims=settled(found.dims)) for found in self.declared_outputs
            ),
        )
