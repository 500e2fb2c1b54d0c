"""Nodes are held against what ONNX says of their operators."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, defs, helper
from tests.frontends.onnx_models import model_of, parsed

from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.errors import FTunerError, GraphError
from ftuner.frontends.onnx.importer import SUPPORTED, import_model
from ftuner.frontends.onnx.records import MICROSOFT

X = {"x": ("float32", ["n", 3])}


def attribute(name: str, kind: str, **value: Any) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind), **value)


ATTRIBUTES = {
    "none of that name": (attribute("keep_dims", "INT", i=1), "no attribute is called 'keep_dims'"),
    "a float": (attribute("keepdims", "FLOAT", f=1.0), "keepdims is 1.0; expected int"),
    "a text": (attribute("keepdims", "STRING", s=b"1"), "keepdims is '1'; expected int"),
    "a list": (attribute("keepdims", "INTS", ints=[1]), r"keepdims is \(1,\); expected int"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    given, text = ATTRIBUTES[name]
    node = helper.make_node("ReduceMax", ["x"], ["y"])
    node.attribute.append(given)
    with pytest.raises(GraphError, match=f"^ReduceMax node that gives 'y': .*{text}"):
        import_model(model_of([node], X, ["y"]))


def test_members_of_lists() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"])
    node.attribute.append(attribute("perm", "FLOATS", floats=[1.0, 0.0]))
    with pytest.raises(GraphError, match=r"perm is \(1\.0, 0\.0\); expected ints"):
        import_model(model_of([node], X, ["y"]))


def imported(nodes: str, opset: int = 18, **constants: Any) -> None:
    import_model(parsed(f"(float[n, 3] x) => (y) {{ {nodes} }}", opset, **constants))


def test_what_an_importer_does_not_read() -> None:
    with pytest.raises(GraphError, match="seed is 'soon'; expected int"):
        imported('y = Dropout<seed="soon">(x)')


def test_inputs() -> None:
    with pytest.raises(GraphError, match="2 inputs; at most 1"):
        imported("y = Erf(x, x)")
    imported("y = Max(x, x, x, x, x, x, x, x, x)")


def test_versions_differ() -> None:
    """Axes of a sum were an attribute before they were an input."""
    imported("y = ReduceSum<axes=[1]>(x)", 12)
    with pytest.raises(GraphError, match="no attribute is called 'axes'; there are: keepdims"):
        imported("y = ReduceSum<axes=[1]>(x)", 13)


def test_what_onnx_does_not_know() -> None:
    """Norms had no version of their own before 17, where exporters wrote them all the same."""
    norm = "y = LayerNormalization<axis=-1, stash_type=1>(x, w)"
    imported(norm, 13, w=np.ones(3, np.float32))
    imported("y = com.microsoft.QuickGelu<alpha=1.0>(x)")


@pytest.mark.parametrize("opset", [99, 2**31 - 1, 2**31, 2**62])
def test_versions_that_are_yet_to_come(opset: int) -> None:
    """They have what the latest one has."""
    imported("y = Erf(x)", opset)


def test_a_double_and_a_float() -> None:
    with pytest.raises(GraphError, match="input 0 is of float32 and input 1 of float64"):
        imported("y = Add(x, w)", w=np.ones(3))


SCHEMAS = [
    s for s in defs.get_all_schemas_with_history()
    if (s.domain, s.name) in SUPPORTED and not s.deprecated and (s.since_version >= 7 or s.domain)
]  # fmt: skip
"""Of all versions of the operators of ONNX that are not converted before they are imported."""
DOUBLE = "tensor(double)"
TYPES = {
    f"tensor({name.lower()})": number
    for name, number in TensorProto.DataType.items()
    if {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower()) in ELEMENT_DTYPES
}
"""ONNX's numbers of the types that tensors may have here."""


def some_type(given: Any) -> str:
    """A type that an input may have."""
    return next((t for t in sorted(given.types) if t in TYPES), "")


def of_inputs(schema: Any, types: Sequence[str]) -> Any:
    """A model of one node with tensors of these types; an empty one is left out."""
    names = [f"x{number}" if type_ else "" for number, type_ in enumerate(types)]
    node = helper.make_node(schema.name, names, ["y"], domain=schema.domain)
    values = [
        helper.make_tensor_value_info(name, TYPES[type_], ["n", 3])
        for name, type_ in zip(names, types, strict=True)
        if name
    ]
    graph = helper.make_graph([node], "test", values, [helper.make_empty_tensor_value_info("y")])
    opset = helper.make_opsetid(schema.domain, schema.since_version)
    return helper.make_model(graph, opset_imports=[opset])


def some_types(schema: Any, count: int) -> list[str]:
    """A type for each of some inputs, of which those of one kind have one; empty for those that are
    no tensors."""
    kinds: dict[str, str] = {}
    inputs = schema.inputs
    found = [inputs[min(i, len(inputs) - 1)] for i in range(count)]
    return [kinds.setdefault(x.type_str, some_type(x)) for x in found]


def refused(schema: Any, types: Sequence[str], text: str) -> None:
    label = f"^{schema.name} node that gives 'y': "
    with pytest.raises(GraphError, match=label + text):
        import_model(of_inputs(schema, types))


NAMED = {"argvalues": SCHEMAS, "ids": [f"{s.name}-{s.since_version}" for s in SCHEMAS]}


@pytest.mark.parametrize("schema", **NAMED)
def test_numbers_of_inputs(schema: Any) -> None:
    """A node says by how many inputs it has too few or too many."""
    least, most = schema.min_input, schema.max_input
    if least > 0:
        refused(schema, some_types(schema, least - 1), rf"{least - 1} inputs?; at least {least}")
    if most < 2**31 - 1:
        more = [*some_types(schema, most), DOUBLE] if most else [DOUBLE]
        refused(schema, more, rf"{most + 1} inputs; at most {most}")


@pytest.mark.parametrize("schema", **NAMED)
def test_required_inputs(schema: Any) -> None:
    types = some_types(schema, schema.min_input)
    for number, given in enumerate(schema.inputs[: schema.min_input]):
        if given.option.name == "Single" and all(types[:number]):
            refused(schema, ["" if i == number else t or DOUBLE for i, t in enumerate(types)],
                    f"input {number} is missing")  # fmt: skip


def _kind(tensor: str) -> str:
    """What a type of tensors holds, whatever its length."""
    name = tensor.removeprefix("tensor(").removesuffix(")").rstrip("0123456789")
    return {"bfloat": "float", "double": "float", "uint": "int"}.get(name, name)


@pytest.mark.parametrize("schema", **NAMED)
def test_types_of_inputs(schema: Any) -> None:
    """Inputs hold what the schema says, numbers of other lengths too, and those of one kind have
    one type."""
    count = max(schema.min_input, len(schema.inputs))
    types = some_types(schema, count)
    inputs = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(count)]
    if not all(types):
        return
    for number, given in enumerate(inputs):
        kinds = {_kind(t) for t in given.types}
        others = {t for t in TYPES if _kind(t) not in kinds}
        if others:
            wrong = [*types[:number], min(others), *types[number + 1 :]]
            refused(schema, wrong, f"input {number} is of [a-z0-9]+; expected ")
        first = next(i for i, x in enumerate(inputs) if x.type_str == given.type_str)
        second = sorted(t for t in TYPES if t in given.types and t != types[number])
        if first < number and second and given.is_homogeneous:
            wrong = [*types[:number], second[0], *types[number + 1 :]]
            text = f"input {first} is of [a-z0-9]+ and input {number} of [a-z0-9]+; "
            refused(schema, wrong, text)


@pytest.mark.parametrize("op", sorted(op for domain, op in SUPPORTED if domain == MICROSOFT))
def test_operators_without_a_schema(op: str) -> None:
    """Nodes of onnxruntime's operators with any number of inputs are models or named errors."""
    for count in range(20):
        names = [f"x{number}" for number in range(count)]
        node = helper.make_node(op, names, ["y"], domain=MICROSOFT)
        with suppress(FTunerError):
            import_model(model_of([node], {name: ("float32", ["n", 3]) for name in names}, ["y"]))
