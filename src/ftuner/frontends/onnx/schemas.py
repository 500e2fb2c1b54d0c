"""Checks nodes against the schemas of their operators: names and types of attributes, numbers of
inputs and outputs, element types of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ftuner.core.units import count
from ftuner.errors import GraphError
from ftuner.frontends.onnx.reading import PACKED
from ftuner.frontends.onnx.records import (
    MICROSOFT,
    Attribute,
    GraphRecord,
    NodeRecord,
    TensorRecord,
)
from ftuner.frontends.onnx.signatures import REGISTERED
from ftuner.graph.ir import Value

_KINDS: Mapping[str, type] = {
    "INT": int, "FLOAT": float, "STRING": str, "TENSOR": TensorRecord, "GRAPH": GraphRecord,
}  # fmt: skip
_MEMBERS: Mapping[str, type] = {"INTS": int, "FLOATS": float, "STRINGS": str}
_FLOATS = {"float": "float32", "double": "float64"}
_MAX_VERSION = 2**31 - 1
"""Largest version that `onnx.defs` accepts."""


class _Input(NamedTuple):
    """An input of a schema; the last one stands for all that follow."""

    is_required: bool
    kind: str = ""
    """Inputs of one kind have one element type; those without a kind, any of `dtypes`."""
    dtypes: frozenset[str] = frozenset()
    """Element types that tensors may have; empty for any."""


class _Schema(NamedTuple):
    """The schema of one version of an operator."""

    attributes: Mapping[str, str]
    """The type of each attribute, by ONNX's name."""
    inputs: float
    outputs: float
    """The largest numbers of inputs and outputs."""
    least: int = 0
    """The smallest number of inputs."""
    formal: tuple[_Input, ...] = ()


_WINDOW = {
    "auto_pad": "STRING", **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"), "INTS")
}  # fmt: skip
_CONV = {**_WINDOW, "group": "INT"}
_LAST = {"channels_last": "INT"}
_HEADS = {
    "num_heads": "INT", "unidirectional": "INT", "scale": "FLOAT", "mask_filter_value": "FLOAT"
}  # fmt: skip
_SHARED = {"do_rotary": "INT", "past_present_share_buffer": "INT"}
_LSTM = {
    "activation_alpha": "FLOATS", "activation_beta": "FLOATS", "activations": "STRINGS",
    "clip": "FLOAT", "direction": "STRING", "hidden_size": "INT", "input_forget": "INT",
}  # fmt: skip
_ONNXRUNTIME: Mapping[tuple[str, str], _Schema] = {
    (MICROSOFT, "Attention"): _Schema(
        {**_HEADS, "qkv_hidden_sizes": "INTS", "rotary_embedding_dim": "INT", **_SHARED}, 7, 2
    ),
    (MICROSOFT, "DequantizeLinear"): _Schema({"axis": "INT"}, 3, 1),
    (MICROSOFT, "DynamicQuantizeLSTM"): _Schema(_LSTM, 12, 3),
    (MICROSOFT, "EmbedLayerNormalization"): _Schema(
        {"epsilon": "FLOAT", "mask_index_type": "INT"}, 9, 3
    ),
    (MICROSOFT, "FusedConv"): _Schema(
        {**_CONV, "activation": "STRING", "activation_params": "FLOATS"}, 4, 1
    ),
    (MICROSOFT, "MultiHeadAttention"): _Schema(_HEADS, 10, 4),
    (MICROSOFT, "NhwcMaxPool"): _Schema({**_WINDOW, "ceil_mode": "INT"}, 1, 1),
    (MICROSOFT, "QAttention"): _Schema({**_HEADS, **_SHARED}, 9, 2),
    (MICROSOFT, "QEmbedLayerNormalization"): _Schema({"epsilon": "FLOAT"}, 18, 2),
    (MICROSOFT, "QLinearAveragePool"): _Schema(
        {**_WINDOW, **_LAST, "ceil_mode": "INT", "count_include_pad": "INT"}, 5, 1
    ),
    (MICROSOFT, "QLinearConcat"): _Schema({"axis": "INT"}, _MAX_VERSION, 1),
    (MICROSOFT, "QLinearConv"): _Schema({**_CONV, **_LAST}, 9, 1),
    (MICROSOFT, "QLinearGlobalAveragePool"): _Schema(_LAST, 5, 1),
    (MICROSOFT, "QLinearLeakyRelu"): _Schema({"alpha": "FLOAT"}, 5, 1),
    (MICROSOFT, "QLinearReduceMean"): _Schema({"axes": "INTS", "keepdims": "INT"}, 5, 1),
    (MICROSOFT, "QLinearSigmoid"): _Schema({}, 5, 1),
    (MICROSOFT, "QLinearSoftmax"): _Schema({"axis": "INT", "opset": "INT"}, 5, 1),
    (MICROSOFT, "QuantizeLinear"): _Schema({"axis": "INT"}, 3, 1),
}
"""Schemas of onnxruntime's operators whose importers read attributes beside their signatures."""


def expect_valid(node: NodeRecord, opset: int, operands: Sequence[object]) -> None:
    """Check a node against the schema of its operator's version. An operator that the installed
    `onnx` does not know is checked by its importer alone. `operands`: its inputs.

    Raises:
        GraphError: an unknown attribute or one of another type; too few or too many inputs, or too
            many outputs; a required input that is left out; tensors of other element types than the
            operator takes, or of different ones where it takes one.
    """
    schema = _schema(node.domain, node.op, opset)
    if schema is None:
        return
    for name, value in node.attributes.items():
        kind = schema.attributes.get(name)
        if kind is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise GraphError(f"{node.label}: no attribute is called {name!r}; there are: {known}")
        if not _is_of(value, kind):
            raise GraphError(
                f"{node.label}: attribute {name} is {value!r:.80}; expected {kind.lower()}"
            )
    for what, names, most in (
        ("inputs", node.inputs, schema.inputs), ("outputs", node.outputs, schema.outputs)
    ):  # fmt: skip
        if len(names) > most:
            raise GraphError(f"{node.label}: {len(names)} {what}; at most {most}")
    if len(operands) < schema.least:
        what = count(len(operands), "input")
        raise GraphError(f"{node.label}: {what}; at least {schema.least}")
    _expect_types(node, schema.formal, operands)


def _kind_of_number(dtype: str) -> str:
    """What a dtype holds: `float`, `int`, or its own name."""
    name = dtype.rstrip("0123456789")
    return {"bfloat": "float", "uint": "int"}.get(name, name)


def _expect_types(node: NodeRecord, formal: Sequence[_Input], operands: Sequence[object]) -> None:
    """Raise GraphError unless required inputs are there and tensors have types that go together."""
    first: dict[str, tuple[int, str]] = {}
    for number, operand in enumerate(operands if formal else ()):
        is_required, kind, dtypes = formal[min(number, len(formal) - 1)]
        if operand is None and is_required:
            raise GraphError(f"{node.label}: input {number} is missing")
        if not isinstance(operand, Value) or not dtypes:
            continue
        dtype, kind_of_number = operand.dtype.name, _kind_of_number(operand.dtype.name)
        # Many operators compute with more dtypes here than a schema has, but not of another kind.
        if kind_of_number not in {_kind_of_number(known) for known in dtypes}:
            known = ", ".join(sorted(dtypes))
            raise GraphError(f"{node.label}: input {number} is of {dtype}; expected {known}")
        other, expected = first.setdefault(kind or str(number), (number, dtype))
        if dtype != expected:
            raise GraphError(
                f"{node.label}: input {other} is of {expected} and input {number} of {dtype}; "
                "expected one element type"
            )


def _is_of(value: Attribute, kind: str) -> bool:
    member = _MEMBERS.get(kind)
    if member is None:
        return isinstance(value, _KINDS.get(kind, object))
    # Trees have millions of elements, of few types.
    return isinstance(value, tuple) and all(issubclass(x, member) for x in set(map(type, value)))


def _schema(domain: str, op: str, opset: int) -> _Schema | None:
    found = _ONNXRUNTIME.get((domain, op)) or _of_onnx(domain, op, opset)
    if found is not None:
        return found
    importer = REGISTERED.get((domain, op))
    if importer is None or not (own := importer.at(opset)).is_whole:
        return None
    required = own.required_inputs
    return _Schema(
        {a.name: a.kind for a in own.attributes}, own.most_inputs, math.inf,
        max((n for n, needed in enumerate(required, 1) if needed), default=0),
        tuple(map(_Input, required)),
    )  # fmt: skip


@cache
def _of_onnx(domain: str, op: str, opset: int) -> _Schema | None:
    definitions: Any = import_module("onnx.defs")
    try:
        found = definitions.get_schema(op, min(opset, _MAX_VERSION), domain)
    except definitions.SchemaError:
        return None
    attributes = {name: a.type.name for name, a in found.attributes.items()}
    formal = tuple(
        _Input(
            given.option.name == "Single",
            given.type_str if given.is_homogeneous else "",
            frozenset(_dtype_name(t) for t in given.types if t.startswith("tensor(")),
        )
        for given in found.inputs
    )
    return _Schema(attributes, found.max_input, found.max_output, found.min_input, formal)


def _dtype_name(tensor: str) -> str:
    """The name of the dtype that holds the elements of one of ONNX's types of tensors."""
    name = tensor.removeprefix("tensor(").removesuffix(")")
    packed = PACKED.get(name)
    return _FLOATS.get(name, name) if packed is None else packed.name
