"""Inlines the functions that a model defines.

Functions that call each other can expand to far more nodes than the file has, so the expanded size
is computed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ftuner.errors import GraphError
from ftuner.frontends.onnx.reading import domain_of, nodes_of, versions_of

if TYPE_CHECKING:
    import onnx

FREE_NODES = 1024
MAX_REPEATED = 128
"""Most nodes of the expanded functions for each node of the file, in addition to FREE_NODES. The
layers of the largest language models repeat each node about eighty times."""
FREE_BYTES = 16 << 20
MAX_REPEATED_BYTES = 4
"""The same in bytes; constants in functions count as well."""
MAX_CALL_DEPTH = 64
"""Deepest chain of function calls. `onnx` recurses, and refuses a hundred."""

MOST = 1 << 62
"""Upper limit of counts."""

Name = tuple[str, str, str]
"""Domain, name and overload of a function."""


class _Extent(NamedTuple):
    """The size of nodes once functions are inlined."""

    nodes: int = 0
    size: int = 0
    depth: int = 0

    def plus(self, other: _Extent) -> _Extent:
        depth = max(self.depth, other.depth)
        nodes, size = self.nodes + other.nodes, self.size + other.size
        return _Extent(min(nodes, MOST), min(size, MOST), depth)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its own functions inlined.

    Raises:
        GraphError: a function calls itself, expands to too many nodes, or cannot be inlined.
    """
    if not model.functions:
        return model
    whole = _extent(model.graph.node, _extents(model.functions))
    written = len(list(nodes_of(model.graph.node)))
    written += sum(len(list(nodes_of(f.node))) for f in model.functions)
    size = model.ByteSize()
    if whole.nodes > FREE_NODES + MAX_REPEATED * written:
        raise GraphError(
            f"the functions of the model stand for {whole.nodes:.4g} nodes, where the file has "
            f"{written}; expected at most {MAX_REPEATED} times as many and {FREE_NODES}"
        )
    if whole.size > FREE_BYTES + MAX_REPEATED_BYTES * size:
        raise GraphError(
            f"the functions of the model stand for {whole.size:.4g} bytes, where the file has "
            f"{size}; expected at most {MAX_REPEATED_BYTES} times as many and {FREE_BYTES}"
        )
    if whole.depth > MAX_CALL_DEPTH:
        raise GraphError(
            f"functions of the model call each other {whole.depth} deep; at most {MAX_CALL_DEPTH}"
        )
    model, apart = _of_equal_versions(model)
    try:
        # Where versions differ, onnx converts nodes, for which it infers types.
        found: onnx.ModelProto = import_module("onnx.inliner").inline_local_functions(
            model, bool(apart)
        )
    except Exception as error:  # Raised by the C++ part of onnx.
        reason = f"{', '.join(apart)}: of other operator sets than the model; " if apart else ""
        raise GraphError(
            f"functions of the model cannot be written out: {reason}{error}"
        ) from error
    return found


def _of_equal_versions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The model whose functions name the operator sets that the graph has, where their nodes mean
    the same in both; and the names of the other functions. `onnx` inlines only what has the
    versions of the graph, or is converted to them."""
    versions = versions_of(model.opset_import)
    if all(_missed(function, versions) == {} for function in model.functions):
        return model, []
    found = type(model)()
    found.CopyFrom(model)
    apart = []
    for function in found.functions:
        missed = _missed(function, versions)
        if not all(_means_the_same(node, missed, versions) for node in nodes_of(function.node)):
            apart.append(f"{function.domain}.{function.name}")
            continue
        for opset in function.opset_import:
            opset.version = versions.get(domain_of(opset.domain), opset.version)
    return found, apart


def _missed(function: onnx.FunctionProto, versions: Mapping[str, int]) -> dict[str, int]:
    """The operator sets of a function of which the graph has another version."""
    own = versions_of(function.opset_import)
    return {domain: n for domain, n in own.items() if versions.get(domain, n) != n}


def _means_the_same(
    node: onnx.NodeProto, missed: Mapping[str, int], versions: Mapping[str, int]
) -> bool:
    """Whether both versions of the domain of a node define its operator with equal inputs and
    attributes. Such definitions differ in the dtypes that they take."""
    domain = domain_of(node.domain)
    if domain not in missed:
        return True
    defs = import_module("onnx.defs")
    try:
        own, other = (
            _form(defs.get_schema(node.op_type, version, domain))
            for version in (missed[domain], versions[domain])
        )
    except defs.SchemaError:
        return False
    return own == other


def _form(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Names of inputs and outputs, and attributes with their defaults."""
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    ends = [[(x.name, x.option) for x in of] for of in (schema.inputs, schema.outputs)]
    return (*ends, attributes)


def _extents(functions: Iterable[onnx.FunctionProto]) -> dict[Name, _Extent]:
    """The expanded size of each function.

    Raises:
        GraphError: two functions have one name, or a function calls itself.
    """
    bodies: dict[Name, onnx.FunctionProto] = {}
    for function in functions:
        name = (function.domain, function.name, _overload(function))
        if bodies.setdefault(name, function) is not function:
            raise GraphError(f"more than one function is named {function.name!r}")
    called = {
        name: {_called(n) for n in nodes_of(function.node)} & bodies.keys()
        for name, function in bodies.items()
    }
    found: dict[Name, _Extent] = {}
    try:
        for name in TopologicalSorter(called).static_order():
            found[name] = _extent(bodies[name].node, found)
    except CycleError as error:
        names = ", ".join(sorted({name for _, name, _ in error.args[1]}))
        raise GraphError(f"functions of the model that call themselves: {names}") from None
    return found


def _extent(nodes: Iterable[onnx.NodeProto], known: dict[Name, _Extent]) -> _Extent:
    """The expanded size of nodes and of the graphs within them; `known` has the functions'."""
    total = _Extent()
    for node in nodes_of(list(nodes)):
        called = known.get(_called(node))
        if called is None:
            total = total.plus(_Extent(1, node.ByteSize()))
        else:
            total = total.plus(called._replace(depth=called.depth + 1))
    return total


def _called(node: onnx.NodeProto) -> Name:
    """The name of the function that a node calls, if it calls one."""
    return node.domain, node.op_type, _overload(node)


def _overload(proto: onnx.NodeProto | onnx.FunctionProto) -> str:
    """The overload, which distinguishes functions of one name since version 10 of the format."""
    return getattr(proto, "overload", "")
