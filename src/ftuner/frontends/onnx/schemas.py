"""Checks nodes against the schemas of their operators: names and types of attributes, numbers of
inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ftuner.errors import GraphError
from ftuner.frontends.onnx.records import (
    MICROSOFT,
    Attribute,
    GraphRecord,
    NodeRecord,
    TensorRecord,
)

_KINDS: Mapping[str, type] = {
    "INT": int, "FLOAT": float, "STRING": str, "TENSOR": TensorRecord, "GRAPH": GraphRecord,
}  # fmt: skip
_MEMBERS: Mapping[str, type] = {"INTS": int, "FLOATS": float, "STRINGS": str}
_MAX_VERSION = 2**31 - 1
"""Largest version that `onnx.defs` accepts."""


class _Schema(NamedTuple):
    """The schema of one version of an operator."""

    attributes: Mapping[str, str]
    """The type of each attribute, by ONNX's name."""
    inputs: int
    outputs: int
    """The largest numbers of inputs and outputs."""


_NORM = {"axis": "INT", "epsilon": "FLOAT", "stash_type": "INT"}
_FUSED_MATMUL = {
    "alpha": "FLOAT", **dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB"), "INT")
}  # fmt: skip
_ONNXRUNTIME: Mapping[tuple[str, str], _Schema] = {
    ("", "SimplifiedLayerNormalization"): _Schema(_NORM, 2, 2),
    (MICROSOFT, "BiasGelu"): _Schema({}, 2, 1),
    (MICROSOFT, "FastGelu"): _Schema({}, 2, 1),
    (MICROSOFT, "FusedMatMul"): _Schema(_FUSED_MATMUL, 2, 1),
    (MICROSOFT, "Gelu"): _Schema({}, 1, 1),
    (MICROSOFT, "QuickGelu"): _Schema({"alpha": "FLOAT"}, 1, 1),
    (MICROSOFT, "SkipLayerNormalization"): _Schema({"epsilon": "FLOAT"}, 5, 4),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _Schema({"epsilon": "FLOAT"}, 4, 4),
}
"""The schemas of onnxruntime's own operators."""


def expect_valid(node: NodeRecord, opset: int) -> None:
    """Check a node against the schema of its operator's version. An operator that the installed
    `onnx` does not know is checked by its importer alone.

    Raises:
        GraphError: an unknown attribute or one of another type; too many inputs or outputs.
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


def _is_of(value: Attribute, kind: str) -> bool:
    member = _MEMBERS.get(kind)
    if member is None:
        return isinstance(value, _KINDS.get(kind, object))
    return isinstance(value, tuple) and all(isinstance(x, member) for x in value)


@cache
def _schema(domain: str, op: str, opset: int) -> _Schema | None:
    added = _ONNXRUNTIME.get((domain, op))
    if added is not None:
        return added
    definitions: Any = import_module("onnx.defs")
    try:
        found = definitions.get_schema(op, min(opset, _MAX_VERSION), domain)
    except definitions.SchemaError:
        return None
    attributes = {name: a.type.name for name, a in found.attributes.items()}
    return _Schema(attributes, found.max_input, found.max_output)
