"""Reads models in onnxruntime's own format (`.ort`) as ONNX models.

The format is a FlatBuffer of the schema ort.fbs of onnxruntime: tables whose fields are found by
offsets. Neither offsets nor lengths are trusted: every read is within the file, and what is read,
each time that an offset leads to it, is counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ftuner.errors import ParseError

if TYPE_CHECKING:
    import onnx

IDENTIFIER = b"ORTM"
"""Stands at the fourth byte of a file."""
MOST_READ = 2
FREE_BYTES = 1 << 26
"""Most bytes that are read of a file, as a multiple of its size, and in addition to that."""
TABLE_BYTES = 16
"""What a table counts as."""
MAX_NESTING = 32
"""Deepest nesting of graphs and types. Those of ONNX files are limited likewise."""
_VERSION = 6
"""The newest version of the format that is known; 4 is the oldest one."""


def is_ort_format(data: bytes) -> bool:
    return data[4:8] == IDENTIFIER


class _Table:
    """A table. Fields are numbered in the order of the schema; one that is left out has its
    default."""

    def __init__(self, data: bytes, at: int, left: list[int], depth: int = 0) -> None:
        if depth > MAX_NESTING:
            raise ValueError("nested too deeply")
        self._data, self._at, self._left, self._depth = data, at, left, depth
        self._take(TABLE_BYTES)
        self._fields = at - self._read("<i", at)
        (self._size,) = struct.unpack_from("<H", data, self._inside(self._fields, 2))

    def _take(self, size: int) -> None:
        """Count bytes that are read."""
        self._left[0] -= size
        if self._left[0] < 0:
            raise ValueError("more is read than there is in the file")

    def _inside(self, at: int, size: int) -> int:
        if at < 0 or at + size > len(self._data):
            raise ValueError("an offset leads out of the file")
        return at

    def _read(self, kind: str, at: int) -> Any:
        return struct.unpack_from(kind, self._data, self._inside(at, struct.calcsize(kind)))[0]

    def _place(self, field: int) -> int:
        """Where a field is; 0 if it is left out."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset = self._read("<H", self._fields + entry)
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        return self._place(field) != 0

    def number(self, field: int, kind: str = "<i") -> Any:
        at = self._place(field)
        return self._read(kind, at) if at else 0

    def _target(self, at: int) -> int:
        return at + int(self._read("<I", at))

    def _bytes(self, at: int) -> bytes:
        size = self._read("<I", at)
        self._take(size)
        return self._data[self._inside(at + 4, size) : at + 4 + size]

    def raw(self, field: int) -> bytes:
        """A string or a vector of bytes."""
        at = self._place(field)
        return self._bytes(self._target(at)) if at else b""

    def text(self, field: int) -> str:
        return self.raw(field).decode()

    def numbers(self, field: int, kind: str) -> list[Any]:
        at = self._place(field)
        if not at:
            return []
        at = self._target(at)
        count, size = self._read("<I", at), struct.calcsize(f"<{kind}")
        self._inside(at + 4, count * size)
        self._take(count * size)
        return list(struct.unpack_from(f"<{count}{kind}", self._data, at + 4))

    def _targets(self, field: int) -> Iterator[int]:
        for number, offset in enumerate(self.numbers(field, "I")):
            yield self._target(self._place(field)) + 4 + 4 * number + offset

    def strings(self, field: int) -> list[bytes]:
        return [self._bytes(at) for at in self._targets(field)]

    def texts(self, field: int) -> list[str]:
        return [text.decode() for text in self.strings(field)]

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, self._target(at), self._left, self._depth + 1) if at else None

    def tables(self, field: int) -> list[_Table]:
        return [_Table(self._data, at, self._left, self._depth + 1) for at in self._targets(field)]


def read_ort_format(data: bytes, what: str) -> onnx.ModelProto:
    """The model of a file. `what` names it in messages.

    Raises:
        ParseError: it is damaged, or of a version that is not known.
    """
    library = import_module("onnx")
    left = [MOST_READ * len(data) + FREE_BYTES]
    try:
        root = _Table(data, struct.unpack_from("<I", data)[0], left)
        version = root.text(0)
        model = root.table(1)
        if not version.isdecimal() or not 4 <= int(version) <= _VERSION or model is None:
            raise ValueError(f"version {version!r} of the format; known are 4 to {_VERSION}")
        found: onnx.ModelProto = _model(library, model)
    except (ValueError, struct.error, OverflowError, TypeError) as error:
        raise ParseError(
            f"{what}: a model in onnxruntime's ORT format that is damaged or not known ({error}); "
            "give the ONNX file that it was made from"
        ) from error
    return found


def _model(library: Any, table: _Table) -> onnx.ModelProto:
    found: onnx.ModelProto = library.ModelProto(
        ir_version=table.number(0, "<q"), producer_name=table.text(2),
        producer_version=table.text(3), domain=table.text(4), model_version=table.number(5, "<q"),
        doc_string=table.text(6),
    )  # fmt: skip
    for opset in table.tables(1):
        found.opset_import.add(domain=opset.text(0), version=opset.number(1, "<q"))
    for entry in table.tables(9):
        found.metadata_props.add(key=entry.text(0), value=entry.text(1))
    graph = table.table(7)
    if graph is None:
        raise ValueError("there is no graph")
    _graph(library, graph, found.graph)
    found.graph.doc_string = table.text(8)
    return found


def _graph(library: Any, table: _Table, found: onnx.GraphProto) -> None:
    if table.tables(7):
        raise ValueError("sparse initialisers are not supported")
    for tensor in table.tables(0):
        _tensor(tensor, found.initializer.add())
    types: dict[str, Callable[[Any], None]] = {}
    for value in table.tables(1):
        types[value.text(0)] = lambda info, value=value: _value(value, info)  # type: ignore[misc]
    for field, infos in ((5, found.input), (6, found.output)):
        for name in table.texts(field):
            info = infos.add(name=name)
            types.get(name, lambda info: None)(info)
    # In the order of the file, which need not be that of the numbers of nodes.
    for node in table.tables(2):
        made = found.node.add(
            name=node.text(0), doc_string=node.text(1), domain=node.text(2), op_type=node.text(5),
            input=node.texts(8), output=node.texts(9),
        )  # fmt: skip
        for attribute in node.tables(10):
            _attribute(library, attribute, made.attribute.add())


def _value(table: _Table, found: onnx.ValueInfoProto) -> None:
    type_ = table.table(2)
    if type_ is not None:
        _type(type_, found.type)


def _type(table: _Table, found: onnx.TypeProto) -> None:
    kind, value = table.number(1, "<B"), table.table(2)
    if value is None:
        return
    if kind == 1:
        found.tensor_type.elem_type = value.number(0)
        shape = value.table(1)
        if shape is not None:
            found.tensor_type.shape.SetInParent()
            for dim in shape.tables(0):
                entry = dim.table(0)
                made = found.tensor_type.shape.dim.add()
                if entry is not None and entry.number(0, "<b") == 1:
                    made.dim_value = entry.number(1, "<q")
                elif entry is not None and entry.number(0, "<b") == 2:
                    made.dim_param = entry.text(2)
        return
    inner = value.table(0 if kind == 2 else 1)
    if kind == 3:
        found.map_type.key_type = value.number(0)
    if inner is not None:
        _type(inner, found.sequence_type.elem_type if kind == 2 else found.map_type.value_type)


def _tensor(table: _Table, found: onnx.TensorProto) -> None:
    found.name, found.data_type = table.text(0), table.number(3)
    found.dims.extend(table.numbers(2, "q"))
    if found.data_type == found.STRING:
        found.string_data.extend(table.strings(5))
    elif table.has(6):
        raise ValueError("weights in another file")
    else:
        found.raw_data = table.raw(4)


def _attribute(library: Any, table: _Table, found: onnx.AttributeProto) -> None:
    found.name, found.type = table.text(0), table.number(2)
    kinds = library.AttributeProto
    if found.type == kinds.FLOAT:
        found.f = table.number(3, "<f")
    elif found.type == kinds.INT:
        found.i = table.number(4, "<q")
    elif found.type == kinds.STRING:
        found.s = table.raw(5)
    elif found.type == kinds.TENSOR and (tensor := table.table(6)) is not None:
        _tensor(tensor, found.t)
    elif found.type == kinds.GRAPH and (graph := table.table(7)) is not None:
        _graph(library, graph, found.g)
    elif found.type == kinds.FLOATS:
        found.floats.extend(table.numbers(8, "f"))
    elif found.type == kinds.INTS:
        found.ints.extend(table.numbers(9, "q"))
    elif found.type == kinds.STRINGS:
        found.strings.extend(table.strings(10))
    else:
        raise ValueError(f"attribute {found.name!r} of type {found.type}")
