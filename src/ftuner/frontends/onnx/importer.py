"""Imports an ONNX model as a graph.

First all unsupported operators are collected. Then nodes are imported in topological order, each by
the importer of its operator.
"""

from __future__ import annotations

import logging
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from ftuner.core.dim import Dim, Names, Shape
from ftuner.core.dtype import INT8
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.frontends.onnx import reading
from ftuner.frontends.onnx.blocked import channels_of_blocks
from ftuner.frontends.onnx.context import Context, NodeView, Nothing, Operand
from ftuner.frontends.onnx.definitions import definition_of, is_defined
from ftuner.frontends.onnx.files import NO_FILES
from ftuner.frontends.onnx.functions import inlined
from ftuner.frontends.onnx.records import (
    NCHWC,
    GraphRecord,
    InputRecord,
    ModelMetadata,
    ModelRecord,
    NodeRecord,
)
from ftuner.frontends.onnx.schemas import expect_valid
from ftuner.frontends.onnx.signatures import REGISTERED, importer_of
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Graph, TensorType, Value
from ftuner.graph.specialization import Answer, RunTimeNumberError, dims_of_pattern, input_name

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)

for _module in iter_modules([str(Path(__file__).parent)]):
    import_module(f"{__package__}.{_module.name}")
IMPORTERS = REGISTERED
SUPPORTED = frozenset(IMPORTERS)
"""Operators that ftuner supports, by domain and type."""
LEAST_OPSET = 7
"""First opset whose operators broadcast as NumPy does. Models of older ones are converted."""
NODES_LISTED = 3
"""Names of nodes that an error message lists for each unsupported operator."""

Scope = MutableMapping[str, "Operand | None"]
"""Values by name; None for the empty name."""


@dataclass(frozen=True)
class Imported:
    """A model as a graph, and a description of the file's graph."""

    graph: Graph
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    """The nodes of the file, a line each."""
    metadata: ModelMetadata


def import_model(source: reading.Source) -> Imported:
    """Import a model from a path, its bytes or an `onnx.ModelProto`.

    A named dim becomes a symbol of that name; an unnamed one gets a name from the input and axis.
    Data outside the file is read only from the folder of the path, as it is given or linked to, or
    without a path from the working folder.

    Raises:
        ConfigurationError: `onnx` is not installed.
        UnsupportedOperatorError: the model has operators that ftuner lacks, all of which the
            message lists.
        RunTimeNumberError: the graph depends on elements that are known only at run time.
        GraphError: the model is malformed, or has unsupported dtypes.
        ShapeError: extents contradict each other.
    """
    return import_record(read_model(source))


def read_model(
    source: reading.Source, weights: Mapping[str, Array] = reading.NO_WEIGHTS,
    folder: Path | None = None, held: Mapping[str, Array] = NO_FILES,
) -> ModelRecord:  # fmt: skip
    """The contents of a model whose operators all have an importer; see `import_model`.

    Args:
        weights: arrays in the place of initialisers of these names, which are not read.
        folder: of data outside the file, in the place of the folder of the path.
        held: the bytes of files of such data, by location, which are not looked for.

    Raises:
        ConfigurationError, UnsupportedOperatorError, GraphError: as `import_model`.
    """
    proto, data = reading.load(source, folder, held)
    proto = _modern(inlined(proto))
    _expect_supported(proto.graph.node, reading.versions_of(proto.opset_import), "the model")
    return reading.read(proto, data, weights)


def _modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with operators of `LEAST_OPSET` or later, converted by onnx where they are older.

    Raises:
        GraphError: onnx cannot convert it.
    """
    opset = reading.versions_of(model.opset_import).get("", LEAST_OPSET)
    if opset >= LEAST_OPSET:
        return model
    converter = import_module("onnx.version_converter")
    try:
        found: onnx.ModelProto = converter.convert_version(model, LEAST_OPSET)
    except Exception as error:  # Raised by the C++ part of onnx.
        raise GraphError(
            f"the model is of opset {opset}, and onnx cannot convert it to {LEAST_OPSET}: {error}"
        ) from error
    _LOG.info("the model is of opset %d; onnx has converted it to %d", opset, LEAST_OPSET)
    return found


def _expect_supported(
    nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], whole: str
) -> None:
    """Raise UnsupportedOperatorError unless all operators of nodes have an importer, or are defined
    by others. `whole` is what has the nodes."""
    missing: dict[str, list[str]] = {}
    for node in reading.nodes_of(nodes):
        domain, op = reading.domain_of(node.domain), reading.text_of(node.op_type)
        if importer_of(domain, op) is None and not is_defined(domain, op, opsets.get(domain, 0)):
            name = f"{domain}.{op}" if domain else op
            missing.setdefault(name, []).append(node.name or next(iter(node.output), ""))
    if not missing:
        return
    entries = []
    for name, found in sorted(missing.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        shown = [repr(n) for n in found[:NODES_LISTED]]
        shown += ["..."] if len(found) > NODES_LISTED else []
        entries.append(f"{name} ({len(found)}: {', '.join(shown)})")
    what = "operator of {} is" if len(missing) == 1 else "operators of {} are"
    raise UnsupportedOperatorError(
        f"{len(missing)} {what.format(whole)} not supported: {'; '.join(entries)}"
    )


def import_record(model: ModelRecord, answers: Sequence[Answer] = ()) -> Imported:
    """Import the contents of a model. `answers`: to each `RunTimeNumberError` so far, in order; the
    graph then has an input more for each of their symbols.

    Raises:
        UnsupportedOperatorError, RunTimeNumberError, GraphError, ShapeError: as `import_model`.
    """
    exact: dict[str, Array] = {}
    dims: dict[str, tuple[Dim, ...]] = {}
    block = channels_of_blocks(model.graph) if NCHWC in model.opsets else 0
    context = Context(Builder(dims), exact, block=block)
    scope: Scope = {"": None}
    inputs = []
    _expect_distinct(model.graph)
    for record in model.inputs:
        value = context.builder.input(record.name, record.dtype, shape_of(record, context.names))
        inputs.append(value)
        scope[record.name] = value
    given = tuple(inputs)
    for answer in answers:
        if answer.exact is not None:
            exact[answer.name] = answer.exact
            continue
        symbols = []
        for number in range(sum(entry.number is None for entry in answer.pattern)):
            symbols.append(context.names.fresh(f"{answer.name}_{number}"))
            name = input_name(answer.name, number)
            inputs.append(context.builder.input(name, INT8, (symbols[-1],)))
        dims[answer.name] = dims_of_pattern(answer, symbols)
        asked = scope.get(answer.name)
        if isinstance(asked, Value):
            context.builder.known.presume(asked, dims[answer.name])
    try:
        with context.builder.writing():
            _import_graph(context, model.graph, scope, model.opsets)
    except RunTimeNumberError as need:
        need.graph = context.builder.graph(inputs, [(need.value.name, need.value)])
        raise
    outputs = [(name, _tensor(scope, name)) for name in model.graph.outputs]
    if not outputs:
        raise GraphError("the model has no outputs")
    graph = context.builder.graph(inputs, outputs)
    return Imported(
        graph,
        tuple((value.name, value.type) for value in given),
        tuple(model.graph.outputs),
        tuple(map(str, model.graph.nodes)),
        model.metadata,
    )


def _expect_distinct(graph: GraphRecord) -> None:
    """Raises GraphError unless inputs and outputs have distinct, non-empty names."""
    for what, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        for name, count in Counter(names).items():
            if count > 1 or not name:
                raise GraphError(f"{count} {what} of the model are named {name!r}")


def shape_of(record: InputRecord, names: Names) -> Shape:
    """The shape of an input, with symbols of these names.

    Raises:
        GraphError: the file has no shape of it.
    """
    if record.dims is None:
        raise GraphError(
            f"input {record.name!r} has no shape in the file; only runs, which give one, tell its "
            "number of axes"
        )
    return tuple(
        dim if isinstance(dim, int)
        else names.named(name) if (name := record.symbol(axis))
        else names.fresh(f"{record.name}_{axis}")
        for axis, dim in enumerate(record.dims)
    )  # fmt: skip


def _output(scope: Scope, name: str) -> Operand:
    found = scope.get(name)
    if found is None:
        raise GraphError(f"no node gives the output {name!r}")
    return found


def _tensor(scope: Scope, name: str) -> Value:
    found = _output(scope, name)
    if not isinstance(found, Value):
        kind = "optional" if isinstance(found, Nothing) else "sequence"
        raise UnsupportedOperatorError(f"output {name!r}: type {kind} is not supported")
    return found


def _import_graph(
    context: Context, graph: GraphRecord, scope: Scope, opsets: Mapping[str, int]
) -> None:
    """Import the nodes of a graph. `scope` has the values that it may read; its own are added."""
    for name, tensor in graph.constants.items():
        if name in scope:
            raise GraphError(f"initialiser {name!r} has the name of another value")
        scope[name] = context.builder.stored(tensor.array, tensor.dtype)
    for record in ordered(graph, scope):
        context.builder.where = record.label
        opset = opsets.get(record.domain)
        if opset is None:
            raise GraphError(f"{record.label}: the model names no version of {record.domain!r}")
        operands = tuple(scope[name] for name in record.inputs)
        expect_valid(record, opset, operands)
        context.builder.operands = tuple(v.shape for v in operands if isinstance(v, Value))
        importer = importer_of(record.domain, record.op)
        results: Sequence[Operand]
        if importer is None:
            results = _import_definition(context, record, operands, opsets)
        else:
            inner = partial(_import_inner, scope, opsets)
            results = importer(context, NodeView(record, opset, operands, inner))
        if len(results) < len([name for name in record.outputs if name]):
            raise GraphError(
                f"{record.label}: {len(record.outputs)} outputs; there are {len(results)}"
            )
        scope.update((n, v) for n, v in zip(record.outputs, results, strict=False) if n)
        context.builder.where, context.builder.operands = "", ()


def _import_inner(
    scope: Scope, opsets: Mapping[str, int], context: Context, graph: GraphRecord,
    operands: Sequence[Operand],
) -> list[Operand]:  # fmt: skip
    """The outputs of a graph within a node, of which `scope` has the values around it."""
    where = context.builder.where
    if len(operands) != len(graph.inputs):
        raise GraphError(f"{where}: {len(operands)} inputs of a graph that has {len(graph.inputs)}")
    given: Scope = dict(zip(graph.inputs, operands, strict=True))
    inner: Scope = ChainMap(given, scope)
    _import_graph(context, graph, inner, opsets)
    context.builder.where = where
    return [_output(inner, name) for name in graph.outputs]


def _import_definition(
    context: Context,
    record: NodeRecord,
    operands: Sequence[Operand | None],
    opsets: Mapping[str, int],
) -> list[Operand]:
    """The outputs of a node whose operator is defined by others."""
    types = [v.type if isinstance(v, Value) else None for v in operands]
    found = definition_of(record, opsets[record.domain], types)
    inner_opsets = {**opsets, **reading.versions_of(found.opset_import)}
    _expect_supported(found.node, inner_opsets, f"the definition of {record.label}")
    # Error messages name the node of the file.
    name = record.name or next(filter(None, record.outputs), "")
    nodes = [
        replace(node, name=f"{name}/{next(filter(None, node.outputs), '')}")
        for node in reading.read_nodes(found.node)
    ]
    inner: Scope = {"": None, **dict.fromkeys(found.input)}
    inner.update(zip(found.input, operands, strict=False))
    graph = GraphRecord((), tuple(found.output), {}, tuple(nodes))
    _import_graph(context, graph, inner, inner_opsets)
    return [_output(inner, name) for name in found.output[: len(record.outputs)]]


def ordered(graph: GraphRecord, known: Mapping[str, object]) -> list[NodeRecord]:
    """The nodes of a graph in topological order, otherwise in the file's order.

    Raises:
        GraphError: no node or two nodes give a name, or there is a cycle.
    """
    givers: dict[str, int] = {}
    for number, node in enumerate(graph.nodes):
        for name in filter(None, node.outputs):
            if name in givers or name in known:
                raise GraphError(f"{node.label}: {name!r} has been given by another node already")
            givers[name] = number
    read: list[set[int]] = []
    for node in graph.nodes:
        read.append(set())
        for name in names_read(node):
            if name in givers:
                read[-1].add(givers[name])
            elif name not in known:
                raise GraphError(f"{node.label}: nothing gives its input {name!r}")
    if all(source < number for number, found in enumerate(read) for source in found):
        return list(graph.nodes)
    sorter = TopologicalSorter[int](dict.fromkeys(range(len(read)), ()))
    for number, found in enumerate(read):
        sorter.add(number, *found)
    try:
        return [graph.nodes[number] for number in sorter.static_order()]
    except CycleError as error:
        stuck = [graph.nodes[number].label for number in error.args[1][1:]]
        raise GraphError(f"nodes wait for each other: {', '.join(stuck[:NODES_LISTED])}") from None


def names_read(node: NodeRecord) -> Iterator[str]:
    """The names that a node reads, including those that graphs within it read from outside."""
    yield from node.inputs
    for attribute in node.attributes.values():
        if isinstance(attribute, GraphRecord):
            yield from _names_around(attribute)


def _names_around(graph: GraphRecord) -> Iterator[str]:
    own = {*graph.constants, *graph.inputs}
    own |= {name for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        yield from (name for name in names_read(node) if name not in own)
    yield from (name for name in graph.outputs if name not in own)
