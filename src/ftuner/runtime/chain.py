"""Chains: the executables of one graph, run one after the other, with host nodes between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ftuner.core.dim import symbols_of
from ftuner.core.evaluation import all_symbols_in, evaluate
from ftuner.errors import ConfigurationError, IndexRangeError, UnsupportedKernelError
from ftuner.graph.appending import Appended
from ftuner.graph.ir import Graph, Node, Value, attribute_dims
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.control import MAX_TRIPS, Host, Iterations, once
from ftuner.graph.splitting import Part, SplitGraph, divided, runs_graphs
from ftuner.runtime.backend import Backend, Boundary, Executable, Options
from ftuner.runtime.reference import bound_attributes
from ftuner.runtime.shapes.binding import Binding, bind

MAX_TRIPS_VARIABLE = "FTUNER_MAX_TRIPS"
"""The environment variable of the most iterations of a loop."""
MOST_BOUND = 64
"""Values of its dims for which a host node is kept ready."""
Apply = Callable[[Executable, list[Any]], Sequence[Any] | None]
"""Runs an executable on operands; None ends the run there."""
Evaluate = Callable[[list[Any], Sequence[int]], Sequence[Any]]
"""Computes the results of a host node, where the symbols of the part before it have these
values."""


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
        self, graph: SplitGraph, backend: Backend, boundary: Boundary, options: Options,
        appended: Sequence[Appended] = (),
    ) -> None:  # fmt: skip
        """Compile the parts of a graph, which lose their nodes. `appended`: as of
        `Backend.compile`, of the one part of a graph.

        Raises:
            UnsupportedOperatorError, ConfigurationError, HardwareError: as `Backend.compile`.
        """
        parts = graph.parts
        self._graph = replace(graph, parts=())
        self._inputs = graph.inputs
        self._headers: list[_Header] = []
        self._links: list[_Link] = []
        self.executables: list[Executable] = []
        """Those of the graph itself, in order, without those of graphs within host nodes. There is
        one at least, which runs nothing if there is nothing to run."""
        places = _Places(self._inputs, boundary)
        checked = False
        for part in parts:
            node, executable = part.node, None
            if not part.is_empty or (node is None and not self.executables):
                executable = backend.compile(part, options, appended)
                self.executables.append(executable)
            # An executable checks the extents that it is given.
            needed = (part.is_empty and not checked) or _has_dims(node)
            checks = Binding(part.graph) if needed else None
            made = places.add([value for _, value in part.graph.outputs])
            between = None
            chains: dict[str, Chain] = {}
            if node is not None:
                chains = {
                    name: Chain(divided(x), backend, boundary, options)
                    for name, x in node.attributes.items()
                    if isinstance(x, Graph)
                }
                evaluate = _evaluation(node, boundary, chains, checks.names if checks else ())
                between = _Between(node.op, tuple(map(places.of, node.inputs)), evaluate)
                places.add(node.outputs)
                # Other results have extents that are known already, or that nothing is asked of.
                asked = symbols_of(n for c in graph.constraints for n in (c.x, c.y))
                checked = not runs_graphs(node) and set(node.binds).isdisjoint(asked)
            link = _Link(None if part.is_empty else executable, checks, between)
            if any(found is not None for found in link):
                self._links.append(link)
            if node is not None and chains:
                # Graphs have weights.
                rest = {n: x for n, x in node.attributes.items() if n not in chains}
                node = replace(node, attributes=rest)
            header = Part(replace(part.graph, nodes=()), node)
            self._headers.append(_Header(header, chains, executable))
        last = iter(made)
        self._outputs = [
            places.of(value) if value.dtype.on_host or not made else next(last)
            for _, value in graph.outputs
        ]
        self._constants = places.constants
        self.alone: Executable | None = None
        """The executable that gives all outputs, if there is one."""
        if len(parts) == 1 and len(made) == len(graph.outputs):
            self.alone = self._links[0].executable
        self._in_turn: tuple[Executable, Evaluate] | None = None
        """The executable, and how a host node makes all outputs of its results, if that is all."""
        executable, checks, between = self._links[0]
        first = parts[0].node
        if len(self._links) == 1 and executable and between and first and not checks:
            given = places.count - len(first.outputs)
            read = (*range(len(self._inputs), given),)
            if (between.read, self._outputs) == (read, [*range(given, places.count)]):
                self._in_turn = executable, between.evaluate

    def split_graph(self) -> SplitGraph:
        """The graph with what was compiled of its parts.

        Raises:
            SavedModelError: parts that are not on a CPU.
        """
        parts: list[Part] = []
        for part, chains, executable in self._headers:
            if part.node is not None and chains:
                inner = {n: x.split_graph() for n, x in chains.items()}
                node = replace(part.node, attributes={**part.node.attributes, **inner})
                part = replace(part, node=node)
            if executable is not None:
                part = replace(part, compiled=executable.compiled())
            parts.append(part)
        return replace(self._graph, parts=tuple(parts))

    def all_executables(self) -> Iterator[Executable]:
        """The executables of the graph and of the graphs within its host nodes."""
        for _, chains, executable in self._headers:
            if executable is not None:
                yield executable
            for chain in chains.values():
                yield from chain.all_executables()

    def run(self, operands: Sequence[Any], note: Note | None = None) -> list[Any]:
        """The outputs, for an operand for each input, as `Boundary.admitted` returns them. `note`
        gets what the run took its time for.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `Executable.run`.
            IterationLimitError: a loop does not end.
        """
        if note is not None:
            return self.through(operands, partial(_noted, note), note)
        if self.alone is not None:
            return self.alone.run(operands)
        if self._in_turn is not None:
            executable, evaluate = self._in_turn
            return [*evaluate(executable.run(operands), ())]
        return self.through(operands, lambda executable, given: executable.run(given))

    def repeat(
        self, operands: Sequence[Any], carried: int, conditional: bool, most: int
    ) -> Iterations:
        """Iterations of a loop of which this is the graph; see `control.Repeat`.

        Raises:
            ShapeError, AllocationError, IndexRangeError, IterationLimitError: as `run`.
        """
        found = None
        if self.alone is not None:
            found = self.alone.repeat(operands, carried, conditional, most)
        return once(self.run, operands, carried, conditional, most) if found is None else found

    def through(self, operands: Sequence[Any], apply: Apply, note: Note | None = None) -> list[Any]:
        """The outputs, where `apply` runs `executables`; graphs within host nodes are run as
        ever. `note` gets the time of each host node."""
        known = [*operands]
        for executable, checks, between in self._links:
            values: Sequence[int] = ()
            if checks is not None:
                values = checks([x.shape for x in known])
            if executable is not None:
                results = apply(executable, known)
                if results is None:
                    return []
                known += results
            if between is not None:
                op, read, evaluate = between
                began_ns = time.monotonic_ns() if note is not None else 0
                known += evaluate(self._picked(known, read), values)
                if note is not None:
                    note(Timed(op, "host", began_ns, time.monotonic_ns() - began_ns))
        return self._picked(known, self._outputs)

    def _picked(self, known: Sequence[Any], places: Sequence[int]) -> list[Any]:
        """What has these places; see `_Places`."""
        return [known[i] if i >= 0 else self._constants[-1 - i] for i in places]

    def prepare(self, known: Sequence[Mapping[str, int]]) -> list[str]:
        """Prepare the executables, those of graphs within host nodes included, for values of the
        symbols; returns what is not prepared, and why. Iterations of a loop are prepared for the
        shapes of the first one.

        Raises:
            AllocationError, UnsupportedKernelError: as `Executable.prepare`.
        """
        skipped: list[str] = []
        for number, (part, chains, executable) in enumerate(self._headers):
            if executable is not None:
                shapes = _shapes(part.graph.inputs, known)
                if shapes is None:
                    skipped.append(f"part {number + 1}: an extent of its inputs depends on data")
                else:
                    skipped += executable.prepare(shapes)
            node = part.node
            if node is None:
                continue
            for chain in chains.values():
                # After the number of iterations and whether to begin, or after the condition.
                first = 1 if node.op == "choose" else 2
                shapes = _shapes(node.inputs[first : first + len(chain._inputs)], known)
                if shapes is None:
                    skipped.append(f"a graph of {node.op}: an extent of an operand depends on data")
                    continue
                inner = Graph(chain._inputs, (), ())
                skipped += chain.prepare([bind(inner, found) for found in shapes])
        return list(dict.fromkeys(skipped))


class _Header(NamedTuple):
    """A part without its nodes, what runs the graphs of the host node after it, and its
    executable."""

    part: Part
    chains: Mapping[str, Chain]
    executable: Executable | None


class _Places:
    """Where a run finds values: inputs of the graph, results of parts and of host nodes, in this
    order, and constants, whose places are negative, -1 for the first."""

    def __init__(self, inputs: Sequence[Value], boundary: Boundary) -> None:
        self._boundary = boundary
        self._known = {value: place for place, value in enumerate(inputs)}
        self.count = len(inputs)
        self.constants: list[Any] = []
        """Those on the device."""

    def add(self, values: Sequence[Value]) -> range:
        """The places of the next values."""
        places = range(self.count, self.count + len(values))
        self._known.update(zip(values, places, strict=True))
        self.count = places.stop
        return places

    def of(self, value: Value) -> int:
        if value not in self._known:
            assert value.constant is not None, value
            self.constants.append(self._boundary.moved(value.constant, value.dtype))
            self._known[value] = -len(self.constants)
        return self._known[value]


class _Between(NamedTuple):
    """A host node: its operator, the places of what it reads, and how it is computed."""

    op: str
    read: tuple[int, ...]
    evaluate: Evaluate


class _Link(NamedTuple):
    """A compiled part and the node after it. A part without outputs has no executable. `checks`:
    of the extents where nothing else checks them, and of the dims of the node's attributes."""

    executable: Executable | None
    checks: Binding | None
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


def _evaluation(
    node: Node, boundary: Boundary, graphs: Mapping[str, Chain], symbols: Sequence[str]
) -> Evaluate:
    """How a host node is computed: if it has graphs, on the arrays of the device. `symbols`: of the
    part before it."""
    if not graphs:
        return _by_reference(node, boundary, symbols)
    repeat = graphs["body"].repeat if "body" in graphs else None
    host = Host(boundary.joined, max_trips(), repeat)
    runs = {n: x.run for n, x in graphs.items()}
    run = partial(OPERATORS[node.op].reference, **{**node.attributes, **runs}, host=host)
    several = len(node.outputs) > 1

    def evaluate(operands: list[Any], values: Sequence[int]) -> Sequence[Any]:
        results = run(*operands)
        return results if several else (results,)

    return evaluate


def _by_reference(node: Node, boundary: Boundary, symbols: Sequence[str]) -> Evaluate:
    """How a node is computed by its reference, which raises IndexRangeError for an index in the
    data that is out of range."""
    prepared = None if _has_dims(node) else boundary.evaluation(node)

    @lru_cache(MOST_BOUND)
    def bound(values: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
        attributes = bound_attributes(node, dict(zip(symbols, values, strict=True)))
        return boundary.evaluation(replace(node, attributes=attributes))

    def evaluate(operands: list[Any], values: Sequence[int]) -> Sequence[Any]:
        run = prepared or bound(tuple(values))
        try:
            return run(operands)
        except IndexError as error:
            raise IndexRangeError(f"{node.attributes.get('node', node.op)}: {error}") from error

    return evaluate


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
