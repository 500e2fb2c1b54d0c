"""The contents of a model file as plain values: names, attributes and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Any, NamedTuple, Union

from ftuner.core.dtype import DType
from ftuner.core.files import FileState
from ftuner.core.frozen import dataclass
from ftuner.core.units import count
from ftuner.errors import InputError
from ftuner.graph.ir import Array

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

NCHWC = "com.microsoft.nchwc"
"""Domain of what onnxruntime saves at its highest level of optimisation; see `blocked`."""
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


UNNAMED = ("", "?", "-1", "None")
"""Names of dims that exporters write for any unknown extent: equal names are different extents."""

Dims = tuple[int | str | None, ...] | None
"""Each is an integer, a name as the file has it, or None if it is unknown. None for all: so is the
number of axes."""


@dataclass(frozen=True)
class InputRecord:
    """An input of a model."""

    name: str
    dtype: DType
    dims: Dims

    def symbol(self, axis: int) -> str | None:
        """The name of an extent that other axes of the name have as well; None if it has none."""
        dim = None if self.dims is None else self.dims[axis]
        return dim if isinstance(dim, str) and dim not in UNNAMED else None


class Variant(NamedTuple):
    """How the inputs of a run differ from what the file says of them."""

    ranks: tuple[tuple[str, int], ...]
    """The number of axes of each input whose number the file does not say."""
    apart: frozenset[str]
    """Names of dims that have several extents."""

    def __str__(self) -> str:
        texts = [f"{name} has {count(rank, 'axis', 'axes')}" for name, rank in self.ranks]
        if self.apart:
            texts.append(f"axes that the file names alike differ ({', '.join(sorted(self.apart))})")
        return "; ".join(texts)


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
    dims: Dims


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
    files: Mapping[str, FileState] = field(default_factory=dict)
    """The locations of the data that was read outside the file, with their states before that."""

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

    @property
    def repeated(self) -> frozenset[str]:
        """Names that several axes of inputs have."""
        names = Counter(v.symbol(axis) for v in self.inputs for axis in range(len(v.dims or ())))
        return frozenset(name for name, n in names.items() if name is not None and n > 1)

    def variant(self, shapes: Mapping[str, Sequence[int]]) -> Variant | None:
        """Return the variant that shapes of its inputs need; None for the model as its file has it.

        Raises:
            InputError: no shape for an input of which the file has none.
        """
        ranks, extents = [], dict[str, set[int]]()
        for record in self.inputs:
            shape = shapes.get(record.name)
            if record.dims is None:
                if shape is None:
                    raise InputError(f"input {record.name} has no shape in the file; give one")
                ranks.append((record.name, len(shape)))
            elif shape is not None and len(shape) == len(record.dims):
                for axis, extent in enumerate(shape):
                    if name := record.symbol(axis):
                        extents.setdefault(name, set()).add(extent)
        apart = frozenset(name for name, found in extents.items() if len(found) > 1)
        return Variant(tuple(ranks), apart) if ranks or apart else None

    def varied(self, variant: Variant | None) -> ModelRecord:
        """The model whose inputs are such."""
        if variant is None:
            return self
        ranks = dict(variant.ranks)

        def dims_of(v: InputRecord) -> Dims:
            if v.dims is None:
                return (None,) * ranks[v.name]
            return tuple(None if dim in variant.apart else dim for dim in v.dims)

        return replace(self, inputs=tuple(replace(v, dims=dims_of(v)) for v in self.inputs))

    def with_extents(self, extents: Mapping[str, int]) -> ModelRecord:
        """The model in which named dims of inputs and outputs have these extents."""

        def settled(dims: Dims) -> Dims:
            known = (extents.get(n, n) if isinstance(n, str) else n for n in dims or ())
            return dims and tuple(known)

        return replace(
            self,
            inputs=tuple(replace(found, dims=settled(found.dims)) for found in self.inputs),
            declared_outputs=tuple(
                replace(found, dims=settled(found.dims)) for found in self.declared_outputs
            ),
        )
