"""Chains: the executables of one graph, run one after the other, with host nodes between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

from ftuner.core.dim_symbols import symbols_of
from ftuner.core.dtype import DType
from ftuner.core.evaluation import all_symbols_in, evaluate
from ftuner.errors import ConfigurationError, IndexRangeError, UnsupportedKernelError
from ftuner.graph.appending import Appended
from ftuner.graph.ir import Graph, Node, Value, attribute_dims
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.control import MAX_TRIPS, Host, Iterations, once
from ftuner.graph.splitting import Part, SplitGraph, split
from ftuner.runtime.backend import Backend, Boundary, Executable
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.reference import bound_attributes
from ftuner.runtime.shapes.binding import Binding, bind
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.shown_progress import Progress

MAX_TRIPS_VARIABLE = "FTUNER_MAX_TRIPS"
"""The environment variable of the most iterations of a loop."""
Apply = Callable[[Executable, list[Any]], list[Any]]
"""Runs an executable on operands."""
Evaluate = Callable[[list[Any], dict[str, int]], Sequence[Any]]
"""Computes the results of a host node, whose dims have these symbols."""


class Timed(NamedTuple):
    """A step or a host node of one run, and its time."""

    title: str
    """Its operators."""
    kind: str
    """That of a step; `host` for a host node."""
    began_ns: int
    """By `time.monotonic_ns`."""
    duration_ns: int


Note = Callable[[Timed], None]


class Chain:
    """A graph in parts. Each part, and each graph within a host node, is compiled once. Safe to use
    from several threads."""

    def __init__(
        self, graph: Graph, parts: Sequence[Part], backend: Backend, boundary: Boundary,
        threads: SupportsIndex | None, held: DType | None, progress: Progress | None,
        appended: Sequence[Appended] = (), shared: SharedWeights | None = None,
        used_up: bool = False, kept: KeptMemory | None = None,
    ) -> None:  # fmt: skip
        """Compile the parts of a graph; `threads`, `held`, `shared`, `used_up` and `kept` are those
        of `Backend.compile`, and so is `appended`, of the one part of a graph.

        Raises:
            UnsupportedOperatorError, ConfigurationError, HardwareError: as `Backend.compile`.
        """

        def chain(graph: Graph) -> Chain:
            return Chain(
                graph, split(graph), backend, boundary, threads, held, progress, (), shared,
                kept=kept,
            )  # fmt: skip

        self._inputs = parts[0].graph.inputs
        self._outputs = [value for _, value in graph.outputs]
        self._constants: dict[Value, Any] = {}
        self._links: list[_Link] = []
        self._graph = replace(graph, nodes=())
        self._headers: list[tuple[Part, Mapping[str, Chain]]] = []
        """The parts without nodes, and what runs the graphs of the node after each."""
        for part in parts:
            outputs = tuple(value for _, value in part.graph.outputs)
            executable = None
            if not part.is_empty:
                executable = backend.compile(
                    part.graph, threads, held, progress, appended, shared, used_up, part.compiled,
                    kept,
                )  # fmt: skip
            between, node = None, part.node
            chains: dict[str, Chain] = {}
            if node is not None:
                chains = {n: chain(x) for n, x in node.attributes.items() if isinstance(x, Graph)}
                evaluate = _evaluation(node, boundary, chains)
                between = _Between(node, evaluate, tuple(chains.values()))
                self._keep(node.inputs, boundary)
            # An executable checks the extents that it is given.
            checks = Binding(part.graph) if executable is None or _has_dims(part.node) else None
            self._links.append(_Link(part.graph.inputs, executable, checks, outputs, between))
            if node is not None and chains:
                # Graphs have weights.
                rest = {n: x for n, x in node.attributes.items() if n not in chains}
                node = replace(node, attributes=rest)
            self._headers.append((Part(replace(part.graph, nodes=()), node), chains))
        self._of_parts = any(value.dtype.on_host for value in self._outputs)
        """Whether outputs are results of more than the last part."""
        if self._of_parts:
            self._keep(self._outputs, boundary)
        self.executables = [k.executable for k in self._links if k.executable is not None]
        """Those of the graph itself, in order, without those of graphs within host nodes."""

    def split_graph(self) -> SplitGraph:
        """The graph with what was compiled of its parts.

        Raises:
            SavedModelError: parts that are not on a CPU.
        """
        parts: list[Part] = []
        for (part, chains), link in zip(self._headers, self._links, strict=True):
            if part.node is not None and chains:
                inner = {n: x.split_graph() for n, x in chains.items()}
                node = replace(part.node, attributes={**part.node.attributes, **inner})
                part = replace(part, node=node)
            if link.executable is not None:
                part = replace(part, compiled=link.executable.compiled())
            parts.append(part)
        graph = self._graph
        return SplitGraph(self._inputs, graph.outputs, (), graph.constraints, tuple(parts))

    def all_executables(self) -> Iterator[Executable]:
        """Those of the graph and of the graphs within its host nodes."""
        for (_, chains), link in zip(self._headers, self._links, strict=True):
            if link.executable is not None:
                yield link.executable
            for chain in chains.values():
                yield from chain.all_executables()

    def _keep(self, values: Sequence[Value], boundary: Boundary) -> None:
        """Have those that are constants on the device."""
        for value in values:
            if value.constant is not None:
                self._constants[value] = boundary.moved(value.constant, value.dtype)

    def run(self, operands: Sequence[Any], note: Note | None = None) -> list[Any]:
        """The outputs, for an operand for each input, as `Boundary.admitted` returns them. `note`
        gets what the run took its time for.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `Executable.run`.
            IterationLimitError: a loop does not end.
        """
        if note is not None:
            return self.through(operands, partial(_noted, note), note)
        if len(self._links) == 1 and not self._of_parts:
            return self.executables[0].run(operands)
        return self.through(operands, lambda executable, given: executable.run(given))

    def repeat(
        self, operands: Sequence[Any], carried: int, conditional: bool, most: int
    ) -> Iterations:
        """Iterations of a loop of which this is the graph; see `control.Repeat`.

        Raises:
            ShapeError, AllocationError, IndexRangeError, IterationLimitError: as `run`.
        """
        found = None
        if len(self._links) == 1:
            found = self.executables[0].repeat(operands, carried, conditional, most)
        return once(self.run, operands, carried, conditional, most) if found is None else found

    def through(self, operands: Sequence[Any], apply: Apply, note: Note | None = None) -> list[Any]:
        """The outputs, where `apply` runs `executables`; graphs within host nodes are run as
        ever. `note` gets the time of each host node."""
        known = dict(zip(self._inputs, operands, strict=True))
        known.update(self._constants)
        results: list[Any] = []
        for link in self._links:
            given = [known[v] for v in link.inputs]
            if link.executable is not None:
                results = apply(link.executable, given)
            dims: dict[str, int] = {}
            if link.checks is not None:
                values = link.checks([x.shape for x in given])
                dims = dict(zip(link.checks.names, values, strict=True))
            known.update(zip(link.outputs, results, strict=False))
            if link.between is not None:
                node, evaluate, _ = link.between
                began_ns = time.monotonic_ns()
                found = evaluate([known[v] for v in node.inputs], dims)
                if note is not None:
                    note(Timed(node.op, "host", began_ns, time.monotonic_ns() - began_ns))
                known.update(zip(node.outputs, found, strict=True))
                results = []
        return [known.get(v) for v in self._outputs] if self._of_parts else results

    def prepare(self, known: Sequence[Mapping[str, int]]) -> list[str]:
        """Prepare the executables, those of graphs within host nodes included, for values of the
        symbols; returns what is not prepared, and why. Iterations of a loop are prepared for the
        shapes of the first one.

        Raises:
            AllocationError, UnsupportedKernelError: as `Executable.prepare`.
        """
        skipped: list[str] = []
        for number, link in enumerate(self._links):
            if link.executable is not None:
                shapes = _shapes(link.inputs, known)
                if shapes is None:
                    skipped.append(f"part {number + 1}: an extent of its inputs depends on data")
                else:
                    skipped += link.executable.prepare(shapes)
            if link.between is None:
                continue
            node, _, graphs = link.between
            for graph in graphs:
                # After the number of iterations and whether to begin, or after the condition.
                first = 1 if node.op == "choose" else 2
                shapes = _shapes(node.inputs[first : first + len(graph._inputs)], known)
                if shapes is None:
                    skipped.append(f"a graph of {node.op}: an extent of an operand depends on data")
                    continue
                inner = Graph(graph._inputs, (), ())
                skipped += graph.prepare([bind(inner, found) for found in shapes])
        return list(dict.fromkeys(skipped))


class _Between(NamedTuple):
    """A host node, how it is computed, and its graphs."""

    node: Node
    evaluate: Evaluate
    graphs: tuple[Chain, ...]


class _Link(NamedTuple):
    """A compiled part and the node after it. A part without outputs has no executable, and only
    checks extents; the same binds the dims of the node's attributes."""

    inputs: tuple[Value, ...]
    executable: Executable | None
    checks: Binding | None
    outputs: tuple[Value, ...]
    between: _Between | None


def _noted(note: Note, executable: Executable, operands: list[Any]) -> list[Any]:
    """The outputs of an executable; `note` gets its steps, of which the last ended now."""
    begun_ns = time.monotonic_ns()
    try:
        outputs, seconds = executable.timed(operands)
    except UnsupportedKernelError:
        # A CUDA graph is being captured, within which no step can be measured.
        outputs = executable.run(operands)
        note(Timed("capture of all steps", "captured", begun_ns, time.monotonic_ns() - begun_ns))
        return outputs
    durations = [round(1e9 * x) for x in seconds]
    began_ns = time.monotonic_ns() - sum(durations)
    for step, duration_ns in zip(executable.lowered.steps, durations, strict=True):
        note(Timed(step.title, step.kind, began_ns, duration_ns))
        began_ns += duration_ns
    return outputs


def _has_dims(node: Node | None) -> bool:
    """Whether attributes of a node have dims that are known only at run time."""
    return node is not None and bool(symbols_of(attribute_dims(node)))


def _shapes(
    values: Sequence[Value], known: Sequence[Mapping[str, int]]
) -> list[list[tuple[int, ...]]] | None:
    """The shapes of some values for values of the symbols; None if they depend on others."""
    if not all(all(all_symbols_in([d for v in values for d in v.shape], k)) for k in known[:1]):
        return None
    return [[tuple(evaluate(d, extents) for d in v.shape) for v in values] for extents in known]


def _evaluation(node: Node, boundary: Boundary, graphs: Mapping[str, Chain]) -> Evaluate:
    """How a host node is computed: if it has graphs, on the arrays of the device."""
    if not graphs:
        return partial(_evaluated, node, boundary)
    repeat = graphs["body"].repeat if "body" in graphs else None
    host = Host(boundary.joined, max_trips(), repeat)
    runs = {n: x.run for n, x in graphs.items()}
    run = partial(OPERATORS[node.op].reference, **{**node.attributes, **runs}, host=host)
    several = len(node.outputs) > 1

    def evaluate(operands: list[Any], dims: dict[str, int]) -> Sequence[Any]:
        results = run(*operands)
        return results if several else (results,)

    return evaluate


def _evaluated(
    node: Node, boundary: Boundary, operands: list[Any], dims: dict[str, int]
) -> Sequence[Any]:
    """The results of a node by its reference.

    Raises:
        IndexRangeError: an index in the data that is out of range.
    """
    bound = replace(node, attributes=bound_attributes(node, dims)) if dims else node
    try:
        return boundary.evaluated(bound, operands)
    except IndexError as error:
        raise IndexRangeError(f"{node.attributes.get('node', node.op)}: {error}") from error


def max_trips() -> int:
    """The most iterations of a loop: `FTUNER_MAX_TRIPS`, or `MAX_TRIPS`.

    Raises:
        ConfigurationError: the variable is no positive number.
    """
    text = os.environ.get(MAX_TRIPS_VARIABLE, "").strip()
    if not text:
        return MAX_TRIPS
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"{MAX_TRIPS_VARIABLE} is {text!r}; expected a positive number")
    return int(text)
