"""Definitions of operators as functions of others, which ONNX's schemas have.

Some depend on the node: on its attributes, on which inputs it has, and on their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.frontends.onnx.reading import number_of
from ftuner.frontends.onnx.records import NodeRecord
from ftuner.graph.ir import TensorType

if TYPE_CHECKING:
    import onnx


_REDUCTIONS = ("none", "sum", "mean")
"""Values of the attribute `reduction`, which definitions do not check."""


def is_defined(domain: str, op: str, opset: int) -> bool:
    """Whether ONNX defines an operator by others."""
    return _version(domain, op, opset) is not None


def definition_of(
    record: NodeRecord, opset: int, operands: Sequence[TensorType | None]
) -> onnx.FunctionProto:
    """The definition of the operator of a node, for operands of some types. It has no references
    to attributes.

    Raises:
        GraphError: the node does not fit the operator.
        UnsupportedOperatorError: the definition depends on extents that are symbols.
    """
    version = _version(record.domain, record.op, opset)
    schema: Any = import_module("onnx.defs").get_schema(record.op, opset, record.domain)
    assert version is not None
    if len(record.inputs) < schema.min_input:
        raise GraphError(
            f"{record.label}: {len(record.inputs)} inputs; at least {schema.min_input}"
        )
    reduction = record.attributes.get("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise GraphError(
            f"{record.label}: reduction is {reduction!r}; expected one of {_REDUCTIONS}"
        )
    library: Any = import_module("onnx")
    if schema.has_function:
        text = schema.get_function_with_opset_version(version)
    else:
        node = _node(record).SerializeToString()
        types = [_type(t).SerializeToString() for t in operands]
        try:
            text = schema.get_context_dependent_function_with_opset_version(version, node, types)
        except Exception as error:  # Raised by the C++ part of onnx.
            raise GraphError(f"{record.label}: {error}") from None
    if not text:
        if any(t is not None and not all(isinstance(n, int) for n in t.shape) for t in operands):
            raise UnsupportedOperatorError(
                f"{record.label}: ONNX defines the operator only for extents that are known, of "
                f"{', '.join(map(str, operands))} (data-dependent shape)"
            )
        raise GraphError(f"{record.label}: the inputs or attributes do not fit the operator")
    found: onnx.FunctionProto = library.FunctionProto.FromString(text)
    given = {a.name: a for a in _node(record).attribute}
    defaults = {name: a.default_value for name, a in schema.attributes.items()}
    for node in found.node:
        _set_attributes(node, {**defaults, **given})
    return found


@cache
def _version(domain: str, op: str, opset: int) -> int | None:
    """The latest version of the definition that a version of the operators has."""
    definitions: Any = import_module("onnx.defs")
    try:
        schema = definitions.get_schema(op, opset, domain)
    except (definitions.SchemaError, TypeError):
        return None
    versions: Iterable[int] = (
        schema.function_opset_versions
        if schema.has_function else schema.context_dependent_function_opset_versions
    )  # fmt: skip
    return max((v for v in versions if v <= opset), default=None)


def _type(type_: TensorType | None) -> onnx.TypeProto:
    """The type of an operand; an extent that varies has no value."""
    library: Any = import_module("onnx")
    found: onnx.TypeProto = library.TypeProto()
    if type_ is not None:
        found.tensor_type.elem_type = number_of(type_.dtype)
        found.tensor_type.shape.SetInParent()
        for n in type_.shape:
            dim = found.tensor_type.shape.dim.add()
            if isinstance(n, int):
                dim.dim_value = n
    return found


def _node(record: NodeRecord) -> onnx.NodeProto:
    """The node in ONNX's form.

    Raises:
        UnsupportedOperatorError: it has graphs or tensors as attributes.
    """
    helper: Any = import_module("onnx.helper")
    made: onnx.NodeProto = helper.make_node(
        record.op, record.inputs, record.outputs, domain=record.domain
    )
    for name, value in record.attributes.items():
        if not isinstance(value, (int, float, str, tuple)):
            raise UnsupportedOperatorError(
                f"{record.label}: attribute {name}, a graph or tensor, is not supported"
            )
        if value != ():
            made.attribute.append(helper.make_attribute(name, value))
    return made


def _set_attributes(node: onnx.NodeProto, values: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace references to attributes of the function by their values. An attribute without a
    value is left out."""
    own = list(node.attribute)
    del node.attribute[:]
    for attribute in own:
        value = values[attribute.ref_attr_name] if attribute.ref_attr_name else attribute
        if value.type:
            added = node.attribute.add()
            added.CopyFrom(value)
            added.name = attribute.name
