"""Reads model files: from protocol buffers to records. Only this module knows `onnx`'s classes.

A file is not trusted: its contents are checked before they are used, and nothing outside the folder
of the model, or of the file that its path links to, is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ftuner.core.dtype import BFLOAT16, ELEMENT_DTYPES, INT8, STRING, UINT8, UINT16, DType
from ftuner.errors import ConfigurationError, GraphError, ParseError, UnsupportedOperatorError
from ftuner.frontends.onnx.files import NO_FILES, ExternalData, content, parted
from ftuner.frontends.onnx.ort_format import is_ort_format, read_ort_format
from ftuner.frontends.onnx.records import (
    LEARNING,
    Attribute,
    Dims,
    GraphRecord,
    InputRecord,
    ModelMetadata,
    ModelRecord,
    NodeRecord,
    OutputRecord,
    TensorRecord,
)
from ftuner.frontends.onnx.weight_stream import OWN_FILE
from ftuner.graph.arrays import held_in, of_bfloat16
from ftuner.graph.ir import MAX_RANK, Array

if TYPE_CHECKING:
    import onnx

Source = Union[str, PathLike[str], bytes, "onnx.ModelProto"]

NO_WEIGHTS: Mapping[str, Array] = MappingProxyType({})
MAX_NESTING = 16
"""Deepest nesting of graphs within graphs. Exporters write three or four levels."""
MAX_ATTRIBUTE_ELEMENTS = 1 << 16
"""Most elements of an attribute that is a list; exporters write longer data as tensors."""
MAX_LEARNING_ELEMENTS = 1 << 24
"""The same of operators for classical learning, whose attributes are the nodes of all trees."""
LEAST_OVERRIDABLE_IR = 4
"""In files of older versions every initialiser is an input too, which means nothing."""
NO_VERSION = (1 << 63) - 1
"""What onnxruntime says of a model without a version."""
PACKED = {"int4": INT8, "uint4": UINT8}
"""Dtypes of which a byte holds two elements, and those that hold them here."""
PACKED_READERS = frozenset({"DequantizeLinear"})
"""Operators to which it is the same whether integers are held in 4 or 8 bits."""


def load(
    source: Source, folder: Path | None = None, held: Mapping[str, Array] = NO_FILES
) -> tuple[onnx.ModelProto, ExternalData]:
    """A model and the data that it refers to. `folder`: of the files beside it; by default that of
    the path, or the working folder. `held`: the bytes of such files, by location.

    Raises:
        ConfigurationError: `onnx` is not installed.
        MissingFileError: the file does not exist.
        ParseError: it is not a model in ONNX's or onnxruntime's format, or not all of one.
        GraphError: it has no graph, or cannot be read.
    """
    if find_spec("onnx") is None:
        raise ConfigurationError(
            "reading ONNX models needs onnx; install it with: pip install 'ftuner[onnx]'"
        )
    # Imported by name: most processes never read a model.
    library = import_module("onnx")
    folders: tuple[Path, ...] = (folder or Path(),)
    advice = "" if folder else ", the working folder: give the path of the model, or go there"
    if isinstance(source, library.ModelProto):
        return source, ExternalData(*folders, held=held, advice=advice)
    if isinstance(source, bytes):
        what = f"{len(source)} bytes"
        message, weights = parted(source)
    elif isinstance(source, str | PathLike):
        path = Path(source)
        what, advice = str(path), ""
        message, weights = content(path)
        if folder is None:
            folders = path.parent, path.resolve().parent
    else:
        raise GraphError(
            f"cannot read a model from {type(source).__name__}; expected a path, bytes or "
            "onnx.ModelProto"
        )
    data = ExternalData(*folders, own=weights, held=held, advice=advice)
    if is_ort_format(message):
        return read_ort_format(message, what), data
    model = library.ModelProto()
    try:
        model.ParseFromString(message)
    except Exception as error:  # The type of the error differs between releases of protobuf.
        raise ParseError(f"{what}: not an ONNX model, or not all of one: {error}") from error
    if not model.HasField("graph"):
        raise GraphError(f"{what}: not an ONNX model: it has no graph")
    return model, data


def whole(source: Source) -> onnx.ModelProto:
    """A copy of a model that has all data that it refers to in itself.

    Raises:
        As `load`; GraphError: the data is missing, or outside of the model's folder.
    """
    model, data = load(source)
    found = type(model)()
    found.CopyFrom(model)
    reader = _Reader(data)
    attributes = [x for node in nodes_of(found.graph.node) for x in node.attribute]
    graphs = [found.graph, *(g for x in attributes for g in (x.g, *x.graphs))]
    tensors = [*(x.t for x in attributes), *(t for graph in graphs for t in graph.initializer)]
    for tensor in tensors:
        if tensor.data_location == reader.library.TensorProto.EXTERNAL:
            what = f"initializer {text_of(tensor.name)!r}"
            size = math.prod(tensor.dims) * dtype_of(tensor.data_type, what).itemsize
            tensor.raw_data = reader.external_bytes(tensor, size, what).tobytes()
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    return found


def nodes_of(nodes: Sequence[onnx.NodeProto], depth: int = 0) -> Iterator[onnx.NodeProto]:
    """The nodes, and the nodes of the graphs within them.

    Raises:
        GraphError: graphs are nested deeper than `MAX_NESTING`.
    """
    if depth > MAX_NESTING:
        raise GraphError(f"graphs nested deeper than {MAX_NESTING}")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from nodes_of(graph.node, depth + 1)


def text_of(text: str | bytes) -> str:
    """A text in a model. Protocol buffers give bytes if it is not valid.

    Raises:
        GraphError: it is not valid.
    """
    if isinstance(text, bytes):
        raise GraphError(f"a text in the model is not valid: {text!r:.80}")
    return text


def domain_of(name: str) -> str:
    """The name of a domain. ONNX's own is empty or `ai.onnx` in files, and empty here."""
    return "" if name == "ai.onnx" else text_of(name)


def read(
    model: onnx.ModelProto, data: ExternalData, weights: Mapping[str, Array] = NO_WEIGHTS
) -> ModelRecord:
    """The records of a model. `data`: what it refers to. `weights`: in the place of initialisers
    of these names.

    Raises:
        GraphError: it is malformed, or has tensors of other dtypes; a weight does not have the
            dtype and shape of its initialiser.
    """
    reader = _Reader(data)
    graph = reader.graph(model.graph, weights)
    inputs = tuple(reader.input(v) for v in model.graph.input if v.name not in graph.constants)
    overridable = (
        tuple(reader.overridable(v, graph) for v in model.graph.input if v.name in graph.constants)
        if model.ir_version >= LEAST_OVERRIDABLE_IR
        else ()
    )
    declared = tuple(reader.output(v) for v in model.graph.output)
    return ModelRecord(
        graph, inputs, overridable, declared, versions_of(model.opset_import), _metadata(model),
        data.locations,
    )  # fmt: skip


def _dim(dim: onnx.TensorShapeProto.Dimension, what: str) -> int | str | None:
    """The extent of an axis, the name of its symbol, or None if it has neither.

    Raises:
        GraphError: it is negative; except -1, which exporters write for an unknown extent.
    """
    if dim.HasField("dim_value") and dim.dim_value != -1:
        if dim.dim_value < 0:
            raise GraphError(f"{what} has an axis of {dim.dim_value} elements")
        return int(dim.dim_value)
    return text_of(dim.dim_param) or None


def versions_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """The operator set version by domain.

    Raises:
        GraphError: there are two versions of a domain.
    """
    opsets: dict[str, int] = {}
    for opset in imports:
        domain = domain_of(opset.domain)
        if opsets.setdefault(domain, opset.version) != opset.version:
            raise GraphError(
                f"two versions of operator set {domain or 'ai.onnx'!r}: {opsets[domain]} and "
                f"{opset.version}"
            )
    return opsets


def _metadata(model: onnx.ModelProto) -> ModelMetadata:
    graph = model.graph
    return ModelMetadata(
        text_of(model.producer_name), text_of(graph.name), text_of(graph.doc_string),
        text_of(model.domain), text_of(model.doc_string),
        model.model_version if model.HasField("model_version") else NO_VERSION,
        {text_of(entry.key): text_of(entry.value) for entry in model.metadata_props},
    )  # fmt: skip


class _Reader:
    def __init__(self, data: ExternalData) -> None:
        self.data = data
        self.library: Any = import_module("onnx")
        self.arrays: Any = import_module("onnx.numpy_helper")

    def graph(
        self, graph: onnx.GraphProto, weights: Mapping[str, Array] = NO_WEIGHTS
    ) -> GraphRecord:
        if graph.sparse_initializer:
            raise UnsupportedOperatorError("sparse initialisers are not supported")
        constants: dict[str, TensorRecord] = {}
        packed: set[str] = set()
        for tensor in graph.initializer:
            name = text_of(tensor.name)
            if not name or name in constants:
                raise GraphError(f"more than one initialiser is named {name!r}")
            what = f"initialiser {name!r}"
            dtype = PACKED.get(_name_of(tensor.data_type))
            if name in weights:
                constants[name] = _given(tensor, weights[name], what)
            elif dtype is None:
                constants[name] = self.tensor(tensor, what)
            else:
                constants[name] = self.packed(tensor, dtype, what)
                packed.add(name)
        inputs = tuple(text_of(v.name) for v in graph.input if v.name not in constants)
        outputs = tuple(text_of(v.name) for v in graph.output)
        nodes = tuple(self.node(n) for n in graph.node)
        _expect_dequantised(packed, nodes, outputs)
        return GraphRecord(inputs, outputs, constants, nodes)

    def input(self, value: onnx.ValueInfoProto) -> InputRecord:
        what = f"input {value.name!r}"
        kind = value.type.WhichOneof("value")
        if kind is None:
            raise GraphError(f"{what} has no type")
        if kind != "tensor_type":
            raise UnsupportedOperatorError(
                f"{what}: type {kind.removesuffix('_type')} is not supported"
            )
        tensor = value.type.tensor_type
        dtype = dtype_of(tensor.elem_type, what)
        if not tensor.HasField("shape"):
            return InputRecord(text_of(value.name), dtype, None)
        if len(tensor.shape.dim) > MAX_RANK:
            raise GraphError(f"{what} has {len(tensor.shape.dim)} axes; at most {MAX_RANK}")
        dims = tuple(_dim(dim, what) for dim in tensor.shape.dim)
        return InputRecord(text_of(value.name), dtype, dims)

    def overridable(self, value: onnx.ValueInfoProto, graph: GraphRecord) -> InputRecord:
        """An input with a default: an initialiser, which tells what the file leaves open."""
        default = graph.constants[value.name]
        shape = value.type.tensor_type
        what = f"initialiser {value.name!r}"
        # Old files also write 0 for an unknown extent.
        dims: Dims = tuple(_dim(dim, what) or None for dim in shape.shape.dim)
        if not shape.HasField("shape"):
            dims = None
        elif len(shape.shape.dim) != default.array.ndim:
            dims = default.array.shape
        return InputRecord(text_of(value.name), default.dtype, dims)

    def output(self, value: onnx.ValueInfoProto) -> OutputRecord:
        """What is declared of an output, which is never refused: nothing depends on it."""
        name = text_of(value.name)
        try:
            found = self.input(value)
        except GraphError:
            return OutputRecord(name, "", None)
        return OutputRecord(name, found.dtype.name, found.dims)

    def node(self, node: onnx.NodeProto) -> NodeRecord:
        attributes: dict[str, Attribute] = {}
        record = NodeRecord(
            text_of(node.op_type), domain_of(node.domain), text_of(node.name),
            tuple(map(text_of, node.input)), tuple(map(text_of, node.output)), attributes,
        )  # fmt: skip
        for attribute in node.attribute:
            if attribute.name in attributes:
                raise GraphError(f"{record.label}: attribute {attribute.name} is there twice")
            attributes[text_of(attribute.name)] = self.attribute(
                attribute, record.label, record.domain == LEARNING
            )
        return record

    def attribute(
        self, attribute: onnx.AttributeProto, label: str, learning: bool = False
    ) -> Attribute:
        what = f"{label}: attribute {attribute.name}"
        try:
            kind = self.library.AttributeProto.AttributeType.Name(attribute.type)
        except ValueError:
            kind = str(attribute.type)
        if kind in ("FLOATS", "INTS", "STRINGS"):
            count = len(getattr(attribute, kind.lower()))
            most = MAX_LEARNING_ELEMENTS if learning else MAX_ATTRIBUTE_ELEMENTS
            if count > most:
                raise GraphError(f"{what} has {count} elements; at most {most}")
        if kind in ("FLOAT", "INT"):
            return attribute.f if kind == "FLOAT" else attribute.i
        if kind in ("FLOATS", "INTS"):
            return tuple(getattr(attribute, kind.lower()))
        try:
            if kind == "STRING":
                return attribute.s.decode()
            if kind == "STRINGS":
                return tuple(map(bytes.decode, attribute.strings))
        except UnicodeDecodeError as error:
            raise GraphError(f"{what} is not text: {error}") from None
        if kind == "TENSOR":
            return self.tensor(attribute.t, what)
        if kind == "TYPE_PROTO":
            return text_of(attribute.tp.WhichOneof("value") or "")
        if kind == "GRAPH":
            return self.graph(attribute.g)
        raise UnsupportedOperatorError(f"{what}: type {kind.lower()} is not supported")

    def tensor(self, tensor: onnx.TensorProto, what: str) -> TensorRecord:
        dtype = dtype_of(tensor.data_type, what)
        if any(n < 0 for n in tensor.dims) or len(tensor.dims) > MAX_RANK:
            raise GraphError(f"{what} has the shape {list(tensor.dims)}")
        if tensor.data_location == self.library.TensorProto.EXTERNAL:
            if dtype == STRING:
                raise GraphError(f"{what}: strings are not kept outside of the model")
            return TensorRecord(self.external(tensor, dtype, what), dtype)
        try:
            found: Array = np.asarray(self.arrays.to_array(tensor))
        except (ValueError, TypeError) as error:
            raise GraphError(f"{what} is malformed: {error}") from error
        if dtype == BFLOAT16:
            # Some releases of onnx have a type of their own for it.
            found = found.astype(np.float32)
        if found.dtype != held_in(dtype) or found.shape != tuple(tensor.dims):
            raise GraphError(f"{what} is malformed: {found.dtype}{list(found.shape)}")
        return TensorRecord(found, dtype)

    def packed(self, tensor: onnx.TensorProto, dtype: DType, what: str) -> TensorRecord:
        """A tensor of a dtype in `PACKED`, whose lower half of a byte comes first."""
        if any(n < 0 for n in tensor.dims) or len(tensor.dims) > MAX_RANK:
            raise GraphError(f"{what} has the shape {list(tensor.dims)}")
        count = math.prod(tensor.dims)
        if tensor.data_location == self.library.TensorProto.EXTERNAL:
            found = self.external_bytes(tensor, -(-count // 2), what)
        elif tensor.HasField("raw_data"):
            found = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            found = np.array(tensor.int32_data, np.int64).astype(np.uint8)
        if len(found) != -(-count // 2):
            raise GraphError(f"{what} is malformed: {len(found)} bytes for {count} elements")
        apart = np.stack([found & 15, found >> 4], axis=-1).ravel()[:count]
        if dtype.kind == "int":
            apart = (apart ^ 8).astype(np.int8) - 8
        return TensorRecord(apart.astype(dtype.name).reshape(tuple(tensor.dims)), dtype)

    def external(self, tensor: onnx.TensorProto, dtype: DType, what: str) -> Array:
        """An array from a file beside the model."""
        size = math.prod(tensor.dims) * dtype.itemsize
        name = UINT16.name if dtype == BFLOAT16 else dtype.name
        found = self.external_bytes(tensor, size, what).view(np.dtype(name).newbyteorder("<"))
        found = found.astype(name, copy=False).reshape(tuple(tensor.dims))
        return of_bfloat16(found) if dtype == BFLOAT16 else found

    def external_bytes(self, tensor: onnx.TensorProto, size: int, what: str) -> Array:
        """`size` bytes from a file beside the model."""
        entries = {text_of(e.key): text_of(e.value) for e in tensor.external_data}
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size))
        except ValueError as error:
            raise GraphError(f"{what}: {error}") from None
        if length != size:
            where = f" of {location!r}" if location != OWN_FILE else ""
            raise GraphError(f"{what}: {size} bytes wanted, {length} given{where}")
        return self.data.read(location, offset, size, what)


def _given(tensor: onnx.TensorProto, weight: Array, what: str) -> TensorRecord:
    """What a caller gives in the place of an initialiser."""
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if weight.dtype.name != dtype.name or weight.shape != shape:
        raise GraphError(
            f"{what} is {dtype}{list(shape)} in the file; {weight.dtype}{list(weight.shape)} was "
            "given in its place"
        )
    return TensorRecord(weight.astype(held_in(dtype), copy=False), dtype)


def _expect_dequantised(
    packed: AbstractSet[str], nodes: Iterable[NodeRecord], outputs: Iterable[str] = ()
) -> None:
    """Raises:
    UnsupportedOperatorError: a constant of 4 bits is read by what would see that it is held in 8.
    """
    if not packed:
        return
    if seen := packed & {*outputs}:
        raise UnsupportedOperatorError(
            f"output {min(seen)!r}: elements of 4 bits are not supported"
        )
    for node in nodes:
        if node.op not in PACKED_READERS and (seen := packed & {*node.inputs}):
            raise UnsupportedOperatorError(
                f"{node.label} reads {min(seen)!r}: elements of 4 bits are not supported but by "
                f"{', '.join(PACKED_READERS)}"
            )
        for inner in node.attributes.values():
            if isinstance(inner, GraphRecord):
                hidden = {*inner.constants}
                _expect_dequantised(packed - hidden, inner.nodes, inner.outputs)


def read_nodes(nodes: Sequence[onnx.NodeProto]) -> list[NodeRecord]:
    """The records of nodes that come from no file."""
    reader = _Reader(ExternalData())
    return [reader.node(node) for node in nodes]


def number_of(dtype: DType) -> int:
    """ONNX's number of a dtype."""
    name = {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
    found: int = import_module("onnx").TensorProto.DataType.Value(name.upper())
    return found


def dtype_of(number: int, what: str) -> DType:
    """The dtype of ONNX's number `number`.

    Raises:
        GraphError: no tensor has it, or there is none.
    """
    name = _name_of(number)
    if not name:
        raise GraphError(f"{what}: no element type has the number {number}")
    found = ELEMENT_DTYPES.get({"float": "float32", "double": "float64"}.get(name, name))
    if found is None:
        raise UnsupportedOperatorError(f"{what}: element type {name} is not supported")
    return found


def _name_of(number: int) -> str:
    """What ONNX calls an element type; nothing if none has the number."""
    names: Any = import_module("onnx").TensorProto.DataType
    try:
        found: str = names.Name(number).lower()
    except ValueError:
        return ""
    return found
